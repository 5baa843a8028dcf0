"""A small double of ComfyUI: modules with the names, signatures and habits of the real ones.

The signatures are held to those recorded from the real program (`tests/rocm_nodes/comfyui_api.json`).
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderKLWan
from safetensors.torch import load_file
from torch import Tensor, nn

SIDE = 8


class WanVAE(nn.Module):
    """A VAE with the parts of ComfyUI's class of this name, made of diffusers' layers."""

    def __init__(self, *, has_patches: bool = False, has_pairs: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        extra: dict[str, Any] = {
            "is_residual": True, "in_channels": 12, "out_channels": 12, "patch_size": 2,
            "scale_factor_spatial": 16, "decoder_base_dim": 8,
        }  # fmt: skip
        inner = AutoencoderKLWan(base_dim=8, num_res_blocks=1, **(extra if has_patches else {})).eval()
        plain = _PairsDecoder if has_pairs else _PlainDecoder
        self.decoder: Any = inner.decoder if has_patches else plain(inner.decoder)
        self.conv2, self._patches, self._step = inner.post_quant_conv, has_patches, 2 if has_pairs else 1
        self._inner = [inner]  # in a list, so that its weights are not counted twice

    def encode(self, x: Tensor) -> Tensor:
        whole = (x.shape[2] - 1) // 4 * 4 + 1
        return self._inner[0].encode(x[:, :, :whole]).latent_dist.mode()

    def decode(self, z: Tensor) -> Tensor:
        from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

        memory: list[Any] = [None] * 99
        parts, states = list[Tensor](), self.conv2(z)
        for k in (0, *range(1, z.shape[2], self._step)):
            first = {"first_chunk": True} if self._patches and k == 0 else {}
            states_k = states[:, :, k : k + self._step if k else 1]
            frames = self.decoder(states_k, feat_cache=memory, feat_idx=[0], **first)
            parts += frames if isinstance(frames, list) else [frames]
        frames = torch.cat(parts, 2)
        return unpatchify(frames, 2) if self._patches else frames


class _PlainDecoder(nn.Module):
    """A decoder without the argument that only Wan 2.2 has."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, feat_cache: Any = None, feat_idx: Any = None) -> Tensor:
        first = {"first_chunk": True} if all(item is None for item in feat_cache) else {}
        return self.inner(x, feat_cache=feat_cache, feat_idx=feat_idx, **first)


class _PairsDecoder(_PlainDecoder):
    """A decoder of newer versions, which takes two latent frames after the first, and returns a list."""

    def forward(self, x: Tensor, feat_cache: Any = None, feat_idx: Any = None) -> Any:
        return list(super().forward(x, feat_cache, feat_idx).split(2, dim=2))

    def run_up(self) -> None:
        """Stand for the method that newer versions have."""


