"""Tests of the VAE engine on diffusers' own classes, both kinds: exactness, memory, precision, faults."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo, AutoencoderKLWan
from torch import Tensor, nn

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled, InputError
from diffusers_helper.memory.device import CudaDevice, Device
from diffusers_helper.miopen_fallback import initialize_miopen_fallback
from diffusers_helper.planning.out_of_memory import OutOfDeviceMemory
from diffusers_helper.planning.vae import VaePlan, VaeSettings, Video
from diffusers_helper.vae.borrowed import BorrowedVaeOwner
from diffusers_helper.vae.engine import VaeEngine, VideoPart

Make = Callable[[], nn.Module]


def hunyuan() -> nn.Module:
    torch.manual_seed(0)
    return AutoencoderKLHunyuanVideo(
        block_out_channels=(4, 8, 8, 8), layers_per_block=1, norm_num_groups=4
    ).eval()


def wan() -> nn.Module:
    torch.manual_seed(0)
    return AutoencoderKLWan(base_dim=4, num_res_blocks=1).eval()


def wan_of_patches() -> nn.Module:
    """Return a VAE with patches, as Wan 2.2 has."""
    torch.manual_seed(0)
    return AutoencoderKLWan(
        base_dim=4, decoder_base_dim=4, num_res_blocks=1, is_residual=True, in_channels=12,
        out_channels=12, patch_size=2, scale_factor_spatial=16,
    ).eval()  # fmt: skip


each_kind = pytest.mark.parametrize("make", [hunyuan, wan, wan_of_patches])


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def engine_of(vae: nn.Module, cap: int | None = None, **settings: Any) -> VaeEngine[BorrowedVaeOwner]:
    device = Device()
    device.adopt(vae)
    if cap is not None:
        device.limit(cap)
    return VaeEngine(BorrowedVaeOwner(vae, device, VaeSettings(**settings)))


def weights_of(vae: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in vae.parameters())


def decoded(vae: Any, latents: Tensor) -> Tensor:
    """Decode with the VAE's own method, in one pass over time."""
    with torch.inference_mode():
        vae.use_framewise_decoding = False
        return torch.cat([vae.decode(item, return_dict=False)[0] for item in latents.split(1)])


def test_windows_of_a_shape_have_the_peak_of_the_first_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted, latents, vae = list[int](), noise(1, 16, 13, 4, 6), hunyuan()
    dispatch = Device.__torch_dispatch__
    monkeypatch.setattr(
        Device, "__torch_dispatch__", lambda self, *call: counted.append(1) or dispatch(self, *call)
    )
    peaks, counts = list[int](), list[int]()
    for _ in range(2):
        engine = engine_of(vae, chunk=1)
        counted.clear()
        engine.decode(latents)
        peaks.append(engine.owner.device.peak_bytes())
        counts.append(len(counted))
        monkeypatch.setattr(Device, "repeater", CudaDevice.repeater)  # which counts every one
    assert peaks[0] == peaks[1]
    assert 2 * counts[0] < counts[1]


@each_kind
@pytest.mark.parametrize("count", [1, 2, pytest.param(5, marks=pytest.mark.slow)])
def test_decoding_gives_the_bits_of_the_vae(make: Make, count: int) -> None:
    vae, latents = make(), noise(2, 16, count, 4, 6)
    result = engine_of(vae).decode(latents)
    expected = decoded(vae, latents)
    assert expected.std() > 0.05
    assert result.shape[2] == 4 * count - 3
    assert torch.equal(result, expected)


@each_kind
@pytest.mark.parametrize("count", [1, 5])
def test_encoding_gives_the_bits_of_the_vae(make: Make, count: int) -> None:
    vae: Any = make()
    frames = noise(1, 3, 4 * count - 3, 32, 64).clamp(-1, 1)
    result = engine_of(vae).encode(frames)
    with torch.inference_mode():
        vae.use_framewise_encoding = False
        expected = vae.encode(frames).latent_dist.parameters
    assert result.shape[2] == count
    assert torch.equal(result, expected)


