"""Tests of files with LoRAs: what is refused, and what their metadata say."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from safetensors.torch import save_file
from torch import nn

from diffusers_helper.errors import InputError
from diffusers_helper.files import weight_names
from diffusers_helper.lora_choice import (
    Choice,
    choices_of,
    lora_folder,
    lora_summary,
    with_absolute_paths,
    with_paths,
    with_relative_names,
)
from diffusers_helper.request import GenerationRequest
from diffusers_helper.setting import text_of
from diffusers_helper.weights.lora_files import LoraFile, count_keys, loras_of, read_lora
from tests.support.loras import HUNYUAN, comfyui_name, numbered, write_lora

PAIR = {
    "transformer_blocks.0.attn.to_q.lora_A.weight": torch.zeros(2, 32),
    "transformer_blocks.0.attn.to_q.lora_B.weight": torch.zeros(32, 2),
}
SUM = "ab" * 32


@pytest.fixture(scope="module")
def network() -> nn.Module:
    from tests.support.tiny_model import tiny_transformer

    return tiny_transformer()


def sizes_of(network: nn.Module) -> dict[str, tuple[int, int]]:
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear)}
    return {name: (layer.out_features, layer.in_features) for name, layer in layers.items()}


def refusal_of(file: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        read_lora(file)
    assert caught.value.setting == "lora"
    assert caught.value.message.startswith(f"LoRA {file.name} ")
    assert caught.value.message.count(". ") == 0
    return caught.value


def attention_lora(doubles: int, singles: int, name: str) -> dict[str, torch.Tensor]:
    """Return a LoRA of the full width for the attention in this many blocks of each kind."""
    names = {
        "diffusers": ("transformer_blocks.{}.attn.to_q", "single_transformer_blocks.{}.attn.to_q"),
        "kohya": ("lora_unet_double_blocks_{}_img_attn_qkv", "lora_unet_single_blocks_{}_linear1"),
        "dots": ("diffusion_model.double_blocks.{}.img_attn.qkv", "diffusion_model.single_blocks.{}.linear1"),
    }[name]
    outputs = (3072, 3072) if name == "diffusers" else (9216, 21504)
    found: dict[str, torch.Tensor] = {}
    for start, count, width in zip(names, (doubles, singles), outputs, strict=True):
        for number in range(count):
            found[f"{start.format(number)}.lora_down.weight"] = torch.zeros(1, 3072)
            found[f"{start.format(number)}.lora_up.weight"] = torch.zeros(width, 1)
    return found


@pytest.mark.parametrize("name", ["diffusers", "kohya", "dots"])
def test_a_lora_for_flux_is_refused_by_the_number_of_its_blocks(name: str, tmp_path: Path) -> None:
    file = tmp_path / "style.safetensors"
    for doubles, singles in ((19, 38), (19, 0), (0, 38)):
        save_file(attention_lora(doubles, singles, name), file)
        assert "was made for Flux" in refusal_of(file).message
    for doubles, singles in ((20, 40), (20, 0), (0, 40), (19, 40), (4, 38)):
        save_file(attention_lora(doubles, singles, name), file)
        assert read_lora(file).pairs
    save_file(attention_lora(19, 38, name), file, {"modelspec.architecture": "hunyuan-video/lora"})
    assert len(read_lora(file).pairs) == 57


def whole_lora(
    name_of: Callable[[str], str], blocks: tuple[int, int] = (20, 40), *, refiner: bool = True
) -> dict[str, torch.Tensor]:
    """Return a LoRA of rank 1 for the layers of HunyuanVideo in this many blocks of each kind."""
    found: dict[str, torch.Tensor] = {}
    counts: dict[str, int] = {"double_blocks": blocks[0], "single_blocks": blocks[1]}
    for pattern, (outputs, inputs) in HUNYUAN.items():
        group = pattern.split(".")[0]
        if group in counts or refiner:
            for name in numbered(pattern)[: counts.get(group)]:
                found[f"{name_of(name)}.lora_down.weight"] = torch.zeros(1, inputs, dtype=torch.bfloat16)
                found[f"{name_of(name)}.lora_up.weight"] = torch.zeros(outputs, 1, dtype=torch.bfloat16)
    return found


def dotted(name: str) -> str:
    return f"diffusion_model.{comfyui_name(name)}"


def underscored(name: str) -> str:
    return f"lora_unet_{comfyui_name(name).replace('.', '_')}"


@pytest.mark.parametrize("name_of", [dotted, underscored])
def test_all_keys_of_a_lora_with_comfyuis_names_are_applied(
    name_of: Callable[[str], str], tmp_path: Path
) -> None:
    with torch.device("meta"):
        full = HunyuanVideoFramepackTransformer3DModel(has_image_proj=True, has_clean_x_embedder=True)
    sizes = sizes_of(full)
    file = tmp_path / "style.safetensors"
    save_file(whole_lora(name_of), file)
    lora = read_lora(file)
    assert lora.keys == 2 * (20 * 10 + 40 * 3 + 2 * 5 + 5 + 6 + 2)
    assert count_keys(lora.fitting(sizes)) == lora.keys


@pytest.mark.parametrize("name_of", [dotted, underscored])
def test_names_of_flux_need_a_layer_that_flux_lacks(name_of: Callable[[str], str], tmp_path: Path) -> None:
    file = tmp_path / "style.safetensors"
    save_file(whole_lora(name_of, (3, 5), refiner=False), file)
    assert "may be for Flux" in refusal_of(file).message
    save_file(whole_lora(name_of, (3, 5), refiner=False), file, {"ss_base_model_version": "hunyuan_video"})
    assert read_lora(file).pairs
    for blocks, refiner in (((3, 5), True), ((20, 5), False), ((3, 40), False)):
        save_file(whole_lora(name_of, blocks, refiner=refiner), file)
        lora = read_lora(file)
        assert count_keys(lora.pairs) == lora.keys


def test_a_part_of_the_keys_is_not_enough(network: nn.Module, tmp_path: Path) -> None:
    file = tmp_path / "style.safetensors"
    sizes = sizes_of(network)
    write_lora(file, network)
    keys = read_lora(file).keys
    for foreign, fits in ((keys // 9, True), (keys // 9 + 2, False)):
        others = {f"lora_te_{number}.lora_down.weight": torch.zeros(1, 1) for number in range(foreign)}
        write_lora(file, network, more=others)
        lora = read_lora(file)
        assert lora.keys == keys + foreign
        if fits:
            assert len(lora.fitting(sizes)) == keys // 2
        else:
            with pytest.raises(InputError, match=f"fits this model with {keys} of its {lora.keys} keys"):
                lora.fitting(sizes)
    with pytest.raises(InputError, match=r"0 of its \d+ keys; expected at least 90%"):
        lora.fitting({name: (one + 1, other) for name, (one, other) in sizes.items()})


def test_a_file_that_another_of_the_same_size_has_replaced_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "style.safetensors"
    for number, words in enumerate(("a red ball", "a big boat", "a red ball")):
        save_file(PAIR, file, {"trigger_words": words})
        os.utime(file, ns=(0, number))
        assert read_lora(file).triggers == (words,)


def test_the_text_of_the_setting() -> None:
    text = f"\n a b.safetensors \n/x/c.safetensors:-.5\n d:1e-1 sha256:{SUM}\n"
    assert choices_of(text) == (
        Choice("a b.safetensors"), Choice("/x/c.safetensors", -0.5), Choice("d", 0.1, SUM),
    )  # fmt: skip
    normal = f"a b.safetensors:1\n/x/c.safetensors:-0.5\nd:0.1 sha256:{SUM}"
    assert text_of(choices_of(text)) == normal == text_of(choices_of(normal))
    assert GenerationRequest(image="x", lora=text).lora == normal
    assert lora_summary(normal) == "a b.safetensors (1), c.safetensors (-0.5), d (0.1)"
    assert choices_of("") == ()
    assert loras_of("nowhere.safetensors:0") == ()


def test_endings_may_have_capitals_and_folders_may_be_links(tmp_path: Path) -> None:
    folder, far = tmp_path / "mine", tmp_path / "far"
    for file in folder / "Film.SAFETENSORS", far / "z.SafeTensors":
        file.parent.mkdir()
        file.touch()
    (folder / "linked").symlink_to(far)
    (far / "back").symlink_to(folder)
    assert weight_names(folder) == ("Film.SAFETENSORS", "linked/z.SafeTensors")
    found = with_paths("Film\nz.SafeTensors", folder)
    assert found == f"{folder}/Film.SAFETENSORS:1\n{folder}/linked/z.SafeTensors:1"


def test_names_stand_for_files_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    names = ("b.safetensors", "other/c.safetensors", "styles/A.safetensors", "styles/c.safetensors")
    for name in (*names, "x.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    hidden = (
        ".git/d", ".Trash-1000/d", "__MACOSX/d", ".AppleDouble/b", "@eaDir/d", "styles/._A", "._b", ".d",
    )  # fmt: skip
    for name in hidden:  # as if absent
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.safetensors").touch()
    assert weight_names(folder) == names
    assert weight_names(tmp_path / "none") == ()
    found = with_paths("b:0.5\nA.safetensors\nother/c.safetensors", folder)
    relative = ("b.safetensors:0.5", "styles/A.safetensors:1", "other/c.safetensors:1")
    assert found.splitlines() == [f"{folder}/{line}" for line in relative]
    assert with_relative_names(found, folder).splitlines() == [*relative]
    assert with_relative_names("/elsewhere/z.safetensors", folder) == "z.safetensors:1"
    with pytest.raises(InputError, match="lies in several folders"):
        with_paths("c", folder)
    outside = tmp_path / "secret.safetensors"
    outside.touch()
    foreign = "../secret.safetensors", "styles/../../secret", f"{folder}/b.safetensors", "x.txt"
    for name in (str(outside), *foreign):
        with pytest.raises(InputError, match="is not in the folder for LoRAs"):
            with_paths(name, folder)
    assert with_absolute_paths(f"{outside}\nb", folder) == f"{outside}:1\n{folder}/b.safetensors:1"


def test_the_folder_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert lora_folder({}) == tmp_path / "loras"
    assert lora_folder({"LONGTAKE_LORAS": "/srv/loras"}) == Path("/srv/loras")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("style", "both"), ("highlight", "both"), ("slow_flow", "both"), ("lowres", "both"),
        ("style_high_noise", "high"), ("Style-HIGH", "high"), ("low_poly_high_noise", "high"),
        ("style_low_noise", "low"), ("high_quality_low_noise", "low"), ("wan2.2-low4steps", "low"),
    ],
)  # fmt: skip
def test_a_lora_for_high_or_low_noise_is_known_by_the_last_such_word_of_its_name(
    name: str, expected: str
) -> None:
    lora = LoraFile(Path(f"{name}.safetensors"), (), 0, ())
    suited = {"high": lora.suits("transformer"), "low": lora.suits("transformer_2")}
    assert suited == {level: expected in (level, "both") for level in suited}
