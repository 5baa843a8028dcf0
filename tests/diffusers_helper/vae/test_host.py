"""Tests of ComfyUI's own object through the engine, with its VAEs of pictures; and of guests in general."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled, InputError
from diffusers_helper.memory.device import CudaDevice, Device, open_device
from diffusers_helper.planning.backend import Backend
from diffusers_helper.planning.vae import VaeSettings, Video
from diffusers_helper.vae.borrowed import BorrowedVaeOwner, ComfyVae, unsupported
from diffusers_helper.vae.engine import VaeEngine
from diffusers_helper.vae.families import HunyuanFamily, vae_family
from tests.support.comfy_double import VAE, PictureVae, WanVAE


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def engine_of(vae: nn.Module, **settings: Any) -> VaeEngine[BorrowedVaeOwner]:
    device = Device()
    device.adopt(vae)
    return VaeEngine(BorrowedVaeOwner(vae, device, VaeSettings(**settings)))


def test_pictures_of_a_batch_are_decoded_together_where_memory_allows() -> None:
    host, latents, reported = VAE(PictureVae()), noise(4, 16, 4, 4), list[int]()
    host.memory_used_decode = lambda shape, dtype: 2**20
    vae = ComfyVae(host)
    engine = engine_of(vae, batch=True, memory_threshold=1.0)
    need = engine.owner.plans("decode", Video(1, 32, 32))[0].working_bytes
    engine.owner.device.limit(engine.owner.device.allocated_bytes() + 2 * need)
    result = engine.decode(latents, progress=lambda done, total: reported.append(total))
    assert reported == [2, 2]
    torch.testing.assert_close(result, engine_of(vae).decode(latents), rtol=0, atol=1e-4)


@pytest.mark.parametrize("has_patches", [False, True])
def test_wan_of_comfyui_is_streamed_with_its_own_bits(has_patches: bool) -> None:
    vae = VAE(WanVAE(has_patches=has_patches), shrink=16 if has_patches else 8)
    latents, reported = noise(2, 16, 3, 4, 4), list[int]()
    engine = engine_of(ComfyVae(vae))
    result = engine.decode(latents, progress=lambda done, total: reported.append(total))
    with torch.inference_mode():
        expected = torch.cat([vae.first_stage_model.decode(item) for item in latents.split(1)])
    assert result.shape[2] == 9
    assert torch.equal(result, expected)
    assert set(reported) == {6}  # three latent frames of two videos
    assert engine.owner.plans("decode", Video(3, 32, 32))[0].is_exact


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_wan_of_newer_versions_gets_its_latent_frames_in_pairs(count: int) -> None:
    vae, latents, reported, sizes = (
        VAE(WanVAE(has_pairs=True)), noise(1, 16, count, 4, 4), list[int](), list[int](),
    )  # fmt: skip
    decoder = vae.first_stage_model.decoder
    with torch.inference_mode():
        expected = vae.first_stage_model.decode(latents)
    handle = decoder.register_forward_pre_hook(lambda _, call: sizes.append(call[0].shape[2]))
    result = engine_of(ComfyVae(vae)).decode(latents, progress=lambda done, total: reported.append(done))
    handle.remove()
    assert torch.equal(result, expected)
    assert sizes == {1: [1], 2: [1, 1], 3: [1, 2], 4: [1, 2, 1]}[count]
    assert reported == list(range(1, count + 1))


def test_pictures_of_comfyui_have_their_own_bits() -> None:
    vae, latents = VAE(PictureVae()), noise(1, 16, 4, 6)
    with torch.inference_mode():
        expected = vae.first_stage_model.decode(latents)
        moments = vae.first_stage_model.encode(expected)
    engine = engine_of(ComfyVae(vae))
    assert torch.equal(engine.decode(latents), expected)
    assert torch.equal(engine.encode(expected), moments)


def test_another_precision_leaves_comfyuis_vae_as_it_is() -> None:
    vae, latents = VAE(WanVAE()), noise(1, 16, 2, 4, 4)
    before = {name: value.clone() for name, value in vae.first_stage_model.state_dict().items()}
    result = engine_of(ComfyVae(vae), precision="bf16").decode(latents)
    assert result.dtype == torch.bfloat16
    state = vae.first_stage_model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in before.items())


class Casting(nn.Module):
    """A network that converts its weights when it runs, as with dynamic memory, and cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Conv2d(16, 3, 1, dtype=torch.float16)
        self.types: list[torch.dtype] = []

    def __deepcopy__(self, memo: Any) -> Any:
        pytest.fail("a copy would free ComfyUI's buffers twice")

    def decode(self, z: Tensor) -> Tensor:
        self.types.append(z.dtype)
        weight, bias = self.decoder.weight.to(z.dtype), cast(Tensor, self.decoder.bias).to(z.dtype)
        return nn.functional.conv2d(z, weight, bias).repeat_interleave(8, -1).repeat_interleave(8, -2)


