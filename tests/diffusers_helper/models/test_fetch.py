"""Tests of downloads from a local double of the hub that is slow, breaks off, lies, or serves web pages."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from diffusers_helper.errors import LongtakeError
from diffusers_helper.families.framepack import COMPONENTS
from diffusers_helper.models import fetch
from diffusers_helper.models.downloads import absence_of, bytes_in
from diffusers_helper.models.fetch import get_model, listed_files
from diffusers_helper.models.registry import ComponentSource, find_model
from diffusers_helper.models.sizes import published_bytes
from diffusers_helper.weights.reading import is_complete, partial_files, partial_of
from tests.support import published
from tests.support.hub import Hub, answer, checksum, hub_of, use_hub

INFO = find_model("framepack-f1")
VAE = INFO.components["vae"]
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a hub cache with what the hub has. Tests only read it."""
    cache = tmp_path_factory.mktemp("away")
    published.write_published(cache, INFO)
    return cache


@pytest.fixture
def hub(away: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "here"))
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    monkeypatch.setattr(fetch, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4096)
    with hub_of(away, INFO, tmp_path / "hub") as hub:
        use_hub(monkeypatch, hub)
        yield hub


def whole(away: Path, part: str = "vae") -> dict[str, bytes]:
    place = published.part_folder(away, INFO, part)
    return {file.name: file.read_bytes() for file in place.iterdir() if file.is_file()}


def here(part: str = "vae") -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in INFO.components[part].folder.iterdir()}


def ignore(*_: int) -> None: ...


def get_component(source: ComponentSource, on_bytes: Callable[[int], None] = ignore) -> Path:
    files = listed_files(source)
    received = {source.root / file.path: 0 for file in files}

    def on_file(place: Path, count: int) -> None:
        received[place] = count
        on_bytes(sum(received.values()))

    fetch.get_component(source, files, on_file)
    return source.folder


def reason() -> str:
    with pytest.raises(LongtakeError) as caught:
        get_component(VAE)
    assert caught.value.code == "download"
    return caught.value.message


def test_a_model_is_downloaded_into_the_layout_of_the_hub(hub: Hub, away: Path) -> None:
    for part in COMPONENTS:
        counts: list[int] = []
        folder = get_component(INFO.components[part], counts.append)
        assert folder == INFO.components[part].folder
        assert here(part) == whole(away, part)
        assert counts == sorted(counts)
        assert counts[-1] == bytes_in(folder)
        for file in folder.iterdir():
            assert file.is_symlink()
            assert file.resolve().name == checksum(file)
            assert file.resolve().parent.name == "blobs"
    assert absence_of(INFO) is None
    asked = len(hub.asked)
    get_model(INFO, ignore)
    assert len(hub.asked) == asked


def test_huggingface_hub_finds_what_was_downloaded(hub: Hub) -> None:
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    folder = get_component(VAE)
    assert try_to_load_from_cache(VAE.location, "vae/config.json", revision=VAE.revision) == str(
        folder / "config.json"
    )
    assert snapshot_download(VAE.location, revision=VAE.revision, local_files_only=True) == str(folder.parent)


def test_a_connection_that_breaks_is_taken_up_at_the_byte(hub: Hub, away: Path) -> None:
    hub.broken[WEIGHTS] = 3 * 4096
    get_component(VAE)
    assert here() == whole(away)
    assert hub.begins(WEIGHTS) == [0, 3 * 4096]


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_download_that_was_killed_goes_on(is_whole: bool, hub: Hub, away: Path) -> None:
    target = VAE.folder / WEIGHTS
    target.parent.mkdir(parents=True)
    kept = whole(away)[WEIGHTS][: None if is_whole else 10_000]
    partial_of(target).write_bytes(kept)
    absence = absence_of(INFO)
    assert absence.component_bytes["vae"] == published_bytes("vae") - len(kept)
    counts: list[int] = []
    get_component(VAE, counts.append)
    assert here() == whole(away)
    assert hub.begins(WEIGHTS) == ([] if is_whole else [10_000])
    assert counts[-1] == bytes_in(target.parent)


