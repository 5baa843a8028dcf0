"""Tests of `models add` with files of a user's own, and of what the other commands make of such a model."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from syrupy.assertion import SnapshotAssertion

from app.ui.catalogue import Catalogue
from app.ui.form.controls import form_markup
from diffusers_helper.errors import InputError
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.loading.networks import empty_network
from diffusers_helper.loading.tensors import read_tensors
from diffusers_helper.machine.limits import limited_memory
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.downloads import absence_of
from diffusers_helper.models.registry import find_model, model_names
from tests.app.conftest import Longtake
from tests.support.checkpoints import original_names, to_fp8, write_safetensors
from tests.support.weights import PAGE, POINTER, write_gguf

DEMO = find_model("demo")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a data folder of the test's own, which the program finds by itself."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(ADDED_MODELS, "file", None)
    return tmp_path / "data" / "longtake" / "models.json"


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    return load_file(Path(DEMO.components["transformer"].location) / "diffusion_pytorch_model.safetensors")


@pytest.fixture
def file(weights: dict[str, torch.Tensor], tmp_path: Path) -> Path:
    return write_safetensors(tmp_path / "mine.safetensors", original_names(weights))


def test_a_model_is_added_used_and_forgotten(file: Path, data: Path, longtake: Longtake) -> None:
    before = file.read_bytes()
    reported = json.loads(
        longtake("models", "add", "mine", "--base", "demo", "--transformer", file, "--json")
    )
    assert reported["parts"]["transformer"]["path"] == str(file)
    assert reported["parts"]["transformer"]["inspection"]["key_style"] == "original"
    assert json.loads(data.read_text(encoding="utf-8"))["models"][0]["base"] == "demo"
    assert model_names()[-1] == "mine"
    info = find_model("mine")
    assert (info.modes, info.side, info.examples) == (DEMO.modes, DEMO.side, DEMO.examples)
    assert info.components["vae"] == DEMO.components["vae"]
    listed = json.loads(longtake("models", "list", "mine", "--json"))
    assert listed["state"] == "complete"
    assert listed["parts"][0]["here_bytes"] == file.stat().st_size
    plans: list[Any] = []
    for name in ("demo", "mine"):
        plans.append(json.loads(longtake("plan", "--model", name, "--json"))["stages"])
    assert plans[0] == plans[1]
    longtake("models", "verify", "mine")
    assert '<option value="mine">mine</option>' in form_markup(Catalogue())
    longtake("models", "remove", "mine")
    assert "mine" not in model_names()
    assert file.read_bytes() == before


def test_the_base_follows_from_the_file_and_its_other_parts_are_downloaded(
    tmp_path: Path, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for part, network in FRAMEPACK.networks.items():
        monkeypatch.setitem(FRAMEPACK.networks, part, replace(network, config=_config(part)))
    folder = tmp_path / "files"
    folder.mkdir()
    source = Path(DEMO.components["transformer"].location) / "diffusion_pytorch_model.safetensors"
    shutil.copy(source, folder / "FramePack_F1_bf16.safetensors")
    assert "GB to download" in longtake(
        "models", "add", "mine.f1", "--transformer", str(folder), "--title", "My F1"
    )
    info = find_model("mine.f1")
    assert (info.title, info.modes) == ("My F1", ("forward",))
    absence = absence_of(info)
    assert "transformer" not in absence.component_bytes
    assert (
        absence.component_bytes["text_encoder"]
        == absence_of(find_model("framepack-f1")).component_bytes["text_encoder"]
    )  # type: ignore[union-attr]


def _config(part: str) -> dict[str, Any]:
    return json.loads((Path(DEMO.components[part].location) / "config.json").read_text(encoding="utf-8"))


def refused(longtake: Longtake, file: Path, part: str = "transformer") -> str:
    reported = longtake("models", "add", "mine", "--base", "demo", f"--{part}", file, code=2)
    assert reported.count("\n") == 1
    return reported


def test_a_model_whose_base_or_file_is_gone(
    file: Path, tmp_path: Path, longtake: Longtake, weights: dict[str, torch.Tensor]
) -> None:
    base = tmp_path / "base"
    shutil.copytree(DEMO.folder or "", base)
    longtake("models", "add", "mine", "--base", base, "--transformer", file)
    assert model_names()[-1] == "mine"
    write_safetensors(file, to_fp8(weights, torch.float8_e4m3fn))  # another file under the same name
    longtake("plan", "--model", "mine")
    file.unlink()
    gone = f"The transformer is not at {file}. Put it back, or remove the model and add it again."
    assert gone in longtake("plan", "--model", "mine", code=1)
    lack = f"transformer is not at {file}; put it back, or remove the model and add it again."
    assert lack in longtake("models", "get", "mine", code=2)
    assert lack in longtake("models", "verify", "mine", code=1)
    shutil.rmtree(base)
    assert "mine" not in model_names()
    assert "is based on" in longtake("plan", "--model", "mine", code=2)
    longtake("models", "remove", "mine")


def test_a_list_that_is_damaged_hides_no_other_model(data: Path, longtake: Longtake) -> None:
    data.parent.mkdir(parents=True)
    data.write_text("{", encoding="utf-8")
    longtake("models", "list", "demo")
    assert "is no list of added models" in longtake("plan", "--model", "mine", code=2)


def test_a_second_model_of_one_name_is_refused(file: Path, data: Path, longtake: Longtake) -> None:
    command = ["models", "add", "mine", "--base", "demo", "--transformer", str(file)]
    longtake(*command, "--title", "The first")
    before = data.read_bytes()
    said = longtake(*command, "--title", "The second", code=2)
    assert "There is already a model mine." in said
    assert "models remove mine" in said
    assert data.read_bytes() == before


CLIP = (
    "t.blk.0.attn_q.weight", "text_model.encoder.layers.0.self_attn.q_proj.weight",
    "cond_stage_model.transformer.text_model.encoder.layers.0.self_attn.q_proj.weight",
)  # fmt: skip
SIZES = {
    "transformer": {"text_embed_dim": 128}, "vae": {"latent_channels": 8},
    "image_encoder": {"hidden_size": 128},
}  # fmt: skip


def test_files_that_cannot_be_a_part_of_the_model(
    weights: dict[str, torch.Tensor], file: Path, data: Path, tmp_path: Path, longtake: Longtake,
    snapshot: SnapshotAssertion,
) -> None:  # fmt: skip
    original, lines = original_names(weights), list[str]()

    def tell(file: Path, part: str = "transformer") -> None:
        lines.append(f"{part}: {refused(longtake, file, part).replace(str(tmp_path), 'TMP').strip()}")

    whole = file.read_bytes()
    for content in (PAGE.encode(), POINTER.encode(), b"", whole[:-1000]):
        file.write_bytes(content)
        tell(file)
    file.write_bytes(whole)
    tell(file, "vae")
    tell(Path(f"{file}x"))
    single, block = "single_transformer_blocks.6.", "transformer_blocks.0."
    deeper = {name.replace(".0.", ".1.", 1): item for name, item in weights.items() if name.startswith(block)}
    flatter = {name: item for name, item in weights.items() if not name.startswith(single)}
    for tensors in (
        {name: original[name] for name in [*original][:-2]}, original | {"foreign.weight": torch.zeros(2)},
        original | {"img_in.proj.bias": torch.zeros(7)}, weights | deeper, flatter,
        {name: (tensor * 100).to(torch.int8) for name, tensor in weights.items()},
        {name: tensor.reshape(-1)[0] for name, tensor in original.items()},
        {name: item for name, item in flatter.items() if name != "proj_out.bias"},
    ):  # fmt: skip
        tell(write_safetensors(file, tensors))
    llama = {f"blk.0.{name}.weight": (0, (2,), bytes(8)) for name in ("attn_q", "ffn_gate")}
    for tensors in (llama, llama | {"token_embd.weight": (0, (2, 2), bytes(16))}):
        tell(write_gguf(tmp_path / "llama.gguf", tensors), "text-encoder")
    for name in CLIP:
        tell(write_gguf(tmp_path / "clip.gguf", {name: (0, (2,), bytes(8))}), "text-encoder-2")
    for part, change in SIZES.items():
        folder, config = tmp_path / part, _config(part) | change
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        network = empty_network(part, config).state_dict()
        tensors = {name: torch.zeros(item.shape) for name, item in network.items()}
        write_safetensors(folder / "model.safetensors", tensors)
        tell(folder, part.replace("_", "-"))
    base = ("models", "add", "mine", "--base", "framepack-i2v", "--transformer", file)
    write_safetensors(file, original)
    lines.append(longtake(*base, code=2).strip())
    assert lines == snapshot
    assert not data.exists()


def test_files_that_take_more_memory_than_any_model() -> None:
    with pytest.raises(InputError, match="it takes more than 64 MiB of memory"), limited_memory(2**26):
        bytearray(2**34)  # less could be in the heap already, where earlier tests have freed it
    assert len(bytearray(2**28)) == 2**28


def test_the_files_that_are_mapped_may_be_larger_than_that(tmp_path: Path) -> None:
    file, count = tmp_path / "large.safetensors", 2**29
    header = json.dumps({"a": {"dtype": "BF16", "shape": [count], "data_offsets": [0, 2 * count]}}).encode()
    header += b" " * (-len(header) % 8)
    with file.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + 2 * count)  # without content, so it takes no room on the disk
    with limited_memory(2**26):
        assert read_tensors([file])["a"].shape == (count,)
