"""A program that tries ways to compute attention: `python -m app.attention_trial ARGUMENTS`.

`app.machine.try_attention` runs it, because a kernel that was built for another card may end the process or
never return. The arguments of `attention.attending.try_ways` are given as JSON, and each result is printed as
a line of JSON.
"""

from __future__ import annotations

import json
import sys

from app.jobs.stdio import take_stdout
from diffusers_helper.machine.signals import end_with_parent


def main() -> None:
    """Try the ways one after the other."""
    end_with_parent()
    answers = take_stdout()
    from diffusers_helper.attention.attending import try_ways

    for found in try_ways(*json.loads(sys.argv[1])):
        answers.write(json.dumps(found).encode() + b"\n")


if __name__ == "__main__":
    main()