@pytest.mark.parametrize("garbage", [b"garbage" * 100, b"g" * 10_000_000])
def test_a_damaged_rest_is_downloaded_again(hub: Hub, away: Path, garbage: bytes) -> None:
    target = VAE.folder / WEIGHTS
    target.parent.mkdir(parents=True)
    partial_of(target).write_bytes(garbage)
    counts: list[int] = []
    get_component(VAE, counts.append)
    assert here() == whole(away)
    assert hub.begins(WEIGHTS)[-1] == 0
    assert counts[-1] == bytes_in(target.parent)


def test_a_part_is_incomplete_until_its_last_file_is_here(hub: Hub) -> None:
    hub.pages.add("config.json")
    assert "cannot be downloaded" in reason()
    folder = VAE.folder
    assert not is_complete(folder)
    hub.pages.clear()
    get_component(VAE)
    assert is_complete(folder)
    assert partial_files(folder) == []


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_a_web_page_in_place_of_a_file_is_told_at_once(hub: Hub, away: Path, name: str) -> None:
    hub.pages = {name}
    assert f"the server answered with a web page in place of vae/{name}" in reason()
    assert hub.begins(name) == [0]
    assert partial_of(VAE.folder / name).read_bytes() == b""
    hub.pages.clear()
    get_component(VAE)
    assert here() == whole(away)
    assert hub.begins(name) == [0, 0]


@pytest.mark.parametrize("by", [-100, 100])
def test_a_server_that_lies_about_the_size(hub: Hub, away: Path, by: int) -> None:
    hub.sizes[WEIGHTS] = len(whole(away)[WEIGHTS]) + by
    assert "cannot be downloaded" in reason()
    assert not is_complete(VAE.folder)
    hub.sizes.clear()
    get_component(VAE)
    assert here() == whole(away)


