"""The entry point of the command line, `longtake`."""

from typing import NoReturn

from app.starting import run


def start() -> NoReturn:
    run(_main)


def _main() -> int:
    from app.cli import main  # which takes a moment to import, and can be interrupted

    return main()


if __name__ == "__main__":
    start()
