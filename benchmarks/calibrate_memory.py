"""Estimated and measured working sets, to which the factors of `planning/estimates.py` were fitted.

    python benchmarks/calibrate_memory.py                      # random networks over the grid, on the CPU
    python benchmarks/calibrate_memory.py --model demo --save  # a real job; this machine's own factors

For the grid, the accounting device counts live tensors, so no GPU is needed and the figures are the same
everywhere. With --model, one job of one section and four steps runs on the device that the engine would use;
--save writes the factors of its stages to the file that every later plan reads (docs/amd-memory.md).
"""

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from diffusers import AutoencoderKLHunyuanVideo, AutoencoderKLWan, HunyuanVideoFramepackTransformer3DModel
from diffusers.utils import logging as diffusers_logging
from PIL import Image
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    LlamaConfig,
    LlamaModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from app.machine import this_local, this_machine  # noqa: E402
from benchmarks.rows import Rows  # noqa: E402
from diffusers_helper.families.packing import (  # noqa: E402
    DEFAULT_CHUNK,
    LATENT_WINDOW_SIZE,
    plan_sections,
)
from diffusers_helper.framepack.work import (  # noqa: E402  # noqa: E402
    FramePackCondition,
    FramePackDenoiser,
    TextCondition,
    encode_states,
)
from diffusers_helper.loading.loaders import load_models  # noqa: E402
from diffusers_helper.loading.quick_vae import speed_up  # noqa: E402
from diffusers_helper.memory.accounting import to_host  # noqa: E402
from diffusers_helper.memory.device import Device  # noqa: E402
from diffusers_helper.models.registry import find_model  # noqa: E402
from diffusers_helper.models.sizes import Network, Weights  # noqa: E402
from diffusers_helper.pipeline import generate  # noqa: E402
from diffusers_helper.planning import estimates  # noqa: E402
from diffusers_helper.planning.backend import Backend  # noqa: E402
from diffusers_helper.planning.vae import Tiles  # noqa: E402
from diffusers_helper.planning.vae_estimates import decode_bytes, encode_bytes  # noqa: E402
from diffusers_helper.request import GenerationRequest  # noqa: E402
from diffusers_helper.sampling.guidance import CleanLatents  # noqa: E402
from diffusers_helper.vae.families import vae_family  # noqa: E402
from diffusers_helper.vae.passes import Grid, Pieces, decode_pass, encode_pass  # noqa: E402

BF16, FP32 = torch.bfloat16, torch.float32
_AXES = {32: (8, 12, 12), 44: (12, 16, 16), 64: (16, 24, 24), 128: (16, 56, 56)}


@dataclass(frozen=True)
class Result:
    """The estimated and the measured working set of one case of the grid, in bytes."""

    stage: str
    case: str
    estimated: int
    measured: int

    @property
    def ratio(self) -> float:
        return self.estimated / self.measured


def measure(module: nn.Module, work: Callable[[], Any]) -> int:
    """Return the peak in bytes of the device's tensors while `work` runs, without the module's weights."""
    device = Device()
    device.adopt(module)
    with torch.inference_mode(), device:
        weights = device.allocated_bytes()
        device.reset_peak()
        work()
        return device.peak_bytes() - weights


def network(module: nn.Module, config: Mapping[str, Any], dtype: torch.dtype) -> Network:
    """Return the description of a module on which the estimates are based."""
    total = sum(tensor.nbytes for tensor in module.parameters())
    return Network(Weights("", total), config, dtype.itemsize, total)


