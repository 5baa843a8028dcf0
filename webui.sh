#!/usr/bin/env bash
# Sets Longtake up if necessary, then starts its page on http://127.0.0.1:7860.
#
#   ./webui.sh [--setup-only] [arguments of demo_gradio.py, such as --port 8000 --inbrowser]
#
# Optional settings from the environment: PYTHON (the interpreter that makes .venv), TORCH_INDEX_URL and
# TORCH_VERSION (the torch to install).
set -euo pipefail

# shellcheck source=scripts/setup.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/scripts/setup.sh"

arguments=() setup_only=no
for argument in "$@"; do
    if [[ $argument == --setup-only ]]; then
        setup_only=yes
    else
        arguments+=("$argument")
    fi
done

set_up torch requirements kernels
if [[ $setup_only == no ]]; then
    exec "$venv/bin/python" "$root/demo_gradio.py" "${arguments[@]}"
fi
