"""The program that serves Longtake's page, under the name that users of FramePack know."""

import os

# These variables keep the libraries from calling home. They are set before the libraries are imported, unless
# a person has set them.
QUIET = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}


def _main() -> int:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    from app.web.server import main

    return main()


if __name__ == "__main__":
    from app.starting import run

    run(_main)
