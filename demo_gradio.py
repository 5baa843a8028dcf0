"""Longtake's page: `python demo_gradio.py --help`. FramePack's users know it by this name."""

import os

# Nothing calls home. Set before the libraries are imported; what a person has set stays.
QUIET = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}

if __name__ == "__main__":
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    from app.web.server import main

    # Not the interpreter's own end: everything is closed by now, and on a busy machine it takes seconds.
    os._exit(main())
