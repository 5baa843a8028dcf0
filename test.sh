#!/usr/bin/env bash
# Sets Longtake up with the packages of its tests, checks style and types, and runs the tests.
#
#   ./test.sh [--quick] [arguments of pytest, such as tests/diffusers_helper/test_packing.py -k forward]
#
# --quick leaves out the tests that are marked `slow` or `page`. Without arguments, all tests run in two processes
# side by side, beside the checks. It reads the same settings from the environment as webui.sh.
set -euo pipefail

# shellcheck source=scripts/setup.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/scripts/setup.sh"

set_up torch requirements test_requirements
cd "$root"
tests=("$venv/bin/python" -m pytest)
# The tests of what a person uses and of the tools take about as long as all others, of which the jobs are slow.
used=(tests/app/ui tests/app/web tests/app/commands tests/benchmarks tests/house tests/training tests/rocm_nodes)
if [[ ${1:-} == --quick ]]; then
    shift
    tests+=(-m "not slow and not page")
    used+=(tests/app/jobs)
fi
if [[ $# -gt 0 ]]; then
    scripts/check
    exec "${tests[@]}" "$@"
fi

reports=$(mktemp -d)
scripts/check >"$reports/check" 2>&1 &
others=($!)
"${tests[@]}" "${used[@]}" >"$reports/tests" 2>&1 &
others+=($!)
trap 'kill "${others[@]}" 2>/dev/null || true; rm -rf "$reports"' EXIT
failed=0
"${tests[@]}" "${used[@]/#/--ignore=}" || failed=$?
for other in "${others[@]}"; do wait "$other" || failed=1; done
cat "$reports"/*
exit "$failed"
