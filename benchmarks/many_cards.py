"""Simulate the order of the queue over many cards: `python -m benchmarks.many_cards`.

A job gets the smallest free card that it fits, as in `app.jobs.making.crew`, over a clock that is only
counted. Reported is the share of the bound that the order reaches: no order can end before the work of the
jobs that need at least some memory is divided evenly over the cards that have it, at each such size. Time in
which a card is away, and work that is lost with it, do not count for the bound.
"""

import argparse
import bisect
import heapq
import json
import random
import sys
from dataclasses import dataclass, field

from app.jobs.stdio import say
from benchmarks.rows import Rows

SIZES = (8, 12, 16, 24, 32, 48)  # GB of the cards, in equal numbers
SECTIONS, SECONDS = range(2, 13), (90.0, 180.0)  # of a job, and of each of its sections
HOUR = 3600.0


@dataclass(eq=False, slots=True)
class SimulatedCard:
    """A card, its job, and the seconds for which it was away or made what was lost."""

    gb: int
    job: "SimulatedJob | None" = None
    began: float = 0.0
    turn: int = 0  # events of earlier turns do not count
    away: float = 0.0
    wasted: float = 0.0


@dataclass(order=True, slots=True)
class SimulatedJob:
    """A job with a number of equal sections, of which those that are finished survive a failure."""

    place: int
    gb: int = field(compare=False)
    section: float = field(compare=False)
    left: int = field(compare=False)


class Simulation:
    """The cards, the queue and the clock; the mean time to a card's failure is given unless it is 0."""

    def __init__(self, cards: int, jobs: int, hours_to_failure: float, seed: int) -> None:
        self.chance, self.mean, self.now = random.Random(seed), hours_to_failure * HOUR, 0.0
        self.cards = [SimulatedCard(SIZES[number * len(SIZES) // cards]) for number in range(cards)]
        draw = self.chance
        self.queue = [
            SimulatedJob(place, draw.choice(SIZES), draw.uniform(*SECONDS), draw.choice(SECTIONS))
            for place in range(jobs)
        ]
        self.work = {gb: sum(one.section * one.left for one in self.queue if one.gb >= gb) for gb in SIZES}
        self.able = {gb: frozenset(card for card in self.cards if card.gb >= gb) for gb in SIZES}
        self.free, self.failures, self.late = list(self.cards), 0, 0
        self.events: list[tuple[float, int, int, str]] = []
        for number in range(cards):
            self._fails_some_time(number)

    def _fails_some_time(self, number: int) -> None:
        if self.mean:
            then = self.now + self.chance.expovariate(1 / self.mean)
            heapq.heappush(self.events, (then, number, -1, "fails"))

    def run(self) -> float:
        """Run until all jobs are made, and return how long that took, in seconds."""
        self._give_out()
        while any(card.job for card in self.cards) or self.queue:
            self.now, number, turn, what = heapq.heappop(self.events)
            card = self.cards[number]
            if what == "ends" and turn == card.turn:
                card.job = None
                self._frees(card)
            elif what == "fails":
                self._fail(card, number)
            elif what == "returns":
                self._fails_some_time(number)
                self._frees(card)
        return self.now

    def _fail(self, card: SimulatedCard, number: int) -> None:
        self.failures += 1
        card.turn += 1
        if card.job:
            made, part = divmod(self.now - card.began, card.job.section)
            card.job.left, card.wasted = card.job.left - int(made), card.wasted + part
            bisect.insort(self.queue, card.job)  # it keeps its place
            card.job = None
        else:
            self.free.remove(card)
        card.away += (seconds := self.chance.uniform(60, HOUR))
        heapq.heappush(self.events, (self.now + seconds, number, -1, "returns"))
        self._give_out()

    def _frees(self, card: SimulatedCard) -> None:
        bisect.insort(self.free, card, key=lambda one: one.gb)
        self._give_out()

    def _give_out(self) -> None:
        """Give out the jobs as `Crew` does, and count those that overtake one that fits the card, too."""
        index = 0
        while self.free and index < len(self.queue):
            job = self.queue[index]
            card = next((card for card in self.free if card in self.able[job.gb]), None)
            if card is None:
                index += 1
                continue
            self.late += any(card in self.able[one.gb] for one in self.queue[:index])
            self.queue.pop(index)
            self.free.remove(card)
            card.job, card.began = job, self.now
            end = self.now + job.section * job.left
            heapq.heappush(self.events, (end, self.cards.index(card), card.turn, "ends"))
        assert not any(card in self.able[job.gb] for card in self.free for job in self.queue), "idle card"


def bound(made: Simulation) -> float:
    """Return the least time in which the jobs can be made, in seconds."""
    least = 0.0
    for gb, work in made.work.items():
        cards = [card for card in made.cards if card.gb >= gb]
        least = max(least, (work + sum(card.away + card.wasted for card in cards)) / len(cards))
    return least


def main() -> int:
    """Print the figures of one run as JSON, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("cards", 200), ("jobs", 10_000), ("seed", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--hours-to-failure", type=float, default=20.0)
    given = parser.parse_args()
    with Rows(__file__) as rows:
        made = Simulation(given.cards, given.jobs, given.hours_to_failure, given.seed)
        hours, least = made.run() / HOUR, bound(made) / HOUR
        found = {"hours": hours, "bound_hours": least, "share": least / hours, "failures": made.failures}
        rows.add({name: round(value, 4) for name, value in found.items()} | {"overtakings": made.late})
    say(json.dumps([*rows]))
    return rows.exit_code()


if __name__ == "__main__":
    sys.exit(main())
