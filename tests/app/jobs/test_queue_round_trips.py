"""Round trips of the queue: whole sequences that a random walk seldom takes, beside the same plain lists."""

from typing import Any

import pytest

from tests.app.jobs.test_queue_model import QueueMachine

# The rules of the machine with their arguments. Program 0 makes job 0, and is in its second section.
DIES = [("kill", 0, True), ("make", 0, 0, ["step"])]
ROUND_TRIPS: dict[str, list[tuple[Any, ...]]] = {
    "deaths are forgotten by a resume": [
        *DIES, ("kill", 0, True), ("resume", 0, 0), ("move", 2, 0, "first", 0), ("make", 0, 0, ["step"]),
        *DIES,
    ],
    "a section between two deaths": [*DIES, ("make", 0, 0, ["section", "step"]), *DIES],
    "held twice, and gone on": [
        ("hold", 0), ("make", 0, 0, ["step"]), ("hold", 1), ("go_on", 0), ("make", 0, 0, ["step"]),
    ],
    "held, resumed alone, and gone on": [
        ("hold", 0), ("make", 0, 0, ["step"]), ("resume", 0, 1), ("hold", 1), ("go_on", 1), ("go_on", 0),
    ],
    "a take goes on while its parent waits in the queue": [
        ("take", 0, 0), ("make", 0, 0, ["step"]), ("resume", 0, 0), ("hold", 0), ("go_on", 0),
        ("command", 3, "pause", 0), ("command", 4, "pause", 0), ("resume", 3, 1),
    ],
    "a take goes on after its section": [
        ("take", 0, 0), ("make", 0, 0, ["step"]), ("move", 3, 0, "first", 0), ("make", 0, 0, []),
        ("make", 0, 0, ["section"]), ("command", 0, "pause", 1), ("make", 0, 0, ["step"]), ("resume", 0, 1),
    ],
    "a take goes on after its section, and its parent is in the queue": [
        ("take", 0, 0), ("make", 0, 0, ["step"]), ("resume", 0, 0), ("move", 3, 0, "first", 0),
        ("make", 0, 0, []), ("make", 0, 0, ["section"]), ("command", 0, "pause", 1),
        ("make", 0, 0, ["step"]), ("resume", 0, 1),
    ],
    "a stop outlasts a death, and ends with a pause": [
        ("command", 0, "stop_after_section", 1), *DIES, ("command", 0, "pause", 0), ("make", 0, 0, ["step"]),
        ("resume", 0, 0), ("make", 0, 0, ["section"]),
    ],
    "between two that begin": [("add", "d", 0), ("move", 3, 1, "before", 0), ("move", 3, 1, "after", 1)],
    "removed with its commands, and back": [
        ("wait", 1, True, 0), ("remove", 1, 0, False), ("restore", 0, 1), ("remove", 1, 0, True),
    ],
}  # fmt: skip


@pytest.mark.parametrize("steps", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_round_trips_end_as_the_model_says(steps: list[tuple[Any, ...]]) -> None:
    machine = QueueMachine()
    machine.begin()
    try:
        for rule_name, *arguments in steps:
            getattr(machine, rule_name)(*arguments)
            machine.both_programs_list_what_the_model_has()
    finally:
        machine.teardown()
