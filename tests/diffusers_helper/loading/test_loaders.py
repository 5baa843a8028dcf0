"""Tests that parts are found where the registry says, loaded as published, and checked for their fit."""

import json
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from syrupy.assertion import SnapshotAssertion
from tokenizers import Tokenizer

from diffusers_helper.cancel import CancelToken
from diffusers_helper.conditions.prompts import TEMPLATE, check_prompt
from diffusers_helper.errors import GenerationCancelled, InputError, LongtakeError
from diffusers_helper.families.framepack import COMPONENTS
from diffusers_helper.framepack.work import encode_pooled, encode_states
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.loading.tensors import read_tensors
from diffusers_helper.machine import sysfs
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import type_on_cpu
from diffusers_helper.pipeline import generate
from diffusers_helper.weights.reading import is_complete
from diffusers_helper.weights.safetensors_file import make_header
from tests.support.answers import without
from tests.support.making import load_tiny, make, tiny_request, write_scene
from tests.support.published import part_folder, write_published
from tests.support.tiny_model import tiny_transformer
from tests.support.weights import POINTER

MODEL = "framepack-f1"


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a hub cache with the toy model. Tests only read it."""
    cache = tmp_path_factory.mktemp("hub")
    write_published(cache, find_model(MODEL))
    return cache


@pytest.fixture
def cache(downloaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a copy of it as this process's cache, with no hub in reach."""
    own = tmp_path / "hub"
    shutil.copytree(downloaded, own)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(own))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return own


def reason(name: str = MODEL) -> LongtakeError:
    models = load_models(find_model(name, allow_folder=True), device="cpu")
    with pytest.raises(LongtakeError) as caught:
        models.load(CancelToken())
    assert caught.value.remedy
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.slow
def test_the_published_layout_makes_a_video(cache: Path, tmp_path: Path) -> None:
    models = load_models(find_model(MODEL), device="cpu")
    models.load(CancelToken())
    assert models.is_loaded
    networks = {name: part for name in COMPONENTS if hasattr(part := models.component(name), "dtype")}
    stored = {name: network.dtype for name, network in networks.items()}
    assert stored == dict.fromkeys(stored, torch.float16) | {"transformer": torch.bfloat16}
    assert {name: models.compute_dtype(name) or dtype for name, dtype in stored.items()} == {
        "transformer": torch.bfloat16 if sysfs.computes_bf16() else torch.float32,
        "vae": torch.float32,
        "text_encoder": torch.bfloat16,
        "text_encoder_2": torch.float32,
        "image_encoder": torch.float32,
    }
    assert not any(parameter.requires_grad for parameter in models.component("transformer").parameters())
    scene = write_scene(tmp_path / "scene.png", 64, 64)
    request = tiny_request(scene, mode="forward", resolution=64, steps=1, prompt="A cat, dancing!")
    result = generate(request, models, folder=tmp_path / "job")
    assert result.frames == 37
    assert result.latents.isfinite().all()


def test_shards_hold_what_one_file_would(cache: Path) -> None:
    info = find_model(MODEL)
    folder = part_folder(cache, info, "transformer")
    assert len(list(folder.glob("diffusion_pytorch_model-*-of-*.safetensors"))) > 1
    index = json.loads((folder / "diffusion_pytorch_model.safetensors.index.json").read_text("utf-8"))
    loaded = load_models(info, device="cpu").component("transformer").state_dict()
    assert loaded.keys() == index["weight_map"].keys()


def test_the_large_tokenizer_is_the_one_in_its_file(cache: Path) -> None:
    info = find_model(MODEL)
    models = load_models(info, device="cpu")
    text = TEMPLATE.format("A cat, dancing  on two legs: 12 steps.")
    file = part_folder(cache, info, "tokenizer") / "tokenizer.json"
    assert models.component("tokenizer")(text).input_ids == Tokenizer.from_file(str(file)).encode(text).ids


def test_text_is_encoded_without_the_template(cache: Path) -> None:
    models = load_models(find_model(MODEL), device="cpu")
    encoder, tokenizer = models.component("text_encoder"), models.component("tokenizer")
    with torch.inference_mode():
        empty = encode_states(encoder, tokenizer, "")
        short, long = (encode_states(encoder, tokenizer, text) for text in ("the", "the video " * 300))
        assert empty.shape[1] == 1  # the token that ends a turn
        assert 1 < short.shape[1] < 5
        assert long.shape[1] == 256
        pooled = [
            encode_pooled(models.component("text_encoder_2"), models.component("tokenizer_2"), t)
            for t in "ab"
        ]
    assert pooled[0].shape == (1, 16)
    assert not torch.equal(*pooled)


