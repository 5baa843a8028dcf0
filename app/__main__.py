"""The entry point of the command line, `python -m app`."""

from __future__ import annotations

from app.starting import run


def _main() -> int:
    from app.cli import main  # which takes a moment to import, and can be interrupted

    return main()


if __name__ == "__main__":
    run(_main)
