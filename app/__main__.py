"""The entry point of the command line, `python -m app`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from app.cli import main

        sys.exit(main())
    except KeyboardInterrupt:  # there was nothing to cancel yet
        sys.exit(130)
