#!/usr/bin/env bash
# Sets Longtake up with the packages of its tests, checks style and types, then runs the tests.
#
#   ./test.sh [--quick] [arguments of pytest, such as tests/diffusers_helper/test_packing.py -k forward]
#
# --quick leaves out the tests that are marked `slow` or `page`, runs the others in two processes unless arguments
# say which, and checks style and types meanwhile.
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
quick=("$venv/bin/python" -m pytest -m "not slow and not page")
reports=$(mktemp -d)
scripts/check >"$reports/check" 2>&1 &
others=($!)
if [[ $# -eq 0 ]]; then
    # The tests of the programs and all others, most of which need torch, take about as long: on two cores
    # they run side by side.
    "${quick[@]}" tests/app tests/house >"$reports/tests" 2>&1 &
    others+=($!)
    set -- --ignore tests/app --ignore tests/house
fi
trap 'kill "${others[@]}" 2>/dev/null || true; rm -rf "$reports"' EXIT
failed=0
"${quick[@]}" "$@" || failed=$?
for other in "${others[@]}"; do wait "$other" || failed=1; done
cat "$reports"/*
exit "$failed"