class PictureVae(nn.Module):
    """A VAE of pictures with ComfyUI's two methods."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner: Any = AutoencoderKL(
            block_out_channels=(8, 16, 16, 16), layers_per_block=1, norm_num_groups=4, latent_channels=16,
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        ).eval()  # fmt: skip

    @property
    def decoder(self) -> nn.Module:
        return self.inner.decoder

    def decode(self, z: Tensor) -> Tensor:
        return self.inner.decoder(self.inner.post_quant_conv(z))

    def encode(self, x: Tensor) -> Tensor:
        return self.inner.quant_conv(self.inner.encoder(x))[:, :16]


class VAE:
    """The object that ComfyUI hands to nodes, `comfy.sd.VAE`, around one of the networks above."""

    def __init__(self, network: nn.Module, *, shrink: int = 8) -> None:
        is_video = isinstance(network, WanVAE)
        self.first_stage_model, self.latent_dim, self.latent_channels = network, 3 if is_video else 2, 16
        self.upscale_ratio: Any = (lambda a: max(0, a * 4 - 3), shrink, shrink) if is_video else shrink
        self.device = self.output_device = torch.device("cpu")
        self.vae_dtype, self.working_dtypes = torch.float32, [torch.bfloat16, torch.float32]
        self.patcher, self.disable_offload, self.extra_1d_channel = SimpleNamespace(name="vae"), False, None
        self.memory_used_decode: Any = lambda shape, dtype: 900 * shape[-1] * shape[-2] * dtype.itemsize
        self.memory_used_encode: Any = lambda shape, dtype: 20 * shape[-1] * shape[-2] * dtype.itemsize

    def process_output(self, image: Tensor) -> Tensor:
        return torch.clamp((image + 1.0) / 2.0, min=0.0, max=1.0)

    def process_input(self, image: Tensor) -> Tensor:
        return image * 2.0 - 1.0

    def vae_encode_crop_pixels(self, pixels: Tensor) -> Tensor:
        """Return the middle of pictures, with sides that are multiples of 8."""
        for side in (1, 2):
            whole = pixels.shape[side] // 8 * 8
            pixels = pixels.narrow(side, pixels.shape[side] % 8 // 2, whole)
        return pixels

    def encode(self, pixel_samples: Tensor) -> Tensor:
        pixels = self.process_input(self.vae_encode_crop_pixels(pixel_samples)).movedim(-1, 1)
        if self.latent_dim == 3:
            pixels = pixels.movedim(1, 0).unsqueeze(0)
        with torch.inference_mode():
            return self.first_stage_model.encode(pixels.to(self.vae_dtype)).float()

    def spacial_compression_decode(self) -> int:
        return self.upscale_ratio[-1] if self.latent_dim == 3 else self.upscale_ratio

    def temporal_compression_decode(self) -> int | None:
        return round(self.upscale_ratio[0](8192) / 8192) if self.latent_dim == 3 else None

    def decode(self, samples_in: Tensor, vae_options: Any = {}) -> Tensor:  # noqa: B006 - as recorded
        """Return pictures with their channels last."""
        with torch.inference_mode():
            frames = self.first_stage_model.decode(samples_in.to(self.vae_dtype))
        return self.process_output(frames.float()).movedim(1, -1)


class ModelPatcher:
    """A model that multiplies; its clones share it."""

    def __init__(self, factor: float = 0.5) -> None:
        self.factor, self.wrappers = factor, list[tuple[str, Callable[..., Any]]]()
        self.dtypes: list[torch.dtype] = []
        self.patches: dict[str, list[Any]] = {}
        self.load_device = torch.device("cpu")
        self.model = SimpleNamespace(manual_cast_dtype=None)

    def clone(self) -> "ModelPatcher":
        clone = ModelPatcher(self.factor)
        clone.wrappers, clone.dtypes = list(self.wrappers), list(self.dtypes)
        clone.patches = {name: list(patches) for name, patches in self.patches.items()}
        return clone

    def model_dtype(self) -> torch.dtype:
        return torch.float32

    def set_model_compute_dtype(self, dtype: torch.dtype) -> None:
        self.dtypes.append(dtype)

    def add_wrapper_with_key(self, wrapper_type: str, key: str, wrapper: Callable[..., Any]) -> None:
        self.wrappers.append((wrapper_type, wrapper))

    def get_model_object(self, name: str) -> Any:
        if name == "manual_cast_dtype":
            return self.dtypes[-1] if self.dtypes else None
        assert name == "latent_format"
        return SimpleNamespace(latent_channels=16, latent_dimensions=2)

    def evaluate(self, x: Tensor) -> Tensor:
        return self.wrapped("calc_cond_batch", lambda x: x * self.factor)(x)

    def wrapped(self, kind: str, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function with the wrappers of a kind around it."""
        for wrapper in (one for place, one in self.wrappers if place == kind):
            call = partial(wrapper, call)
        return call


class Interrupted(Exception):
    pass