def transformer(
    heads: int, head_dim: int, height: int, width: int, *, dtype: torch.dtype, text: int, vision: int
) -> Result:
    """Measure one forward pass of a transformer with one block of each kind."""
    module = HunyuanVideoFramepackTransformer3DModel(
        num_attention_heads=heads, attention_head_dim=head_dim, rope_axes_dim=_AXES[head_dim], num_layers=1,
        num_single_layers=1, num_refiner_layers=1, text_embed_dim=64, pooled_projection_dim=64,
        image_proj_dim=64, has_image_proj=True, has_clean_x_embedder=True,
    ).to(dtype).eval()  # fmt: skip
    section = plan_sections(2.4)[0]

    def latents(frames: int) -> Tensor:
        return torch.randn(1, 16, frames, height // 8, width // 8)

    def work() -> None:
        words = TextCondition(torch.randn(1, text, 64, dtype=dtype), torch.randn(1, 64, dtype=dtype))
        condition = FramePackCondition(
            positive=words, negative=None, image_embeds=torch.randn(1, vision, 64, dtype=dtype),
            guidance=10.0, cfg=1.0, cfg_rescale=0.0,
        )  # fmt: skip
        context = CleanLatents(section.indices, latents(1), latents(1), latents(2), latents(16))
        FramePackDenoiser(module, condition, context)(latents(LATENT_WINDOW_SIZE), torch.tensor(0.9))

    known = network(module, module.config, dtype)
    estimated = estimates.transformer_bytes(known, height, width, text=text, vision=vision, backend=Backend())
    case = f"{heads}x{head_dim} {width}x{height} {text}+{vision} {dtype}"
    return Result("sample", case, estimated, measure(module, work))


class _Tokens(dict[str, Tensor]):
    """A stand-in for the result of a tokenizer."""

    __getattr__ = dict.__getitem__

    def to(self, device: torch.device) -> "_Tokens":
        return self


def llama(layers: int, width: int, inner: int, tokens: int, dtype: torch.dtype) -> Result:
    """Measure an encoding by the large text encoder."""
    config = LlamaConfig(
        vocab_size=32, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4 if layers == 3 else 2, max_position_embeddings=512,
    )  # fmt: skip
    module = LlamaModel(config).to(dtype).eval()

    def tokenizer(*_: Any, **__: Any) -> "_Tokens":
        ones = torch.ones(1, tokens, dtype=torch.int64)
        return _Tokens(input_ids=ones, attention_mask=ones.clone())

    measured = measure(module, lambda: encode_states(module, cast(Any, tokenizer), ""))
    estimated = estimates.llama_bytes(network(module, config.to_dict(), dtype), tokens)
    return Result("text", f"{layers}x{width}/{inner} {tokens} {dtype}", estimated, measured)


def clip(width: int, inner: int, dtype: torch.dtype) -> Result:
    """Measure an encoding by the small text encoder."""
    config = CLIPTextConfig(
        vocab_size=32, hidden_size=width, intermediate_size=inner, num_hidden_layers=2, num_attention_heads=4
    )
    module = CLIPTextModel(config).to(dtype).eval()
    measured = measure(module, lambda: module(torch.ones(1, 77, dtype=torch.int64)).pooler_output)
    estimated = estimates.encoder_bytes(network(module, config.to_dict(), dtype), 77)
    return Result("text_2", f"{width}/{inner} {dtype}", estimated, measured)


def siglip(width: int, inner: int, side: int, patch: int, dtype: torch.dtype) -> Result:
    """Measure an encoding by the image encoder."""
    config = SiglipVisionConfig(
        hidden_size=width, intermediate_size=inner, num_hidden_layers=2, num_attention_heads=4,
        image_size=side, patch_size=patch,
    )  # fmt: skip
    module = SiglipVisionModel(config).to(dtype).eval()
    pixels = torch.randn(1, 3, side, side)  # stays on the host
    measured = measure(module, lambda: module(pixels.to(dtype)).last_hidden_state)
    known = network(module, config.to_dict(), dtype)
    estimated = estimates.vision_bytes(known)
    return Result("vision", f"{width}/{inner} {side}/{patch} {dtype}", estimated, measured)


def vae(width: int, layers: int, height: int, side: int, tile: int, dtype: torch.dtype) -> Iterator[Result]:
    """Measure a decode in one window of time and the encoding of a picture, both in tiles."""
    channels = (width, 2 * width, 4 * width, 4 * width)
    module = AutoencoderKLHunyuanVideo(
        block_out_channels=channels, layers_per_block=layers, norm_num_groups=8
    ).to(dtype).eval()  # fmt: skip
    tiles = Tiles.of(tile)
    grid = Grid.cut((height // 8, side // 8), tiles, 8)
    piece = 8 * grid.rows.tile_size, 8 * grid.columns.tile_size
    speed_up(module)
    known = network(module, module.config, dtype)
    case = f"{width} x{layers} {side}x{height} tile {tile} {dtype}"
    family = vae_family(module)
    shape = (1, 16, DEFAULT_CHUNK + 2, height // 8, side // 8)
    decoded = measure(module, lambda: decode_pass(family, torch.randn(shape), tiles, Pieces()))
    estimated = decode_bytes(known, 5, *piece, backend=Backend())
    yield Result("decode", case, estimated, decoded)
    frames = torch.zeros(1, 3, 1, height, side)
    encoded = measure(module, lambda: encode_pass(family, frames, tiles, Pieces()))
    estimated = encode_bytes(known, 1, *piece, backend=Backend())
    yield Result("vae_encode", case, estimated, encoded)


def video(module: nn.Module, latents: int, height: int, width: int, dtype: torch.dtype) -> Iterator[Result]:
    """Measure the decode and the encoding of a video in one pass, or as a stream if the VAE has one."""
    module = nn.Module.to(module, dtype).eval()
    speed_up(module)
    family, known = vae_family(module), network(module, cast(Any, module).config, dtype)
    case = f"{type(module).__name__} {latents}x{height}x{width} {dtype}"
    at_once = 1 if family.has_stream else latents
    source = torch.randn(
        1, 16, latents, height // family.spatial_compression, width // family.spatial_compression, dtype=dtype
    )
    decoded = measure(module, lambda: [to_host(part) for part in family.decode(source)])
    estimated = decode_bytes(known, at_once, height, width, backend=Backend(), all_latents=latents)
    yield Result("decode", case, estimated, decoded)
    # These are in fp64, so that they are copied as in a transfer to a GPU.
    frames = torch.randn(1, 3, 4 * latents - 3, height, width, dtype=torch.float64)
    encoded = measure(module, lambda: to_host(family.encode(frames)))
    estimated = encode_bytes(known, at_once, height, width, backend=Backend(), all_latents=latents)
    yield Result("vae_encode", case, estimated, encoded)


def videos(*dtypes: torch.dtype) -> Iterator[Result]:
    """Measure videos of several shapes; attention's mask is the largest tensor of the first."""
    for dtype in dtypes:
        for width, latents, side in ((8, 9, 192), (16, 2, 96)):
            channels = (width, 2 * width, 4 * width, 4 * width)
            hunyuan = AutoencoderKLHunyuanVideo(
                block_out_channels=channels, layers_per_block=1, norm_num_groups=8
            )
            yield from video(hunyuan, latents, side, side, dtype)
        for width, layers in ((8, 2), (16, 2), (32, 1)):
            yield from video(AutoencoderKLWan(base_dim=width, num_res_blocks=layers), 4, 64, 128, dtype)
            of_patches = AutoencoderKLWan(
                base_dim=width, decoder_base_dim=width, num_res_blocks=layers, is_residual=True,
                in_channels=12, out_channels=12, patch_size=2, scale_factor_spatial=16,
            )  # fmt: skip
            yield from video(of_patches, 4, 64, 128, dtype)


def grid() -> Iterator[Result]:
    """Yield the results of all networks of random weights."""
    for heads, head_dim, height, width in (
        (4, 44, 128, 128), (4, 44, 96, 176), (4, 64, 128, 128), (8, 64, 192, 192), (8, 32, 176, 96),
        (4, 128, 128, 128),
    ):  # fmt: skip
        for dtype in (BF16, FP32):
            yield transformer(heads, head_dim, height, width, dtype=dtype, text=30, vision=4)
    yield transformer(8, 64, 128, 128, dtype=BF16, text=256, vision=729)
    for layers, width, inner in ((3, 64, 128), (3, 128, 512), (6, 256, 768)):
        for tokens in (108, 351):
            for dtype in (BF16, FP32):
                yield llama(layers, width, inner, tokens, dtype)
    for width, inner in ((64, 256), (128, 256), (256, 1024)):
        for dtype in (BF16, FP32):
            yield clip(width, inner, dtype)
            yield siglip(width, inner, 32, 16, dtype)
            yield siglip(width, inner, 112, 14, dtype)
    for width, layers, height, side, tile in (
        (16, 1, 128, 128, 256), (16, 1, 96, 176, 256), (16, 1, 96, 176, 96), (16, 2, 128, 128, 64),
        (32, 2, 128, 128, 128), (32, 2, 128, 192, 96),
    ):  # fmt: skip
        for dtype in (BF16, FP32):
            yield from vae(width, layers, height, side, tile, dtype)
    yield from videos(BF16, FP32)


def calibrate(model: str, prompt: str) -> dict[str, float]:
    """Return the ratios of measured to estimated working sets by stage, plus 5 % for other prompts."""
    info = find_model(model, allow_folder=True)
    factors: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder, "picture.png")
        Image.new("RGB", (info.side, info.side), (120, 130, 140)).save(picture)
        request = GenerationRequest(
            image=str(picture), prompt=prompt, seconds=1.0, steps=4, model=model, mode=info.modes[0]
        )
        generate(request, load_models(info), folder=Path(folder, "job"))
        record = json.loads(Path(folder, "job", "memory.json").read_text(encoding="utf-8"))
    for stage in record["stages"]:
        stay = stage["resident_bytes"]
        working = max(1, stage["predicted_bytes"] - stay)
        factor = max(0.5, 1.05 * (stage["measured_bytes"] - stay) / working)
        factors[stage["stage"]] = max(factors.get(stage["stage"], 0.0), math.ceil(factor * 1000) / 1000)
    return factors


def main() -> int:
    """Print a line for each case of the grid, or the factors of a real job."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", metavar="NAME|DIR", help="run a job of this model instead of the grid")
    parser.add_argument("--prompt", default="the red ball moves right", help="prompt of that job")
    parser.add_argument("--save", action="store_true", help="keep the factors for the plans on this machine")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    arguments = parser.parse_args()
    diffusers_logging.set_verbosity_error()
    if arguments.model:
        factors = calibrate(arguments.model, arguments.prompt)
        sys.stdout.write(json.dumps(factors) + "\n")
        if arguments.save:
            machine = this_machine(os.environ)
            this_local(os.environ).calibration.write(machine.card, factors)
        return 0
    with Rows(__file__) as rows:
        for result in grid():
            rows.add(asdict(result))
            sizes = f"{result.estimated:>12}{result.measured:>12}{result.ratio:>7.3f}"
            line = f"{result.stage:<11}{result.case:<48}{sizes}"
            sys.stdout.write(f"{json.dumps(rows[-1]) if arguments.json else line}\n")
            sys.stdout.flush()
    return rows.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
