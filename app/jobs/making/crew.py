"""The workers of a program, one for each card, and the thread that gives them the jobs of the queue."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from app.cards import VideoCard, with_unique_keys
from app.jobs.history import Retention, tidy
from app.jobs.job import Job
from app.jobs.making.engine_client import EngineProcess
from app.jobs.making.watchdog import WatchdogTimeouts
from app.jobs.making.worker import Worker
from app.jobs.storage.store import JobStore
from app.jobs.storage.trouble import TROUBLE, facts_of, unwritable
from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.library_errors import trouble_of
from diffusers_helper.machine.file_locks import Lock
from diffusers_helper.machine.signals import block_ctrl_c

_log = logging.getLogger(__name__)
_TIDY_SECONDS = 3600.0
_LOOK_SECONDS = 1.0  # the pause between two searches for new jobs and for processes that have ended
_RETRY_SECONDS = 2.0  # the pause after a search that failed
_MOST_FAILURES = 2  # the jobs in a row on which a card's engine may die before the card is left out


class Crew:
    """The workers of one program, and the locks of their cards. Any thread may call any method.

    A card that another process uses is left to it until that ends. The first job in the queue that a free
    card fits begins on the smallest such card, so that no card is idle while a job fits it.

    Attributes:
        workers: The workers in the order in which a user has named their cards; none while nothing is made.
        is_follower: Whether other processes use all its cards while this one waits to take over.
        missing: Why jobs that fit no card wait for one; "" if no further cards can come.
    """

    def __init__(self, store: JobStore, on_change: Callable[[], None], retention: Retention) -> None:
        self.store, self.on_change, self._retention = store, on_change, retention
        self.workers: tuple[Worker, ...] = ()
        self._mutex = threading.RLock()
        self._tidied = -_TIDY_SECONDS
        self._locks: dict[Worker, Lock] = {}  # of the cards that this process uses
        self._gave_up: defaultdict[str, set[Worker]] = defaultdict(set)  # by the ids of jobs
        self._woken, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.is_follower = False
        self.missing = ""
        self._timeouts = WatchdogTimeouts()

    @property
    def _smallest_first(self) -> list[Worker]:
        return sorted(self.workers, key=lambda worker: worker.card.profile.cap_bytes.value)

    def start(self, engines: Sequence[EngineProcess], timeouts: WatchdogTimeouts, *, warm: bool) -> None:
        cards = with_unique_keys([engine.card for engine in engines])
        self._timeouts = timeouts
        if self._thread is not None:  # of an earlier start, which has been stopped since
            self._thread.join()
        self._stopping.clear()  # from here on, another thread may stop the crew at any moment
        self.workers = tuple(map(self._worker, engines, cards))
        try:
            self.lock_cards()
        except TROUBLE as error:
            if trouble_of(error) != "disk_full":  # on a full disk, a user can still delete jobs
                raise unwritable(self.store.outputs, error) from error
        for worker in self.workers:
            worker.start()
        self._thread = threading.Thread(target=self._work, args=(warm,), name="queue", daemon=True)
        self._thread.start()

    def _worker(self, engine: EngineProcess, card: VideoCard) -> Worker:
        return Worker(
            self.store, engine, card, self._timeouts, self.on_change, self._job_ended, self.passes_on
        )

    def _job_ended(self) -> None:
        self._tidied = -_TIDY_SECONDS  # its files count for the limit of size
        self.wake()

    def add(self, engine: EngineProcess) -> bool:
        if self._thread is None or self._stopping.is_set():
            return False
        worker = self._worker(engine, engine.card)
        worker.start()
        self.workers = (*self.workers, worker)
        self.wake()
        return True

    def wake(self) -> None:
        self._woken.set()

    def stop(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._stopping.set()
        self.wake()
        for worker in self.workers:
            worker.interrupt()
        if self._thread is not None:
            self._thread.join(timeout / 2)
        for worker in self.workers:
            worker.stop(max(0.0, deadline - time.monotonic()))
        self._give_up(*self._locks)
        self.workers = ()
        self.is_follower = False

    def _work(self, warm: bool) -> None:
        block_ctrl_c()  # only the main thread handles it
        trouble = ""
        while not self._stopping.is_set():
            self._woken.clear()
            try:
                if self.lock_cards() and warm:
                    warm = False
                    for worker in self._locks:
                        worker.warm_up()
                self._assign_jobs()
            except TROUBLE as error:
                if trouble != (trouble := facts_of(error)["message"]):
                    _log.warning("No job can be taken from the queue; this is tried again. %s", trouble)
                self._woken.wait(_RETRY_SECONDS)
            else:
                trouble = ""
                self._woken.wait(_LOOK_SECONDS)

    def lock_cards(self) -> bool:
        with self._mutex:
            has_work = self.store.has_work()
            had_locks = bool(self._locks)
            for worker in self.workers:
                wanted = has_work and (worker.is_busy or worker.is_in_service)
                if not wanted or worker not in self._locks:
                    self._give_up(worker)
                    if wanted and (lock := self.store.lock_card(worker.card.key)):
                        self._locks[worker] = lock
            has_locks = bool(self._locks)
            if (is_follower := has_work and not has_locks) != self.is_follower:
                self.is_follower = is_follower
                if has_locks and not had_locks and self.store.adopts:
                    _log.warning("The program that made the jobs has ended. This one makes them now.")
                self.on_change()
            return has_locks

    def _give_up(self, *workers: Worker) -> None:
        with self._mutex:
            for worker in workers:
                if lock := self._locks.pop(worker, None):
                    lock.release()

    def _assign_jobs(self) -> None:
        free = [worker for worker in self._smallest_first if worker in self._locks and not worker.is_busy]
        while free and not self._stopping.is_set():
            claimed = self.store.claim(lambda job: self._choose(free, job))
            if claimed is None:
                break
            job, worker = claimed
            free.remove(worker)
            worker.make(job)
        for worker in self.workers:
            if not worker.is_busy:
                worker.rest(leaves=worker not in self._locks)  # another process may use the card now
        if not all(worker.is_busy for worker in self.workers):
            self._recover()
        if self._locks and self.store.adopts and time.monotonic() - self._tidied >= _TIDY_SECONDS:
            self._tidied = time.monotonic()
            if removed := tidy(self.store, self._retention):
                _log.info("Removed, because they exceed a limit: %s", ", ".join(removed))
                self.on_change()

    def _choose(self, free: Sequence[Worker], job: Job) -> Worker | None:
        able = self.workers_for(job)
        return next((worker for worker in free if worker in able), None)

    def uses(self, worker: Worker) -> bool:
        return worker in self._locks

    def serve(self, card: str, *, leaves: bool = False, now: bool = False) -> None:
        """Take a card out of service, also for other and later programs on the folder, or put it back.

        If it leaves `now`, its present job goes back to the queue, and so to another card.
        """
        worker = next((worker for worker in self.workers if worker.card.key == card), None)
        if worker is None:
            keys = ", ".join(worker.card.key for worker in self.workers)
            raise InputError(f"There is no card {short_repr(card)}; expected one of {keys}.")
        with self.store.change():
            self.store.set_out(card, leaves)
        worker.trouble, worker.failures = "", 0
        worker.gives_back = leaves and now and worker.is_busy
        self.wake()

    def workers_for(self, job: Job) -> Sequence[Worker]:
        """List the workers whose cards a job fits, smallest first.

        Those whose engines have died on it are left out, if others are in service. If it fits no card, the
        engine of this machine's largest card says why.
        """
        if len(self.workers) == 1 and not self.missing:
            return self.workers
        fitting = [worker for worker in self._smallest_first if worker.card.fits(job)]
        if not fitting and not self.missing:
            fitting = [worker for worker in self._smallest_first if not worker.card.machine][-1:]
        untried = [worker for worker in fitting if worker not in self._gave_up[job.id]]
        return untried if any(worker.is_in_service for worker in untried) else fitting

    def indices_for(self, job: Job) -> list[int]:
        """List the indices of the workers that may make a job; only that of its worker once it has begun."""
        workers = [worker for worker in self.workers if worker.job == job.id] or self.workers_for(job)
        return [self.workers.index(worker) for worker in workers]

    def why_waiting(self, job: Job) -> str:
        if not self.workers or job.state != "queued":
            return ""
        workers = self.workers_for(job)
        if not workers:
            return f"Waits for a card that it fits. {self.missing}".removesuffix(".")
        if not any(worker.is_in_service for worker in workers):
            return f"Waits for {_names(workers)}, which {'is' if len(workers) == 1 else 'are'} out of service"
        others = [worker.card for worker in self.workers if worker not in workers]
        small_cards = [card for card in others if not card.fits(job)]
        if not small_cards or not workers[0].card.fits(job):
            return ""
        reasons = ", ".join(f"{card.label} {card.lacks(job) or f'has {card.size}'}" for card in small_cards)
        return f"Waits for {_names(workers)}: {reasons}"

    def passes_on(self, worker: Worker, job: Job) -> str:
        with self._mutex:
            self._gave_up[job.id].add(worker)
            worker.failures += 1
            untried = [other for other in self.workers_for(job) if other not in self._gave_up[job.id]]
            others = [other for other in untried if other.is_in_service]
            if not others:
                return ""
            if worker.failures >= _MOST_FAILURES:
                worker.trouble = "Its engine died with one video after the other."
                _log.warning("%s is out of service. %s", worker.card.name, worker.trouble)
            return f"The engine on {worker.card.name} gave up; {_names(others)} goes on with the video."

    def _recover(self) -> None:
        with self._mutex:
            if self.store.select("WHERE state IN ('running', 'waiting', 'interrupted') LIMIT 1", what="id"):
                self.store.recover()
                self.on_change()
            if not self.store.adopts:
                self._give_up(*(worker for worker in self.workers if not worker.is_busy))


def _names(workers: Sequence[Worker]) -> str:
    return " or ".join(worker.card.name for worker in workers)