def test_an_encoder_of_fewer_words_than_its_tokenizer_is_refused(cache: Path) -> None:
    models = load_models(find_model(MODEL), device="cpu")
    for encode, of in ((encode_states, ""), (encode_pooled, "_2")):
        encoder, tokenizer = models.component(f"text_encoder{of}"), models.component(f"tokenizer{of}")
        encoder.resize_token_embeddings(3)
        with pytest.raises(InputError, match="knows 3 tokens, but its tokenizer gives token "):
            encode(encoder, tokenizer, "the video")


def test_a_prompt_is_measured_by_the_downloaded_tokenizer(cache: Path, tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.png")
    long = tiny_request(scene, prompt="the video " * 300, mode="forward")
    with pytest.raises(InputError, match="tokens"):
        check_prompt(long, find_model(MODEL))
    check_prompt(tiny_request(scene, prompt="short", negative="the video " * 300), find_model(MODEL))
    with pytest.raises(InputError, match="negative has"):
        check_prompt(tiny_request(scene, negative="the video " * 300, cfg=2.0), find_model(MODEL))
    # Nothing is known about a model that is not on this machine yet.
    shutil.rmtree(part_folder(cache, find_model(MODEL), "tokenizer"))
    check_prompt(long, find_model(MODEL))


def test_a_download_that_is_not_whole_is_told_and_never_completed(cache: Path) -> None:
    for part in reversed(COMPONENTS):
        folder = part_folder(cache, find_model(MODEL), part)
        if part == "transformer":
            assert is_complete(folder)
            sorted(folder.glob("*.safetensors"))[0].unlink()
            assert not is_complete(folder)
        else:
            shutil.move(folder, cache.parent / part)
        error = reason()
        source = find_model(MODEL).components[part]
        assert error.message.startswith(source.location)
        assert "is not completely on this machine" in error.message
        assert "models get" in error.remedy
        if part != "transformer":
            shutil.move(cache.parent / part, folder)


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | changes), encoding="utf-8")


def test_a_local_folder_keeps_its_dtype(folder: Path) -> None:
    models = load_models(find_model(str(folder), allow_folder=True), device="cpu")
    models.load(CancelToken())
    assert {part.dtype for name in COMPONENTS if hasattr(part := models.component(name), "dtype")} == {
        torch.float32
    }


