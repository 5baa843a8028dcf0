#!/usr/bin/env bash
# Sets Longtake up with the packages of its tests, checks style and types, and runs the tests.
#
#   ./test.sh [--quick] [arguments of pytest, such as tests/diffusers_helper/families/test_packing.py -k forward]
#
# --quick leaves out the tests that are marked `slow` or `page`. Without arguments, all tests run in several processes
# side by side, beside the checks. It reads the same settings from the environment as webui.sh.
set -euo pipefail

# shellcheck source=scripts/setup.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/scripts/setup.sh"

set_up torch requirements test_requirements
cd "$root"
tests=("$venv/bin/python" -m pytest)
if [[ ${1:-} == --quick ]]; then
    shift
    tests+=(-m "not slow and not page")
fi
if [[ $# -gt 0 ]]; then
    scripts/check
    exec "${tests[@]}" "$@"
fi

report=$(mktemp)
scripts/check >"$report" 2>&1 &
check=$!
trap 'kill "$check" 2>/dev/null || true; rm -f "$report"' EXIT
# Many tests wait for programs that they start, so there is one process more than cores. A file stays in one. No process
# replaces one that crashed: pytest-xdist would wait for ever for the tests of its file.
cores=$(nproc)
failed=0
"${tests[@]}" -n $((cores < 8 ? cores + 1 : 8)) --dist loadfile --no-loadscope-reorder \
    --max-worker-restart 0 || failed=$?
wait "$check" || failed=1
cat "$report"
exit "$failed"
