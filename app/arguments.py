"""What the programs' arguments have in common."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_CANCELLED = 1, 2, 130


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{message[:1].upper()}{message[1:]}. See: {self.prog} --help\n")
        raise SystemExit(EXIT_BAD_INPUT)
