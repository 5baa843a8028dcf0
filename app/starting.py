"""The beginning and the end that all programs share: streams, rights of files, Ctrl-C and the exit code."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import NoReturn

from diffusers_helper.machine.signals import SIGINT, handle, unblock_ending

EXIT_CANCELLED = 130
# These variables keep the libraries from calling home. They are set before the libraries are imported, unless
# a person has set them.
_QUIET = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
UMASK_VARIABLE = "LONGTAKE_UMASK"
_OWNER_ALONE = 0o077
_OPEN_FILES = 65_536  # each connection to the page takes one, and the usual limit is 1,024


def run(main: Callable[[], int]) -> NoReturn:
    """Run a program, and end the process with its exit code.

    Unless the program handles them, Ctrl-C and the signals that end programs raise KeyboardInterrupt, so that
    children end and unfinished files go. A second signal ends the process at once, and the engine with it.

    The interpreter's ordinary end is left out, as it can abort or hang while a thread is in a native library.
    """
    os.environ.update({name: value for name, value in _QUIET.items() if name not in os.environ})
    signal_number = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal signal_number
        if signal_number:
            os._exit(128 + signal_number)
        signal_number = number
        raise KeyboardInterrupt

    handle(interrupt)
    unblock_ending()
    try:
        code = main()
    except KeyboardInterrupt:
        code = EXIT_CANCELLED
    except SystemExit as exit_request:  # by the parser of the arguments, or by a command that was interrupted
        code = exit_request.code if isinstance(exit_request.code, int) else 0
    code = 128 + signal_number if signal_number else code
    signal_number = signal_number or int(SIGINT)  # from now on, a signal ends the process at once
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def end_within(seconds: float, code: int) -> threading.Timer:
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()
    return timer


def prepare(environ: Mapping[str, str]) -> None:
    # Until these modules are imported, `run` has to be ready for Ctrl-C.
    import logging

    from app.jobs.stdio import prepare_streams
    from diffusers_helper.errors import InputError, short_repr
    from diffusers_helper.machine.limits import raise_file_limit

    prepare_streams()
    raise_file_limit(_OPEN_FILES)
    logging.raiseExceptions = False  # a closed stderr must not lead to a traceback
    text = environ.get(UMASK_VARIABLE, "")
    try:
        mask = int(text, 8) if text else _OWNER_ALONE
    except ValueError:
        mask = -1
    if not 0 <= mask <= 0o777:
        raise InputError(
            f"{UMASK_VARIABLE} is {short_repr(text)}; expected the rights to withhold, such as 077 or 022.",
            "Correct it, or leave it out.",
        )
    os.umask(mask)