def test_folders_that_cannot_be_loaded(folder: Path, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    lines, copy = list[str](), tmp_path / "kept"
    shutil.copytree(folder, copy)

    def refused(change: Callable[[Path], object], file: str) -> None:
        change(folder / file)
        lines.append(f"{file}: {without(reason(str(folder)).message, model=folder)}")
        shutil.copytree(copy, folder, dirs_exist_ok=True)

    weights, config = "vae/diffusion_pytorch_model.safetensors", "transformer/config.json"
    for file in (
        config, weights, "text_encoder/model.safetensors", "tokenizer_2/tokenizer.json",
        "feature_extractor/preprocessor_config.json",
    ):  # fmt: skip
        refused(Path.unlink, file)
    whole = (folder / weights).read_bytes()
    for content in (whole[: len(whole) // 2], POINTER.encode()):
        refused(lambda file, content=content: file.write_bytes(content), weights)
    refused(lambda file: file.write_text("{", encoding="utf-8"), config)
    refused(partial(edit, _class_name="HunyuanVideoTransformer3DModel"), config)
    own = "HunyuanVideoFramepackTransformer3DModel"
    refused(partial(edit, _class_name=own, num_single_layers=2), config)
    refused(partial(edit, num_hidden_layers=4), "text_encoder/config.json")
    wide: Any = tiny_transformer()
    wide = wide.from_config({**wide.config, "text_embed_dim": 24})
    refused(wide.save_pretrained, "transformer")
    pickled = load_file(folder / "text_encoder/model.safetensors")
    torch.save(pickled, folder / "text_encoder/pytorch_model.bin")
    refused(Path.unlink, "text_encoder/model.safetensors")
    edit(folder / config, _class_name="HunyuanVideoTransformer3DModelPacked")  # of FramePack's authors
    assert load_models(find_model(str(folder), allow_folder=True), device="cpu").component("transformer")
    assert "\n".join(lines) == snapshot


@pytest.mark.parametrize("has_bf16", [True, False])
def test_what_a_cpu_makes_of_the_stored_types(has_bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysfs, "computes_bf16", lambda: has_bf16)
    assert type_on_cpu("vae", "float16", is_bf16_kept=False) == "float32"
    assert type_on_cpu("text_encoder", "float16", is_bf16_kept=False) == "bfloat16"
    assert type_on_cpu("transformer", "float32", is_bf16_kept=False) == "float32"
    in_bf16 = type_on_cpu("transformer", "bfloat16", is_bf16_kept=False)
    assert in_bf16 == ("bfloat16" if has_bf16 else "float32")
    assert type_on_cpu("transformer", "bfloat16", is_bf16_kept=True) == "bfloat16"
    assert type_on_cpu("text_encoder", "bfloat16", is_bf16_kept=False) == "bfloat16"


def test_a_cancel_ends_loading_between_two_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel, models = CancelToken(), load_models(find_model(str(folder), allow_folder=True), device="cpu")
    models.component("transformer")
    cancel.cancel()
    with pytest.raises(GenerationCancelled):
        models.load(cancel)
    assert not models.is_loaded
    with pytest.raises(GenerationCancelled):
        load_models(models.info, cancel=cancel)
    models.load(CancelToken())
    assert models.is_loaded


def main_memory() -> int:
    """Return the bytes of memory and swap, or skip the test if this system cannot map more than that."""
    overcommit = Path("/proc/sys/vm/overcommit_memory")
    if not overcommit.exists() or overcommit.read_text(encoding="ascii").strip() == "2":
        pytest.skip("this system refuses all mappings that are larger than its memory")
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("MemTotal:", "SwapTotal:")))


def write_large_checkpoint(file: Path, num_bytes: int) -> None:
    values = file.with_name("values")
    with values.open("wb") as stream:
        stream.truncate(num_bytes)
    large = torch.from_file(str(values), shared=True, size=num_bytes, dtype=torch.uint8)
    with torch.serialization.skip_data():
        torch.save({"state_dict": {"large": large, "small": torch.zeros(2, 3, dtype=torch.bfloat16)}}, file)
    with file.open("r+b") as stream:
        stream.seek(num_bytes - 50)
        stream.write(b"\x07" * 30)


def write_large_file(file: Path, num_bytes: int) -> None:
    shapes = {"small": ("bfloat16", (2, 3)), "large": ("uint8", (num_bytes,))}
    header, _, size = make_header(shapes, {"format": "pt"})
    with file.open("wb") as stream:
        stream.write(header)
        stream.seek(size - 30)
        stream.write(b"\x07" * 30)


@pytest.mark.parametrize("write", [write_large_checkpoint, write_large_file])
def test_a_file_that_is_larger_than_main_memory_is_mapped(
    write: Callable[[Path, int], None], tmp_path: Path
) -> None:
    num_bytes = main_memory() + 1024
    write(tmp_path / "file", num_bytes)  # with holes, so that it takes no space on the disk
    tensors = read_tensors([tmp_path / "file"])
    assert tensors["small"].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert tensors["large"].shape == (num_bytes,)
    assert int(tensors["large"][0]) == 0
    assert int(tensors["large"][-4096:].sum()) == 7 * 30


def test_weights_are_mapped_for_reading_alone_and_a_job_keeps_them_so(
    tiny_model: Path, small_scene: Path, tmp_path: Path
) -> None:
    models = load_tiny(tiny_model)
    make(tiny_request(small_scene, steps=1), models, tmp_path / "job")  # a write would end the process
    names = {name for name in models.info.components if list((tiny_model / name).glob("*.safetensors"))}
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    rights = {
        Path(words[-1]).parent.name: words[1]
        for words in map(str.split, lines)
        if words[-1].startswith(str(tiny_model)) and words[-1].endswith(".safetensors")
    }
    assert rights == dict.fromkeys(names, "r--s")


def test_pickles_keep_strides_and_shared_values_and_need_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    content = {"whole": whole, "turned": whole[1:3].T, "half": torch.nn.Parameter(whole[0, ::2].bfloat16())}
    monkeypatch.setattr(torch.serialization, "location_tag", lambda _: "cuda:0")
    torch.save(content, tmp_path / "model.pt")
    found = read_tensors([tmp_path / "model.pt"])
    assert found.keys() == content.keys()
    for name, tensor in content.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    storages = {found[name].untyped_storage().data_ptr() for name in ("whole", "turned")}
    assert len(storages) == 1


def test_a_pickle_that_was_packed_again_is_read_from_its_new_places(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3), "b": torch.arange(3.0)}, tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as old, zipfile.ZipFile(tmp_path / "again.pt", "w") as new:
        for name in reversed(old.namelist()):
            new.writestr(name, old.read(name))
    found = read_tensors([tmp_path / "again.pt"])
    assert {name: one.tolist() for name, one in found.items()} == {"a": [1, 1, 1], "b": [0, 1, 2]}


def test_tensors_that_are_not_aligned_are_read(tmp_path: Path) -> None:
    values = torch.tensor([1.5, -2.0])
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]}
    text = json.dumps({"odd": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}, "a": entry}).encode()
    file = tmp_path / "a.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes([1, 2, 3]) + values.numpy().tobytes())
    tensors = read_tensors([file])
    assert torch.equal(tensors["a"], values)
    assert tensors["odd"].tolist() == [1, 2, 3]