class Comfy:
    """The state of the double, and its modules in `sys.modules`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.root, self.is_interrupted, self.free = root, False, 8 * 1024**3
        self.calls: list[str] = []
        self.shown: list[tuple[Any, ...]] = []
        self.previews: list[int] = []
        self.texts: list[tuple[str, str]] = []
        self.loads: Callable[[str], Any] = lambda path: ModelPatcher()
        for name, content in self._modules().items():
            module = ModuleType(name)
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, name, module)

    def _modules(self) -> dict[str, dict[str, Any]]:
        return {
            "comfy": {"__path__": []},
            "comfy.model_management": self._management(),
            "comfy.patcher_extension": {
                "WrappersMP": SimpleNamespace(CALC_COND_BATCH="calc_cond_batch", OUTER_SAMPLE="outer_sample")
            },
            "comfy.sd": self._sd(),
            "comfy.sample": self._sample(),
            "comfy.samplers": {"KSampler": SimpleNamespace(SAMPLERS=["euler"], SCHEDULERS=["simple"])},
            "comfy.utils": {
                "ProgressBar": self._bar(), "PROGRESS_BAR_ENABLED": True, "ALWAYS_SAFE_LOAD": True,
                "load_torch_file": lambda ckpt, safe_load=False: load_file(ckpt),
            },
            "comfy_api": {"__path__": []},
            "comfy_api.input_impl": {"VideoFromFile": lambda file: SimpleNamespace(file=file)},
            "comfyui_version": {"__version__": "0.3.64"},
            "folder_paths": self._folders(),
            "nodes": self._nodes(),
            "server": {"PromptServer": self._server()},
        }  # fmt: skip

    def _server(self) -> type:
        texts = self.texts

        class PromptServer:
            instance: Any = None
            last_node_id, client_id = "7", "tests"

            def send_progress_text(self, text, node_id, sid=None):
                texts.append((node_id, text))

        PromptServer.instance = PromptServer()
        return PromptServer

    def _management(self) -> dict[str, Any]:
        def throw_exception_if_processing_interrupted() -> None:
            if self.is_interrupted:
                self.is_interrupted = False
                raise Interrupted

        def load_models_gpu(
            models, memory_required=0, force_patch_weights=False, minimum_memory_required=None,
            force_full_load=False,
        ):  # fmt: skip
            self.calls.append(f"load_models_gpu {len(models)} {memory_required:.4g} {force_full_load}")

        def get_free_memory(dev=None, torch_free_too=False):
            return (self.free, 0) if torch_free_too else self.free

        def soft_empty_cache(force=False):
            self.calls.append("soft_empty_cache")

        def unload_all_models():
            self.calls.append("unload_all_models")
            self.free += 1024**3

        return {
            "OOM_EXCEPTION": torch.OutOfMemoryError, "InterruptProcessingException": Interrupted,
            "throw_exception_if_processing_interrupted": throw_exception_if_processing_interrupted,
            "processing_interrupted": lambda: self.is_interrupted, "load_models_gpu": load_models_gpu,
            "get_free_memory": get_free_memory, "get_total_memory": lambda dev=None: 16 * 1024**3,
            "get_torch_device": lambda: torch.device("cpu"), "soft_empty_cache": soft_empty_cache,
            "unload_all_models": unload_all_models, "loaded_models": lambda only_currently_used=False: [1],
        }  # fmt: skip

    def _sd(self) -> dict[str, Any]:
        def load_checkpoint_guess_config(
            ckpt_path, output_vae=True, output_clip=True, output_clipvision=False, embedding_directory=None,
            output_model=True, model_options={}, te_model_options={},  # noqa: B006
        ):  # fmt: skip
            folders = [Path(folder).name for folder in embedding_directory]
            self.calls.append(f"load_checkpoint {output_vae} {output_clip} {folders}")
            return (self.loads(ckpt_path), None, VAE(PictureVae()), None)

        def load_diffusion_model(unet_path, model_options={}):  # noqa: B006
            self.calls.append(f"load_diffusion_model {model_options}")
            return self.loads(unet_path)

        return {
            "load_checkpoint_guess_config": load_checkpoint_guess_config,
            "load_diffusion_model": load_diffusion_model, "VAE": VAE,
        }  # fmt: skip

    def _folders(self) -> dict[str, Any]:
        def get_full_path_or_raise(folder_name, filename):
            path = self.root / folder_name / filename
            if not path.is_file():
                raise FileNotFoundError(filename)
            return str(path)

        return {
            "get_filename_list": lambda folder_name: sorted(
                path.name for path in (self.root / folder_name).glob("*") if path.suffix.lower() != ".gguf"
            ),
            "get_full_path_or_raise": get_full_path_or_raise,
            "get_annotated_filepath": lambda name: str(self.root / "input" / name),
            "recursive_search": lambda directory: ([path.name for path in Path(directory).glob("*")], {}),
            "get_folder_paths": lambda folder_name: [str(self.root / folder_name)],
            "get_output_directory": lambda: str(self.root / "output"),
        }

    def _bar(self) -> type:
        shown = self.shown

        class ProgressBar:
            def __init__(self, total):
                self.total = total

            def update_absolute(self, value, total=None, preview=None):
                shown.append((value, total, *([preview] if preview else [])))

        return ProgressBar

    def _sample(self) -> dict[str, Any]:
        def prepare_noise(latent_image, seed, noise_inds=None):
            return torch.randn(latent_image.shape, generator=torch.Generator().manual_seed(seed))

        def sample(
            model, noise, steps, cfg, sampler_name, scheduler, positive, negative, latent_image, denoise=1.0,
            disable_noise=False, start_step=None, last_step=None, force_full_denoise=False, noise_mask=None,
            sigmas=None, callback=None, disable_pbar=False, seed=None,
        ):  # fmt: skip
            def outer_sample(
                noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed
            ):  # fmt: skip
                x = noise + latent_image
                for step in range(steps):
                    x = model.evaluate(x)
                    callback(step, x, x, steps)
                return x

            call = model.wrapped("outer_sample", outer_sample)
            return call(noise, latent_image, None, sigmas, noise_mask, callback, disable_pbar, seed)

        return {
            "fix_empty_latent_channels": lambda model, latent_image: latent_image,
            "prepare_noise": prepare_noise, "sample": sample,
        }  # fmt: skip

    def _nodes(self) -> dict[str, Any]:
        calls = self.calls

        def common_ksampler(
            model, seed, steps, cfg, sampler_name, scheduler, positive, negative, latent, denoise=1.0,
            disable_noise=False, start_step=None, last_step=None, force_full_denoise=False,
        ):  # fmt: skip
            shape = "x".join(map(str, latent["samples"].shape))
            self.calls.append(f"common_ksampler {shape}, {steps} steps of {sampler_name} {scheduler} {cfg}")
            module = sys.modules["comfy.sample"]
            noise = (
                torch.zeros_like(latent["samples"])
                if disable_noise
                else module.prepare_noise(latent["samples"], seed)
            )
            samples = module.sample(
                model, noise, steps, cfg, sampler_name, scheduler, positive, negative, latent["samples"],
                denoise=denoise, disable_noise=disable_noise, start_step=start_step, last_step=last_step,
                force_full_denoise=force_full_denoise, seed=seed,
                callback=lambda step, x0, x, total: self.previews.append(step),
            )  # fmt: skip
            return ({**latent, "samples": samples},)

        class VAEDecode:
            def decode(self, vae, samples):
                images = vae.decode(samples["samples"])
                return (images.reshape(-1, *images.shape[-3:]) if images.dim() == 5 else images,)

        class VAEDecodeTiled:
            def decode(self, vae, samples, tile_size, overlap=64, temporal_size=64, temporal_overlap=8):
                calls.append(f"tiles of {tile_size}, {overlap}, {temporal_size}, {temporal_overlap}")
                return (vae.decode(samples["samples"]),)

        class VAEEncode:
            def encode(self, vae, pixels):
                calls.append("encode")
                return ({"samples": vae.encode(pixels)},)

        class VAEEncodeTiled:
            def encode(self, vae, pixels, tile_size, overlap, temporal_size=64, temporal_overlap=8):
                calls.append(f"encode in tiles of {tile_size}, {overlap}")
                return ({"samples": vae.encode(pixels)},)

        return {
            "common_ksampler": common_ksampler, "VAEDecode": VAEDecode, "VAEDecodeTiled": VAEDecodeTiled,
            "VAEEncode": VAEEncode, "VAEEncodeTiled": VAEEncodeTiled,
        }  # fmt: skip
