"""Tests of what is told about files and folders with weights before anything is loaded."""

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from safetensors.torch import load_file, save_file

from app.cli import main
from app.commands.inspect import STYLE_WORDS
from diffusers_helper.families.framepack import COMPONENTS
from diffusers_helper.models.registry import find_model
from diffusers_helper.untrusted.limited_json import MAX_BYTES
from diffusers_helper.weights.inspection import inspect_checkpoint, weights_at
from diffusers_helper.weights.reading import is_complete, weight_files
from diffusers_helper.weights.recognition import KeyStyle, expected_names
from tests.support.checkpoints import comfyui_names, original_names, with_prefix, write_safetensors
from tests.support.published import part_folder, write_published
from tests.support.weights import POINTER, write_gguf

INFO = find_model("framepack-f1")
DEMO = find_model("demo")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a hub cache with the toy model. Tests only read it."""
    cache = tmp_path_factory.mktemp("hub")
    write_published(cache, INFO)
    return cache


def save(file: Path, **tensors: torch.Tensor) -> Path:
    save_file({name.replace("__", "."): tensor for name, tensor in tensors.items()}, file)
    return file


def test_types_are_told_by_their_share_of_the_bytes(tmp_path: Path) -> None:
    file = save(
        tmp_path / "model.safetensors",
        double_blocks__0__img_attn__norm__key_norm__scale=torch.zeros(8),
        weight=torch.zeros(4, 24, dtype=torch.bfloat16),
    )
    facts = inspect_checkpoint(file)
    assert (facts.format, facts.tensors, facts.bytes) == ("safetensors", 2, 32 + 192)
    assert facts.dtypes == {"bfloat16": 192 / 224, "float32": 32 / 224}
    assert (facts.model, facts.variant, facts.key_style) == ("Flux", "schnell", "original")
    assert (facts.quantised, facts.problems) == ("", ())
    reported = json.loads(facts.to_json())
    wanted = "format model variant key_style tensors bytes dtypes quantised problems"
    assert {*wanted.split()} <= reported.keys()
    assert reported["bytes"] == 224


@pytest.mark.parametrize(
    ("tensors", "kind"),
    [
        ({"a": torch.zeros(2, 2, dtype=torch.float8_e4m3fn)}, "fp8"),
        ({"a": torch.zeros(2, 2, dtype=torch.float8_e5m2), "scaled_fp8": torch.zeros(1)}, "scaled fp8"),
        (
            {"a.weight": torch.zeros(2, 2, dtype=torch.float8_e4m3fn), "a.scale_weight": torch.zeros(1)},
            "scaled fp8",
        ),
        ({"a": torch.zeros(2, 2, dtype=torch.int8), "a.weight_scale": torch.zeros(1)}, "scaled int8"),
        ({"a": torch.zeros(2, 2, dtype=torch.int8), "a.SCB": torch.zeros(2)}, "bitsandbytes int8"),
        (
            {"a": torch.zeros(2, 2, dtype=torch.uint8), "a.quant_state.bitsandbytes__nf4": torch.zeros(1)},
            "bitsandbytes nf4",
        ),
        ({"a": torch.zeros(2, 2), "position_ids": torch.zeros(3, dtype=torch.int8)}, ""),
    ],
)
def test_quantised_weights_are_known_by_types_and_names(
    tmp_path: Path, tensors: dict[str, torch.Tensor], kind: str
) -> None:
    file = tmp_path / "paint4k-int4-like.safetensors"
    save_file(tensors, file)
    facts = inspect_checkpoint(file)
    assert facts.quantised == kind
    assert facts.hints == ("The name of the file says int4.",)


def test_quantised_weights_in_a_gguf_file(tmp_path: Path) -> None:
    tensors = {
        "double_blocks.0.img_mod.lin.weight": (12, (4, 256), bytes(576)),
        "txt_in.individual_token_refiner.blocks.0.norm1.weight": (0, (8,), bytes(32)),
        "img_in.proj.weight": (1, (8, 16, 1, 2, 2), bytes(1024)),
        "final_layer.linear.weight": (14, (1, 256), bytes(210)),
    }
    facts = inspect_checkpoint(write_gguf(tmp_path / "a.gguf", tensors))
    assert (facts.format, facts.quantised, facts.key_style) == ("gguf", "gguf Q4_K", "original")
    assert (facts.model, facts.variant) == ("HunyuanVideo", "T2V")
    assert facts.dtypes == {name: size / 1842 for name, size in
                            (("float16", 1024), ("Q4_K", 576), ("Q6_K", 210), ("float32", 32))}  # fmt: skip


def test_a_word_inside_another_one_is_no_hint(tmp_path: Path) -> None:
    assert inspect_checkpoint(save(tmp_path / "paint4k.safetensors", a=torch.zeros(1))).hints == ()


def test_the_parts_of_a_checkpoint_are_named(tmp_path: Path) -> None:
    file = save(
        tmp_path / "all.safetensors",
        model__diffusion_model__joint_blocks__0__context_block__attn__qkv__weight=torch.zeros(1),
        first_stage_model__decoder__conv_in__weight=torch.zeros(1),
    )
    facts = inspect_checkpoint(file)
    assert (facts.model, facts.key_style) == ("SD3 + VAE", "checkpoint")


def test_a_lora_is_not_taken_for_its_model(tmp_path: Path) -> None:
    file = tmp_path / "style.safetensors"
    save_file({"diffusion_model.clean_x_embedder.proj.lora_A.weight": torch.zeros(2, 2)}, file)
    facts = inspect_checkpoint(file, "transformer")
    assert (facts.model, facts.key_style) == ("LoRA", "lora")
    expected = "the transformer must be FramePack or Helios or Wan; choose another one."
    problem = f"style.safetensors contains LoRA, but {expected}"
    assert facts.problems == (problem,)


def test_the_folder_of_a_model_is_told_by_parts(published: Path, folder: Path) -> None:
    assert DEMO.folder is not None
    for whole in (DEMO.folder, folder):
        facts = inspect_checkpoint(whole)
        assert (facts.format, facts.model, facts.key_style) == ("diffusers", "FramePack", "diffusers")
        assert facts.problems == ()
        assert {name: part.model for name, part in facts.parts.items()} == {
            "transformer": "FramePack", "vae": "Hunyuan VAE", "text_encoder": "Llama",
            "tokenizer": "tokenizer", "text_encoder_2": "CLIP", "tokenizer_2": "tokenizer",
            "image_encoder": "SigLIP", "feature_extractor": "image processor",
        }  # fmt: skip
        assert facts.bytes == sum(part.bytes for part in facts.parts.values())
        assert sum(facts.dtypes.values()) == pytest.approx(1)
        assert inspect_checkpoint(whole, "vae") == inspect_checkpoint(whole / "vae", "vae")
    shutil.rmtree(folder / "vae")
    assert inspect_checkpoint(folder).problems == ("model lacks the folders vae; add them.",)


def test_a_part_of_the_hubs_cache_tells_its_variant(published: Path) -> None:
    place = part_folder(published, INFO, "transformer")
    facts = inspect_checkpoint(place)
    assert (facts.format, facts.model, facts.variant) == ("safetensors", "FramePack", "F1")
    assert facts.dtypes == {"bfloat16": 1.0}
    index = next(place.glob("*.index.json"))
    assert (
        inspect_checkpoint(index).tensors == facts.tensors == len(json.loads(index.read_text())["weight_map"])
    )
    shard = inspect_checkpoint(sorted(place.glob("*.safetensors"))[0])
    assert 0 < shard.tensors < facts.tensors
    assert shard.hints[0].startswith("The file is shard 1 of ")


def test_shards_and_their_index_are_compared(published: Path, tmp_path: Path) -> None:
    place = tmp_path / "transformer"
    shutil.copytree(part_folder(published, INFO, "transformer"), place)
    index = next(place.glob("*.index.json"))
    first, second, *_ = sorted(place.glob("*.safetensors"))
    tensors = load_file(first)
    name = sorted(tensors)[0]
    save_file({(f"other.{key}" if key == name else key): value for key, value in tensors.items()}, first)
    missing, unexpected = inspect_checkpoint(place).problems
    assert missing == f"{index.name} lists 1 missing tensor, such as {name}; download all files again."
    assert f"1 tensor that it does not list, such as other.{name}" in unexpected
    second.unlink()
    (problem,) = inspect_checkpoint(place).problems
    assert problem == f"{second.name}, which {index.name} lists, is missing; download it again."
    index.write_text("[]")
    assert inspect_checkpoint(place).problems == (
        f"{index.name} is not an index of weights; download it again.",
    )
    index.unlink()
    assert "lacks the index of its" in inspect_checkpoint(place).problems[0]


def test_the_names_are_those_of_the_published_transformer() -> None:
    with torch.device("meta"):
        real = HunyuanVideoFramepackTransformer3DModel(
            has_image_proj=True, image_proj_dim=1152, has_clean_x_embedder=True
        )
    names = real.state_dict().keys()
    assert len(real.transformer_blocks) == 20
    assert len(real.single_transformer_blocks) == 40
    assert expected_names(names) == names


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_the_names_of_comfyui_are_told_apart_from_those_of_the_authors(prefix: str, tmp_path: Path) -> None:
    tensors = load_file(Path(DEMO.components["transformer"].location) / "diffusion_pytorch_model.safetensors")
    own = "checkpoint" if prefix else "original"
    for names, style in ((comfyui_names, "comfyui"), (original_names, own)):
        file = write_safetensors(tmp_path / "model.safetensors", with_prefix(prefix)(names(tensors)))
        facts = inspect_checkpoint(file, "transformer")
        assert (facts.model, facts.key_style, facts.problems) == ("FramePack", style, ())
        assert main(["inspect", str(file)]) == 0


def test_the_command_has_words_for_each_naming_scheme() -> None:
    assert {*get_args(KeyStyle)} == {*STYLE_WORDS}


def test_missing_and_foreign_tensors_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    gone, odd = "single_transformer_blocks.0.proj_mlp.bias", "extra.weight"
    save_file({name: value for name, value in tensors.items() if name != gone}, file)
    (problem,) = inspect_checkpoint(file).problems
    assert problem.startswith(f"{file.name} lacks 1 of {len(tensors)} tensors, such as {gone}; ")
    assert main(["inspect", str(file)]) == 2
    assert problem in capsys.readouterr().err
    save_file(tensors | {odd: torch.zeros(1)}, file)
    (problem,) = inspect_checkpoint(file, "transformer").problems
    assert f"contains 1 tensor foreign to the network, such as {odd};" in problem
    quantised = {name: value.to(torch.float8_e4m3fn) for name, value in tensors.items()}
    save_file(quantised | {"x_embedder.proj.scale_weight": torch.ones(1)}, file)
    facts = inspect_checkpoint(file, "transformer")
    assert (facts.problems, facts.quantised) == ((), "scaled fp8")
    save_file({f"diffusion_model.{name}": value for name, value in tensors.items()}, file)
    assert inspect_checkpoint(file, "transformer").problems == ()


@pytest.mark.parametrize("number", ["999999999", "x", "9" * 400, "²"])
def test_the_number_of_a_block_is_no_number_of_names(number: str) -> None:
    names = {"clean_x_embedder.proj.weight", f"transformer_blocks.{number}.attn.to_q.weight"}
    assert len(expected_names(names)) < 200


def test_folders_without_weights_or_with_several_files(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("nothing")
    assert inspect_checkpoint(folder).problems == ("mine contains no weights; choose another folder.",)
    (problem,) = inspect_checkpoint(folder, "tokenizer").problems
    assert problem == "mine contains no files of the tokenizer; choose another folder."
    save(folder / "a.safetensors", a=torch.zeros(1))
    assert inspect_checkpoint(folder).tensors == 1
    save(folder / "b.safetensors", a=torch.zeros(1))
    assert inspect_checkpoint(folder).problems == ("mine contains 2 files with weights; name one of them.",)
    (folder / "b.safetensors").rename(folder / "pytorch_model.bin")  # libraries read only the other one
    assert inspect_checkpoint(folder).problems == ()
    save(folder / "model.safetensors", a=torch.zeros(1), b=torch.zeros(1))
    assert inspect_checkpoint(folder).tensors == 2


def test_what_systems_keep_beside_files_is_as_if_absent(published: Path, tmp_path: Path) -> None:
    place = tmp_path / "transformer"
    shutil.copytree(part_folder(published, INFO, "transformer"), place)
    expected, files = inspect_checkpoint(place, "transformer"), weight_files(place)
    for file in [*place.iterdir()]:
        file.with_name(f"._{file.name}").write_bytes(b"\0\5\26\7")
    assert inspect_checkpoint(place, "transformer") == expected
    assert (weight_files(place), is_complete(place)) == (files, True)
    alone = tmp_path / "alone"
    alone.mkdir()
    file = save(alone / "a.safetensors", a=torch.zeros(1))
    save(alone / "._a.safetensors", a=torch.zeros(1))
    assert weights_at(alone) == file


def test_endings_may_have_capitals(published: Path, tmp_path: Path) -> None:
    place = tmp_path / "transformer"
    shutil.copytree(part_folder(published, INFO, "transformer"), place)
    expected = inspect_checkpoint(place, "transformer")
    index = next(place.glob("*.index.json"))
    index.write_text(index.read_text().replace(".safetensors", ".SAFETENSORS"))
    for file in place.glob("*.safetensors"):
        file.rename(file.with_suffix(".SAFETENSORS"))
    index = index.rename(index.with_name(index.name.replace(".safetensors.", ".Safetensors.")))
    facts = inspect_checkpoint(place, "transformer")
    assert (facts.tensors, facts.problems) == (expected.tensors, ())
    assert is_complete(place)
    assert len(weight_files(place)) > 1
    index.unlink()
    assert not is_complete(place)
    short = tmp_path / "x.SafeTensors"
    short.write_bytes(b"\1")
    assert inspect_checkpoint(short).problems[0].startswith("x.SafeTensors is incomplete")


@pytest.mark.parametrize(
    ("part", "place", "reported"),
    [
        ("vae", "transformer", "vae contains Hunyuan VAE, but the transformer must be FramePack or Helios"),
        ("image_encoder", "text_encoder_2", "image_encoder contains SigLIP, but the text_encoder_2 must be"),
        ("text_encoder", "tokenizer", "text_encoder contains weights, but must contain the files of the"),
        ("tokenizer", "transformer", "tokenizer contains tokenizer, but the transformer must be FramePack"),
    ],
)  # fmt: skip
def test_a_part_in_the_wrong_place(folder: Path, part: str, place: str, reported: str) -> None:
    assert inspect_checkpoint(folder / part, place).problems[0].startswith(reported)
    assert inspect_checkpoint(folder / part, part).problems == ()
    shutil.rmtree(folder / place)
    (folder / part).rename(folder / place)
    assert any(reported.replace(part, place, 1) in one for one in inspect_checkpoint(folder).problems)


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (POINTER.encode(), "model.safetensors is a Git LFS pointer to 10 GB of weights"),
        ((2).to_bytes(8, "little") + b"{}", "model.safetensors contains no tensor; give another file."),
    ],
)
def test_the_command_ends_with_2_and_one_sentence(
    tmp_path: Path, content: bytes, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    assert main(["inspect", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(reported)
    assert said.err.count("\n") == 1
    assert main(["inspect", str(file), "--json"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["problems"][0] + "\n" == said.err


def test_the_command_tells_what_is_there(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a-fp8.safetensors"
    save_file({"joint_blocks.0.context_block.x": torch.zeros(4, 4, dtype=torch.float8_e5m2)}, file)
    assert main(["inspect", str(file)]) == 0
    text = capsys.readouterr().out
    for words in ("safetensors", "model: SD3", "1 tensor,", "100.0% float8_e5m2", "quantised: fp8"):
        assert words in text
    assert main(["inspect", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dtypes"] == {"float8_e5m2": 1.0}
    assert main(["inspect", str(file), "--as", "vae"]) == 2
    said = capsys.readouterr()
    assert "model: SD3" in said.out
    assert "but the vae must be Hunyuan VAE" in said.err
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["inspect", str(file)]) == 2
    assert "is incomplete" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "no")]) == 2
    assert "cannot be read (No such file or directory)" in capsys.readouterr().err
    assert main(["inspect", str(folder)]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{part}: " in text for part in COMPONENTS)


@pytest.mark.parametrize(
    ("listed", "is_whole"),
    [
        ({"a": "model.safetensors"}, True),
        ({"a": "model.safetensors", "b": "other.safetensors"}, False),
        ({}, False),
        ({"a": 5}, False),
        ([], False),
        ("[" * 100_000, False),
        ("x" * (MAX_BYTES + 1), False),
    ],
)
def test_an_index_of_unknown_origin_tells_only_names(tmp_path: Path, listed: object, is_whole: bool) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    text = listed if isinstance(listed, str) else json.dumps({"metadata": {"x": "y"}, "weight_map": listed})
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    assert is_complete(tmp_path) is is_whole


def test_an_index_names_no_file_of_another_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.safetensors").write_bytes(b"x")
    index = tmp_path / "own" / "model.safetensors.index.json"
    index.parent.mkdir()
    for name in ("../secret.safetensors", str(tmp_path / "secret.safetensors"), ["x"]):
        index.write_text(json.dumps({"weight_map": {"a": name}}), encoding="utf-8")
        assert inspect_checkpoint(index).problems == (
            "model.safetensors.index.json is not an index of weights; download it again.",
        )