def test_a_file_with_another_checksum_is_thrown_away(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.hub.checksum", lambda path: "0" * 64)
    assert "differs from the one that the hub lists" in reason()


def test_the_failure_of_a_file_ends_the_others(hub: Hub) -> None:
    hub.gate.clear()
    hub.pages.add("config.json")
    ended = threading.Event()

    def run() -> None:
        assert "cannot be downloaded" in reason()
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert hub.held.wait(60)
    hub.gate.set()
    thread.join(60)
    assert ended.is_set()
    assert not is_complete(VAE.folder)
    hub.pages.clear()
    assert get_component(VAE) == VAE.folder


def test_two_programs_do_not_download_a_file_twice(hub: Hub, away: Path) -> None:
    hub.gate.clear()
    threads = [threading.Thread(target=get_component, args=(VAE,)) for _ in range(2)]
    threads[0].start()
    assert hub.held.wait(60)
    threads[1].start()
    hub.gate.set()
    for thread in threads:
        thread.join(60)
    assert here() == whole(away)
    assert hub.begins(WEIGHTS) == [0]


def test_the_token_is_sent(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    get_component(VAE)
    assert hub.tokens == {"Bearer hf_secret"}


def test_nothing_is_asked_for_in_offline_mode(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "cannot be downloaded" in reason()
    assert hub.asked == []


def test_without_a_network_there_is_one_try_and_one_sentence(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = list[str]()

    def no_network(*_: object, **__: object) -> None:
        tries.append("")
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://hub.invalid")
    monkeypatch.setattr("socket.getaddrinfo", no_network)
    assert "cannot be downloaded (Name or service not known)." in reason()
    assert len(tries) == 1
    assert not [record for record in caplog.records if record.name.startswith("huggingface_hub")]


def test_an_address_that_does_not_answer_is_left_after_three_seconds(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[float]()

    def silence(_: object, timeout: float, **__: object) -> None:
        waits.append(timeout)
        raise TimeoutError

    monkeypatch.setattr("socket.create_connection", silence)
    assert "cannot be downloaded" in reason()
    assert waits == [3.0]


@pytest.mark.parametrize("size", ["12", -1, 2**70, None, True, 1.5, [5]])
def test_a_size_that_no_file_has_is_told(hub: Hub, size: object) -> None:
    hub.sizes[WEIGHTS] = size
    assert f"the hub lists vae/{WEIGHTS} with a size of {size!r}" in reason()
    assert len(hub.asked) == 0


ELSEWHERE = "../../config.json", "vae/../config.json", "vae/../../config.json", "config.json"
ENTRY = {"type": "file", "path": "vae/config.json", "size": 2, "oid": "a" * 40}


@pytest.mark.parametrize(
    ("listing", "reported"),
    [
        ({"files": [ENTRY]}, "cannot be downloaded"),
        ([[ENTRY]], "cannot be downloaded"),
        ([None, 5], "cannot be downloaded"),
        ([{"type": "file", "path": "vae/config.json"}], "cannot be downloaded"),
        ([ENTRY | {"oid": None}], "cannot be downloaded"),
        ([ENTRY | {"oid": "../a"}], "does not belong there"),
        *(([ENTRY | {"path": path}], "which does not belong there") for path in ELSEWHERE),
        ([], "files are missing"),
        (b"[" * 100_000, "cannot be downloaded"),
        (b"\xff\xfe", "cannot be downloaded"),
    ],
)
def test_a_list_of_another_form_is_told_in_a_sentence(hub: Hub, listing: object, reported: str) -> None:
    data = listing if isinstance(listing, bytes) else json.dumps(listing).encode()
    hub.liars["tree"] = lambda handler: answer(handler, data)
    said = reason()
    assert reported in said
    assert len(said) < 600
    assert len(hub.asked) == 0


def _endless(handler: BaseHTTPRequestHandler) -> None:
    """Send chunks without a length until the other side has had enough."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for _ in range(100_000):
        handler.wfile.write(b"1000\r\n" + bytes(4096) + b"\r\n")


def _ring(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", handler.path)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def _torn(handler: BaseHTTPRequestHandler) -> None:
    """Send a part from the file's begin, whatever was asked for, and close the connection."""
    answer(handler, bytes(6000), length=40_000)
    handler.close_connection = True


def _empty(handler: BaseHTTPRequestHandler) -> None:
    answer(handler, b"")


def _negative(handler: BaseHTTPRequestHandler) -> None:
    answer(handler, b"{}", length=-5)


@pytest.mark.parametrize(
    ("liar", "reported"),
    [
        (_endless, "sends more than the"), (_ring, "redirect"),
        (_torn, "cannot be downloaded"), (_empty, "Consistency check"),
        (_negative, "cannot be downloaded"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_a_server_that_lies_about_a_file_is_left_in_a_sentence(
    hub: Hub, name: str, liar: Callable[[BaseHTTPRequestHandler], None], reported: str
) -> None:
    hub.liars[name] = liar
    said = reason()
    assert re.search(reported, said)
    assert len(said) < 600
    size = (hub.folder / VAE.location / VAE.subfolder / name).stat().st_size
    kept = [file.stat().st_size for file in partial_files(VAE.folder) if name in file.name]
    assert all(one <= size for one in kept)


def _page(handler: BaseHTTPRequestHandler) -> None:
    answer(handler, b"<!doctype html><title>Sign in</title>")


@pytest.mark.parametrize("liar", [_ring, _torn, _empty, _negative, _page])
def test_a_server_that_lies_about_its_list_is_left_in_a_sentence(
    hub: Hub, liar: Callable[[BaseHTTPRequestHandler], None]
) -> None:
    hub.liars["tree"] = liar
    assert "cannot be downloaded" in reason()


def test_a_server_that_falls_silent_is_left(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    hub.gate.clear()
    hub.held_at = 0
    hub.liars["config.json"] = lambda handler: hub.gate.wait(60) and None
    assert "cannot be downloaded" in reason()
    hub.gate.set()
