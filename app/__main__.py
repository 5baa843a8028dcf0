"""The entry point of the command line, `python -m app`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from app.cli import main

        sys.exit(main())
    except KeyboardInterrupt:  # before there was anything to cancel
        sys.exit(130)
