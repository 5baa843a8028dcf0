"""Tests of which models exist, and of what is known about them before anything is loaded."""

import json
import re
from pathlib import Path

import pytest

from diffusers_helper.errors import InputError
from diffusers_helper.families.framepack import COMPONENTS, FRAMEPACK
from diffusers_helper.models.registry import DEFAULT_MODEL, ModelInfo, find_model, model_names
from diffusers_helper.models.sizes import published_bytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a model folder with every part, all empty."""
    for part in COMPONENTS:
        (tmp_path / "toy" / part).mkdir(parents=True)
    return tmp_path / "toy"


def test_the_demo_is_the_default_and_lies_beside_the_code() -> None:
    published = (
        "framepack-i2v", "framepack-f1", "helios-distilled", "helios-base", "wan-5b", "wan-5b-fast",
        "wan-a14b", "wan-a14b-fast",
    )  # fmt: skip
    assert model_names() == ("demo", *published)
    assert DEFAULT_MODEL == "demo"
    info = find_model("demo")
    assert set(info.modes) == {"inverted", "forward"}
    assert info.folder is not None
    assert info.folder == Path(__file__).resolve().parents[3] / "assets" / "demo_model"
    assert {part: source.location for part, source in info.components.items()} == {
        part: str(info.folder / part) for part in COMPONENTS
    }


@pytest.mark.parametrize(
    ("name", "repository", "mode"),
    [
        ("framepack-i2v", "lllyasviel/FramePackI2V_HY", "inverted"),
        ("framepack-f1", "lllyasviel/FramePack_F1_I2V_HY_20250503", "forward"),
    ],
)
def test_published_models_are_pinned(name: str, repository: str, mode: str) -> None:
    info = find_model(name)
    assert (info.modes, info.side, info.multiple, info.folder) == ((mode,), 640, 32, None)
    assert set(info.components) == set(COMPONENTS)
    assert info.components["transformer"].location == repository
    assert info.components["transformer"].subfolder == ""
    for part in ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "vae"):
        assert info.components[part].location == "hunyuanvideo-community/HunyuanVideo"
        assert info.components[part].subfolder == part
    for part in ("image_encoder", "feature_extractor"):
        assert info.components[part].location == "lllyasviel/flux_redux_bfl"
        assert info.components[part].subfolder == part
    for source in info.components.values():
        assert re.fullmatch(r"[0-9a-f]{40}", source.revision or "")


@pytest.mark.parametrize(
    ("name", "repository", "steps", "cfg", "multiple"),
    [
        ("helios-base", "BestWishYsh/Helios-Base", 50, 5.0, 32),
        ("helios-distilled", "BestWishYsh/Helios-Distilled", 6, 1.0, 64),
    ],
)
def test_published_models_of_helios_share_their_encoder_and_vae(
    name: str, repository: str, steps: int, cfg: float, multiple: int
) -> None:
    info = find_model(name)
    assert (info.family.name, info.modes, info.multiple) == ("helios", ("forward",), multiple)
    assert info.default_settings == {"mode": "forward", "steps": steps, "guidance": 10.0, "cfg": cfg}
    own = {part for part, source in info.components.items() if source.location == repository}
    assert {"transformer", "scheduler"} <= own
    for part in ("vae", "text_encoder", "tokenizer"):
        assert info.components[part] == find_model("helios-base").components[part]
    assert "Apache" in info.licence
    assert "South Korea" in find_model("framepack-f1").licence
    assert all(re.fullmatch(r"[0-9a-f]{40}", source.revision or "") for source in info.components.values())


@pytest.mark.parametrize(("name", "gb"), [("wan-5b", 20.0), ("wan-5b-fast", 10.0), ("wan-a14b", 57.2)])
def test_the_download_of_wan_is_as_large_as_its_files(name: str, gb: float) -> None:
    info = find_model(name)
    num_bytes = published_bytes("transformer", info.family.name, info.file_dtype)
    assert num_bytes / 1e9 == pytest.approx(gb, abs=0.05)
    assert info.default_settings["weight_dtype"] == "bf16"
    assert all(re.fullmatch(r"[0-9a-f]{40}", source.revision or "") for source in info.components.values())
    assert info.components["text_encoder"] == find_model("helios-base").components["text_encoder"]


def test_a_folder_tells_its_own_facts(folder: Path) -> None:
    facts = {"title": "Toy", "side": 64, "multiple": 16, "modes": ["forward"], "examples": ["a cat"]}
    facts["shift"] = 9.5
    facts["magnitudes"] = {"forward": [1, 0.9]}
    facts["vocabulary"] = {"subjects": ["cat", "dog"]}
    (folder / "longtake.json").write_text(json.dumps(facts), encoding="utf-8")
    info = find_model(str(folder), allow_folder=True)
    assert (info.title, info.side, info.multiple, info.modes) == ("Toy", 64, 16, ("forward",))
    assert info.examples == ("a cat",)
    assert info.shift == 9.5
    assert info.mag_ratios("forward") == (1, 0.9)
    assert info.mag_ratios("inverted") == FRAMEPACK.mag_ratios["inverted"]
    assert info.vocabulary == {"subjects": ("cat", "dog")}
    assert info.folder == folder
    assert info.components["vae"].location == str(folder / "vae")


def test_a_folder_without_facts_is_taken_for_a_full_model(folder: Path) -> None:
    info = find_model(str(folder), allow_folder=True)
    assert (info.title, info.side, info.multiple, info.shift) == ("toy", 640, 32, None)
    assert info.mag_ratios("forward") == FRAMEPACK.mag_ratios["forward"]
    assert set(info.modes) == {"inverted", "forward"}
    assert info.vocabulary == {}


@pytest.mark.parametrize(
    "facts", ["{", "[]", '{"side": "64"}', '{"modes": ["sideways"]}', '{"modes": []}', '{"shift": "much"}']
)
def test_facts_that_cannot_be_read_are_refused(folder: Path, facts: str) -> None:
    (folder / "longtake.json").write_text(facts, encoding="utf-8")
    with pytest.raises(InputError, match=r"longtake\.json"):
        find_model(str(folder), allow_folder=True)


def test_folders_are_for_those_who_may_name_them(folder: Path) -> None:
    for name in (str(folder), "../../etc", "FRAMEPACK-I2V", ""):
        with pytest.raises(InputError, match="expected one of demo, framepack-i2v, framepack-f1"):
            find_model(name)


def test_a_folder_that_is_not_there_or_not_whole_is_refused(folder: Path) -> None:
    for name in (str(folder / "none"), "~nobody-of-that-name/model", "x" * 4000):
        with pytest.raises(InputError, match="or a folder with the model's parts"):
            find_model(name, allow_folder=True)
    (folder / "vae").rmdir()
    with pytest.raises(InputError, match="lacks vae; expected the folders transformer, vae"):
        find_model(str(folder), allow_folder=True)


def test_unknown_words_in_order_and_none_twice() -> None:
    info = ModelInfo(name="toy", title="Toy", components={}, vocabulary={"all": ("the", "Red", "turns left")})
    assert info.unknown_words("The RED balloon, turns; balloon upwards. 7!") == ["balloon", "upwards", "7"]
    assert info.unknown_words("") == []
    assert ModelInfo(name="full", title="Full", components={}).unknown_words("anything goes") == []
