"""FramePack in four nodes: the model, the conditions, the sampler and the decoder.

With the same settings they make the same video as the one node, bit for bit. What is encoded or sampled is
kept by ComfyUI until its inputs change, so another seed does not encode the prompt again.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor

from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.request import CROPS, PICTURES, SETTINGS, TIMED_PICTURES, GenerationRequest
from diffusers_helper.units import count_text
from rocm_nodes.framepack.node import (
    NOT_HERE,
    VideoNode,
    make_video,
    new_folder,
    prepared_engine,
    request_of,
    setting_inputs,
    take_pictures,
    write_pictures,
)
from rocm_nodes.host import comfy, model_files
from rocm_nodes.page import Input, Node, choice, of_type, reported

_CATEGORY = "ROCm Ninodes/Video"
_MODEL = ("model", "lora", "weight_dtype")
# The prompt that is avoided is encoded only if `cfg` uses it.
_CONDITIONS = (
    "prompt", "negative", "cfg", *PICTURES, "crop", "mode", "resolution", *CROPS[1:], "shape", TIMED_PICTURES,
    "video", "extend", "picture_shape", "zoom", "crop_y",
)  # fmt: skip
_DECODER = ("crf",)
_SAMPLER = tuple(name for name in SETTINGS if name not in (*_MODEL, *_CONDITIONS, *_DECODER, *NOT_HERE))
_FIRST = ("seconds", "seed", "steps")  # what stands first among the sampler's inputs
_MODELS_OWN = "the model's own"
# The parts that a file in one of ComfyUI's folders can replace
_FOLDERS = {
    "transformer": "diffusion_models", "text_encoder": "text_encoders", "text_encoder_2": "text_encoders",
    "vae": "vae", "image_encoder": "clip_vision",
}  # fmt: skip


def _files(component: str) -> Input:
    folder = _FOLDERS[component]
    return choice(
        [_MODELS_OWN, *model_files(folder)], f"The {component}, from {folder}.", default=_MODELS_OWN
    )


@dataclass(frozen=True, slots=True)
class Model:
    info: ModelInfo
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conditions:
    model: Model
    settings: Mapping[str, Any]
    pictures: Mapping[str, Image.Image]
    encodings: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Sampled:
    info: ModelInfo
    request: GenerationRequest
    job: Path


class ROCMFramePackLoader(Node):
    RETURN_TYPES = ("FRAMEPACK_MODEL",)
    RETURN_NAMES = ("model",)
    FUNCTION = "choose"
    CATEGORY = _CATEGORY
    DESCRIPTION = "Choose a FramePack model and its LoRAs. Files in ComfyUI's folders can replace its parts."
    SEARCH_ALIASES = ("load framepack", "longtake")
    OUTPUT_TOOLTIPS = ("The model for ROCm FramePack Conditions.",)

    REQUIRED = setting_inputs(_MODEL[:1])
    OPTIONAL: ClassVar = {**setting_inputs(_MODEL[1:]), **{name: partial(_files, name) for name in _FOLDERS}}

    def work(self, inputs: Any) -> dict[str, Any]:
        info = find_model(inputs.model)
        settings = {name: getattr(inputs, name) for name in _MODEL}
        names = {component: getattr(inputs, component, _MODELS_OWN) for component in _FOLDERS}
        chosen = {component: name for component, name in names.items() if name != _MODELS_OWN}
        if chosen:
            from diffusers_helper.loading.copying import check_components, find_own_component

            find = comfy("folder_paths").get_full_path_or_raise
            components = {
                component: find_own_component(component, Path(find(_FOLDERS[component], name)), info)
                for component, name in chosen.items()
            }
            check_components(inputs.model, components, info)
            info = info.with_components({part: component.component for part, component in components.items()})
            lines = [f"{part}: {component.summary}." for part, component in components.items()]
        else:
            lines = [f"{info.title}."]
        return reported("FramePack model", lines, (Model(info, settings),))


class ROCMFramePackConditions(Node):
    RETURN_TYPES = ("FRAMEPACK_CONDITIONS",)
    RETURN_NAMES = ("conditions",)
    FUNCTION = "encode"
    CATEGORY = _CATEGORY
    DESCRIPTION = "Encode the prompt and the picture of a video for ROCm FramePack Sampler."
    SEARCH_ALIASES = ("encode prompt", "framepack", "longtake")
    OUTPUT_TOOLTIPS = ("The encodings for ROCm FramePack Sampler.",)

    REQUIRED: ClassVar = {
        "model": of_type("FRAMEPACK_MODEL", "From ROCm FramePack Model."), **setting_inputs(_CONDITIONS[:1])
    }  # fmt: skip
    OPTIONAL = setting_inputs(_CONDITIONS[1:])

    def work(self, inputs: Any) -> dict[str, Any]:
        model: Model = inputs.model
        pictures = take_pictures(vars(inputs))
        settings = {**vars(inputs), **model.settings}
        with tempfile.TemporaryDirectory() as temporary_folder:
            folder = Path(temporary_folder)
            request = request_of({**settings, "steps": model.info.steps}, pictures, folder)
            with prepared_engine(model.info) as (models, options, notes):
                from diffusers_helper.job.work import encode_texts
                from diffusers_helper.pipeline import WORK, open_job

                write_pictures(pictures, folder)
                job = open_job(request, models, folder=folder / "job", **options)
                family = WORK[job.family.name]
                with torch.inference_mode(), job.loras, job.memory:
                    job.load()
                    encodings = {**encode_texts(job, family), **family.encode_images(job)}
        height, width = job.pictures.shape
        lines = [f"{count_text(len(pictures), 'picture')} and the prompt are encoded for {width}x{height}."]
        result = Conditions(model, settings, pictures, encodings)
        return reported("FramePack conditions", [*lines, *notes], (result,))


class ROCMFramePackSampler(Node):
    RETURN_TYPES = ("FRAMEPACK_VIDEO", "LATENT")
    RETURN_NAMES = ("sampled", "latent")
    FUNCTION = "sample"
    CATEGORY = _CATEGORY
    DESCRIPTION = (
        "Sample a video. ROCm FramePack Decode makes the same frames of it as the one node; any decoder with "
        "HunyuanVideo's VAE takes the latents."
    )
    SEARCH_ALIASES = ("image to video", "framepack", "longtake")
    OUTPUT_TOOLTIPS = ("The video for ROCm FramePack Decode.", "The latents for a decoder of ComfyUI.")

    REQUIRED: ClassVar = {
        "conditions": of_type("FRAMEPACK_CONDITIONS", "From ROCm FramePack Conditions."),
        **setting_inputs(_FIRST),
    }
    OPTIONAL = setting_inputs(name for name in _SAMPLER if name not in _FIRST)

    def work(self, inputs: Any) -> dict[str, Any]:
        conditions: Conditions = vars(inputs).pop("conditions")
        folder = new_folder()
        info = conditions.model.info
        request = request_of({**conditions.settings, **vars(inputs)}, conditions.pictures, folder)
        with prepared_engine(info) as (models, options, notes):
            from diffusers_helper.pipeline import WORK, decode_and_carry, made_sections, open_job
            from diffusers_helper.vae.codec import latent_statistics

            write_pictures(conditions.pictures, folder)
            job = open_job(request, models, folder=folder / "job", **options)
            family = WORK[job.family.name]

            def encodings() -> dict[str, Tensor]:
                return {**conditions.encodings, **family.latents(job)}

            with torch.inference_mode(), job.loras, job.memory:
                checkpoints = job.load()
                encoded = checkpoints.encodings(compute=encodings)
                history = family.history(job, encoded)
                for section in made_sections(job, checkpoints, encoded, history):
                    if job.family.is_chain:
                        decode_and_carry(job, section, checkpoints, history)
            mean, scale = latent_statistics(models.component("vae").config)
        num_latents = history.latents.shape[2]
        lines = [f"{count_text(num_latents, 'latent frame')} in {count_text(len(job.sections), 'section')}."]
        result = Sampled(info, request, folder / "job"), {"samples": history.latents / scale + mean}
        return reported("FramePack sampler", [*lines, *notes], result)


class ROCMFramePackDecode(VideoNode):
    FUNCTION = "decode"
    DESCRIPTION = "Decode what ROCm FramePack Sampler has sampled, and join its sections to a video."
    SEARCH_ALIASES = ("decode video", "framepack", "longtake")

    REQUIRED: ClassVar = {"sampled": of_type("FRAMEPACK_VIDEO", "From ROCm FramePack Sampler.")}
    OPTIONAL = setting_inputs(_DECODER)

    def work(self, inputs: Any) -> dict[str, Any]:
        sampled: Sampled = vars(inputs).pop("sampled")
        request = replace(sampled.request, **vars(inputs))
        return make_video("FramePack decode", sampled.info, request, {}, new_folder(), sampled.job)