@pytest.mark.parametrize(("precision", "dtype"), [("auto", torch.bfloat16), ("fp32", torch.float32)])
def test_a_network_that_casts_is_used_in_each_precision_without_a_copy(
    precision: str, dtype: torch.dtype
) -> None:
    network = Casting()
    vae = VAE(network)
    vae.vae_dtype, vae.patcher = torch.bfloat16, SimpleNamespace(is_dynamic=lambda: True)
    host, latents = ComfyVae(vae), noise(1, 16, 4, 6)
    with torch.inference_mode():
        expected = network.decode(latents.to(dtype))
    assert torch.equal(engine_of(host, precision=precision).decode(latents), expected)
    assert network.types == [dtype, dtype]
    assert (host.requested_dtype, network.decoder.weight.dtype) == (torch.bfloat16, torch.float16)


def test_a_cancel_ends_wan_of_comfyui_within_one_latent_frame() -> None:
    vae, cancel = VAE(WanVAE()), CancelToken()
    called: list[int] = []

    def stop(*_: Any) -> None:
        called.append(1)
        cancel.cancel()

    decoder = vae.first_stage_model.decoder.inner
    handles = [decoder.conv_in.register_forward_hook(stop), decoder.conv_out.register_forward_hook(stop)]
    with pytest.raises(GenerationCancelled):
        engine_of(ComfyVae(vae)).decode(noise(1, 16, 3, 4, 4), cancel=cancel)
    assert called == [1]  # the last convolution of the frame was not reached
    for handle in handles:
        handle.remove()


def test_kinds_that_are_no_pictures_are_refused() -> None:
    sound = VAE(PictureVae())
    sound.latent_dim = 1
    assert "neither pictures nor video" in unsupported(sound)
    with pytest.raises(InputError, match="Decode with ComfyUI's own node"):
        ComfyVae(sound)


def test_the_estimate_is_comfyuis_own() -> None:
    vae = VAE(PictureVae())
    needs = vae_family(ComfyVae(vae)).needs(torch.bfloat16, Backend())
    assert needs.decode_bytes(1, 64, 128, 1) == 900 * 8 * 16 * 2
    assert needs.encode_bytes(1, 64, 128, 1) == 20 * 64 * 128 * 2
    assert not HunyuanFamily.has_stream


def test_a_guest_sets_no_limit_on_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *call: asked.append(call[0]))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    device = open_device(torch.device("cuda"), is_guest=True)
    assert isinstance(device, CudaDevice)
    device.limit(123)
    assert device.cap_bytes == 123
    device.limit(None)
    assert asked == []


def test_pictures_tell_their_pieces_and_end_with_a_cancel_in_both_directions() -> None:
    engine = engine_of(ComfyVae(VAE(PictureVae())))
    for work, content in ((engine.decode, noise(1, 16, 4, 4)), (engine.encode, noise(1, 3, 32, 32))):
        cancel, reported = CancelToken(), list[tuple[int, int]]()
        work(content, progress=lambda *count, told=reported: told.append(count), cancel=cancel)
        assert reported == [(1, 1)]
        cancel.cancel()
        with pytest.raises(GenerationCancelled):
            work(content, cancel=cancel)
