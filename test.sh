#!/usr/bin/env bash
# Sets Longtake up with what its tests need, checks style and types, then runs the tests.
#
#   ./test.sh [arguments of pytest, such as tests/diffusers_helper/test_packing.py -k forward]
#
# The same settings from the environment as webui.sh.
set -euo pipefail

# shellcheck source=scripts/setup.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/scripts/setup.sh"

set_up torch requirements test_requirements
cd "$root"
scripts/check
exec "$venv/bin/python" -m pytest "$@"