@pytest.mark.parametrize("chunk", [1, 2, 4, 8])
def test_a_stream_gives_the_same_bits_with_any_chunk(chunk: int) -> None:
    vae, latents, reported = wan(), noise(1, 16, 5, 4, 4), list[tuple[int, int]]()
    result = engine_of(vae, chunk=chunk).decode(latents, progress=lambda *count: reported.append(count))
    assert torch.equal(result, decoded(vae, latents))
    pieces = -(-5 // chunk)
    assert reported == [(piece, pieces) for piece in range(1, pieces + 1)]


@pytest.mark.slow
def test_a_stream_needs_no_more_memory_for_a_longer_video() -> None:
    peaks: list[int] = []
    for count in (4, 16):
        vae = wan()
        engine = engine_of(vae)
        engine.decode(noise(1, 16, count, 8, 8))
        peaks.append(engine.owner.device.peak_bytes() - weights_of(vae))
    latents = 16 * 12 * 8 * 8 * 4
    # The latents and their first layer's result wait on the device.
    assert peaks[1] - peaks[0] <= 2 * latents


@pytest.mark.slow
def test_windows_of_hunyuan_are_those_of_diffusers() -> None:
    vae: Any = hunyuan()
    latents = noise(1, 16, 11, 4, 4)
    with torch.inference_mode():
        expected = vae.decode(latents, return_dict=False)[0]
    plan = only(engine_of(vae), Video(11, 32, 32), "windows", 0)
    assert not plan.is_exact
    assert "approximate" in plan.reason
    least = engine_of(vae, cap=weights_of(vae) + int(plan.working_bytes / 0.8) + 1)
    assert torch.equal(least.decode(latents), expected)
    frames = noise(1, 3, 41, 32, 32).clamp(-1, 1)
    with torch.inference_mode():
        vae.use_framewise_encoding = True
        moments = vae.encode(frames).latent_dist.parameters
    plans = engine_of(vae).owner.plans("encode", Video(11, 32, 32))
    need = next(plan for plan in plans if plan.time == "windows").working_bytes
    result = engine_of(vae, cap=weights_of(vae) + int(need / 0.8) + 1).encode(frames)
    assert torch.equal(result, moments)


def only(engine: VaeEngine[BorrowedVaeOwner], video: Video, time: str, tile: int) -> VaePlan:
    plans = engine.owner.plans("decode", video)
    return next(plan for plan in plans if (plan.time, plan.tiles.side) == (time, tile))


@pytest.mark.slow
@each_kind
def test_every_plan_keeps_within_what_it_says(make: Make) -> None:
    vae = make()
    shrink = 16 if make is wan_of_patches else 8
    count = 6 if make is hunyuan else 4  # so many that windows of time take less memory than the whole
    latents = noise(1, 16, count, 96 // shrink, 160 // shrink)
    video, weights = Video(count, 96, 160), weights_of(vae)
    plans = engine_of(vae).owner.plans("decode", video)
    assert len(plans) >= 4
    assert [plan.tiles.side for plan in plans if plan.time == plans[0].time] == [0, 128, 96, 64]
    tried = 0
    for plan in plans:
        engine = engine_of(vae, cap=weights + plan.working_bytes, memory_threshold=1.0)
        if engine.owner.plans("decode", video)[0] == plan:
            assert engine.decode(latents).shape == (1, 3, 4 * count - 3, 96, 160)
            assert engine.owner.device.peak_bytes() <= weights + plan.working_bytes
            tried += 1
    assert tried >= 3  # tiles of 128 and of 96 have one size here


@each_kind
def test_where_nothing_fits_the_smallest_plan_is_tried(make: Make) -> None:
    vae = make()
    engine = engine_of(vae, cap=weights_of(vae) + 200_000)
    plans = engine_of(vae).owner.plans("decode", Video(6, 128, 128))
    with pytest.raises(OutOfDeviceMemory):
        engine.decode(noise(1, 16, 6, 16, 16))
    assert engine.owner.plan == min(plans, key=lambda plan: plan.working_bytes)
    assert engine.owner.device.allocated_bytes() == weights_of(vae)


def smooth(height: int, width: int, count: int = 1) -> Tensor:
    """Return latents whose values change slowly."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    planes = torch.stack([torch.sin(k + x * (1 + k % 3) / 2 + y) for k in range(16)])
    return planes[None, :, None].expand(1, 16, count, height, width) * 0.5


@each_kind
@pytest.mark.slow
def test_all_tiles_have_one_shape(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    vae: Any = make()
    shapes: set[tuple[int, ...]] = set()
    vae.decoder.register_forward_pre_hook(lambda _, args: shapes.add(tuple(args[0].shape[-2:])))
    shrink = 16 if make is wan_of_patches else 8
    engine_of(vae, tile_px=64).decode(noise(1, 16, 2, 208 // shrink, 144 // shrink))
    assert shapes == {(64 // shrink, 64 // shrink)}


@pytest.mark.slow
@each_kind
def test_a_shortage_is_answered_by_a_smaller_plan(make: Make) -> None:
    vae: Any = make()
    failures: list[int] = []

    def short(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        if args[0].shape[-1] > 96 // (16 if make is wan_of_patches else 8):
            failures.append(1)
            raise torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB")

    handle = vae.decoder.register_forward_pre_hook(short)
    shrink = 16 if make is wan_of_patches else 8
    latents = noise(1, 16, 2, 208 // shrink, 208 // shrink)
    engine = engine_of(vae)
    result = engine.decode(latents)
    assert len(failures) == 2  # in one piece, and in tiles of up to 192, as large as of 128
    assert torch.equal(engine.decode(latents), result)
    assert len(failures) == 2  # a plan that failed is not tried again
    handle.remove()
    assert torch.equal(result, engine_of(vae, tile_px=96).decode(latents))


def test_a_shortage_in_every_plan_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    vae, emptied = cast(Any, wan()), list[int]()
    monkeypatch.setattr(Device, "empty_cache", lambda self: emptied.append(1))

    def short(*_: Any) -> None:
        raise RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB")

    vae.decoder.register_forward_pre_hook(short)
    engine = engine_of(vae)
    with pytest.raises(OutOfDeviceMemory):
        engine.decode(noise(1, 16, 2, 16, 16))
    assert len(emptied) == engine.owner.failures > 1
    assert engine.owner.device.allocated_bytes() == weights_of(vae)


def state_of(vae: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in vae.state_dict().items()}


@each_kind
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_another_precision_leaves_the_vae_as_it_is(make: Make, precision: str) -> None:
    vae, latents = make(), noise(1, 16, 2, 4, 4)
    before, expected = state_of(vae), decoded(vae, latents)
    engine = engine_of(vae, precision=precision)
    result = engine.decode(latents)
    assert result.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert 0 < (result.float() - expected).abs().max() < 0.1 * expected.abs().max()
    assert all(torch.equal(value, before[name]) for name, value in vae.state_dict().items())
    assert engine.owner.device.allocated_bytes() == weights_of(vae)
    assert torch.equal(engine_of(vae).decode(latents), expected)


@pytest.mark.slow
def test_another_precision_takes_no_more_memory_than_it_says() -> None:
    vae = AutoencoderKLWan(base_dim=16, num_res_blocks=1).eval()
    engine = engine_of(vae, precision="bf16", tile_px=32, memory_threshold=1.0)
    need = engine.owner.plans("decode", Video(2, 64, 64))[0].working_bytes
    cap = weights_of(vae) + weights_of(vae) // 2 + need
    engine.owner.device.limit(cap)
    assert engine.decode(noise(1, 16, 2, 8, 8)).shape == (1, 3, 5, 64, 64)
    assert engine.owner.device.peak_bytes() <= cap


def test_what_overflows_is_done_again_in_fp32() -> None:
    vae: Any = wan()
    with torch.no_grad():
        # Its result exceeds 65504, the largest number of fp16.
        vae.decoder.conv_in.weight *= 3e4
    latents = 10 * noise(1, 16, 2, 4, 4)
    result = engine_of(vae, precision="fp16").decode(latents)
    assert result.dtype == torch.float32
    assert torch.equal(result, engine_of(vae).decode(latents))


def test_windows_that_parts_share_are_decoded_anew_in_a_wider_type() -> None:
    engine, latents = engine_of(hunyuan(), precision="bf16", chunk=3), noise(1, 16, 7, 4, 4)
    for widen in False, True:
        if widen:
            engine.owner.widen()
        result = engine.decode(latents, part=VideoPart(1, 0))
    assert result.dtype == torch.float32
    assert torch.equal(result, engine_of(hunyuan(), chunk=3).decode(latents))


def test_each_task_is_repeated_once_in_fp32() -> None:
    vae: Any = wan()
    engine, latents, calls = engine_of(vae), noise(1, 16, 1, 4, 4), list[int]()

    def every_second_fails(module: nn.Module, _: Any, frames: Tensor) -> Tensor:
        calls.append(1)
        return frames if len(calls) % 2 == 0 else frames * torch.nan

    vae.decoder.register_forward_hook(every_second_fails)
    for _ in range(2):
        assert engine.decode(latents).isfinite().all()
    assert len(calls) == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_normalisation_works_in_fp32_inside(dtype: torch.dtype) -> None:
    """Check that torch's kernel and diffusers' module compute in fp32, as decoding in fp16 requires."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import WanRMS_norm

    values = (200 * noise(1, 16, 3, 8, 8)).to(dtype)  # The sum of their squares exceeds the range of fp16.
    for norm in (nn.GroupNorm(4, 16), WanRMS_norm(16, images=False)):
        with torch.no_grad():
            exact = norm.float()(values.float())
            narrow = norm.to(dtype)(values)
        rounding = torch.finfo(dtype).eps * exact.abs().max()
        assert (narrow.float() - exact).abs().max() <= 2 * rounding


def test_the_allocator_is_asked_as_often_as_is_wished(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Device, "empty_cache", lambda self: asked.append(1))
    latents = noise(1, 16, 6, 4, 4)
    engine_of(wan()).decode(latents)
    assert asked == []
    engine_of(wan(), cleanup_frequency=2).decode(latents)
    assert len(asked) == 3


def test_a_cancel_ends_it_within_a_piece_and_leaves_nothing() -> None:
    vae = wan()
    engine, cancel, reported = engine_of(vae), CancelToken(), list[int]()

    def progress(done: int, total: int) -> None:
        reported.append(done)
        if done == 2:
            cancel.cancel()

    with pytest.raises(GenerationCancelled):
        engine.decode(noise(1, 16, 6, 4, 4), progress=progress, cancel=cancel)
    assert reported == [1, 2]
    assert engine.owner.device.allocated_bytes() == weights_of(vae)
    # The frames that the stream had cached do not disturb the next stream.
    latents = noise(1, 16, 3, 4, 4)
    assert torch.equal(engine.decode(latents), decoded(vae, latents))


def test_convolutions_of_wan_take_the_ladder() -> None:
    vae, latents = wan(), noise(1, 16, 2, 4, 4)
    expected = decoded(vae, latents)
    with initialize_miopen_fallback(rung="taps").install(vae) as handler:
        result = engine_of(vae).decode(latents)
        assert handler.ladder.successes["taps"] > 20
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-4)


def test_auto_begins_with_the_largest_piece_that_is_no_trouble() -> None:
    plans = engine_of(hunyuan(), largest_px=128).owner.plans("decode", Video(2, 256, 192))
    assert [plan.tiles.side for plan in plans] == [128, 96, 64]


def test_frames_that_the_vae_does_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match=r"4 frames of 64x60; expected 4 n \+ 1 frames and sides .* of 8"):
        engine_of(wan()).encode(noise(1, 3, 4, 60, 64))


def test_another_kind_of_vae_is_refused() -> None:
    with pytest.raises(InputError, match="The VAE is Linear; expected AutoencoderKLHunyuanVideo, "):
        engine_of(nn.Linear(1, 1))
