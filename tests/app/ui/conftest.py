"""The page that the tests of a module open one after the other, each without the jobs of the one before."""

from collections.abc import Iterator

import pytest

from tests.support.jobs import wait_until
from tests.support.pages import Stand, staged_page_with_uploads
from tests.support.staged_engine import StagedEngine


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with staged_page_with_uploads(tmp_path_factory.mktemp("served")) as stand:
        yield stand


@pytest.fixture
def stand(served: Stand) -> Iterator[Stand]:
    yield served
    service, engine = served.service, served.engine
    service.queue.pause_queue()
    engine.release_cancel()
    wait_until(lambda: service.open_jobs()[0] is None)
    for job in service.jobs(1000):
        service.queue.delete(job.id)
    service.queue.empty_trash()
    service.queue.resume_queue()
    engine.size, engine.foreseen, engine._permits = StagedEngine.size, StagedEngine.foreseen, 0
