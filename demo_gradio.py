"""The program that serves Longtake's page, under the name that users of FramePack know."""


def _main() -> int:
    from app.web.server import main

    return main()


if __name__ == "__main__":
    from app.starting import run

    run(_main)
