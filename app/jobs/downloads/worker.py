"""The process that downloads or checks one model, and tells its progress on standard output as lines of JSON.

It ends with the program that has started it, since its standard input closes then.
"""

import json
import sys
from typing import Any

from app.jobs.stdio import end_with, say
from app.machine import load_added_models
from diffusers_helper.errors import LongtakeError
from diffusers_helper.machine.signals import ignore_ctrl_c
from diffusers_helper.models.fetch import get_model
from diffusers_helper.models.installed import installed_components, verify
from diffusers_helper.models.registry import ModelInfo, find_model


def main(task: str, model: str) -> int:
    ignore_ctrl_c()  # it is for the program, which then ends this process
    end_with(sys.stdin.fileno())
    load_added_models()
    try:
        info = find_model(model, allow_folder=True)
        if task == "get":
            get_model(info, _progress)
        else:
            _verify(info)
    except LongtakeError as error:
        _say(message=error.message, remedy=error.remedy)
        return 1
    return 0


def _say(**facts: Any) -> None:
    say(json.dumps(facts))


def _progress(done: int, total: int) -> None:
    _say(done_bytes=done, total_bytes=total)


def _verify(info: ModelInfo) -> None:
    read = 0
    total = sum(component.here_bytes for component in installed_components(info))

    def count(number: int) -> None:
        nonlocal read
        read += number
        _progress(min(read, total), total)

    count(0)
    for verdict in verify(info, count):
        _say(part=verdict.component, checked=verdict.checked, problems=verdict.problems)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
