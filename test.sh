#!/usr/bin/env bash
# Sets Longtake up with the packages of its tests, checks style and types, then runs the tests.
#
#   ./test.sh [--quick] [arguments of pytest, such as tests/diffusers_helper/test_packing.py -k forward]
#
# --quick leaves out the tests that are marked `slow` or `page`, and checks style and types while the others run.
# It reads the same settings from the environment as webui.sh.
set -euo pipefail

# shellcheck source=scripts/setup.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/scripts/setup.sh"

set_up torch requirements test_requirements
cd "$root"
if [[ ${1:-} != --quick ]]; then
    scripts/check
    exec "$venv/bin/python" -m pytest "$@"
fi

shift
report=$(mktemp)
scripts/check >"$report" 2>&1 &
check=$!
trap 'kill "$check" 2>/dev/null || true; rm -f "$report"' EXIT
failed=0
"$venv/bin/python" -m pytest -m "not slow and not page" "$@" || failed=$?
wait "$check" || failed=1
cat "$report"
exit "$failed"
