"""The video node, which makes frames and an MP4 from a picture and a sentence with `generate`."""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from diffusers_helper.events import Event, JobStarted, StepDone, Warned
from diffusers_helper.lora_choice import choices_of
from diffusers_helper.machine.local import Local
from diffusers_helper.miopen_fallback import initialize_miopen_fallback
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.registry import ModelInfo, find_model, model_names
from diffusers_helper.planning.variables import conv_rung
from diffusers_helper.request import FINISHING, PICTURES, SETTINGS, TIMED_PICTURES, GenerationRequest
from diffusers_helper.setting import SettingInfo, number_or_text, text_of
from diffusers_helper.timed_pictures import timed_pictures_of
from diffusers_helper.units import count_text
from rocm_nodes.host import comfy, importing, interruptible, management, progress_bar, show_text
from rocm_nodes.page import Input, Inputs, Node, choice, explained, number, of_type, reported

_AUTO = "auto"
_PREVIEW_SIDE = 512

_FIRST = ("prompt", "model", "seconds", "seed", "steps")
# A workflow saved by ComfyUI's page has the values in the order of the inputs, so what is added comes last:
# first these settings, and then those that follow them in a request.
_ADDED = ("lora", "weight_dtype", "attention")
_LAST_ADDED_INDEX = [*SETTINGS].index(_ADDED[-1])
_SETTINGS_BEFORE, _SETTINGS_AFTER = [*SETTINGS][:_LAST_ADDED_INDEX], [*SETTINGS][_LAST_ADDED_INDEX + 1 :]
NOT_HERE = ("then", *FINISHING)  # another node finishes videos
_OTHERS = [name for name in _SETTINGS_BEFORE if name not in {*_FIRST, *_ADDED}]


def setting_inputs(names: Iterable[str]) -> Inputs:
    return {name: _setting_input(SETTINGS[name]) for name in names}


def _setting_input(info: SettingInfo) -> Input | Callable[[], Input]:
    tooltip = info.help.replace("`", "")
    options: dict[str, Any] = {"advanced": True} if info.section == "Memory" else {}
    if info.is_picture:
        return of_type("IMAGE", tooltip)
    if info.name == "model":
        return lambda: choice(model_names(), tooltip, default=info.default, **options)
    if info.choices:
        return choice(info.choices, tooltip, default=info.default, **options)
    if not info.is_number:
        return of_type("STRING", tooltip, default=info.default or "", multiline=True)
    if info.is_optional:
        return of_type("STRING", tooltip, default=_AUTO, **options)
    default, low, high, step = map(info.kind, (info.default, info.low, info.high, info.step))
    return number(default, low, high, tooltip, step=step, **options)


class VideoNode(Node):
    RETURN_TYPES = ("IMAGE", "STRING", "VIDEO")
    RETURN_NAMES = ("frames", "video_path", "video")
    CATEGORY = "ROCm Ninodes/Video"
    OUTPUT_TOOLTIPS = (
        "The frames of the video.", "The path of the MP4.", "The MP4 for ComfyUI's nodes of video.",
    )  # fmt: skip


class ROCMFramePackVideo(VideoNode):
    FUNCTION = "make"
    OUTPUT_NODE = True
    DESCRIPTION = "Make a video that does what a sentence says, and usually starts with a picture."
    SEARCH_ALIASES = ("image to video", "i2v", "framepack", "longtake")
    REQUIRED = setting_inputs(_FIRST)
    OPTIONAL = setting_inputs(
        [*_OTHERS, *_ADDED, *(name for name in _SETTINGS_AFTER if name not in NOT_HERE)]
    )

    def work(self, inputs: Any) -> dict[str, Any]:
        info = find_model(inputs.model)
        images = take_pictures(vars(inputs))
        folder = new_folder()
        return make_video("FramePack", info, request_of(vars(inputs), images, folder), images, folder)


def make_video(
    title: str, info: ModelInfo, request: GenerationRequest, images: Mapping[str, Image.Image], folder: Path,
    resume_from: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    with prepared_engine(info) as (models, options, notes):
        # Only a run needs this, and ComfyUI would wait for it when it starts.
        from diffusers_helper.pipeline import generate

        write_pictures(images, folder)
        result = generate(request, models, folder=folder / "job", resume_from=resume_from, **options)
    lines = [f"{count_text(result.frames, 'frame')} in {result.video}.", *notes]
    return reported(title, lines, video_outputs(result.video))


@contextmanager
def prepared_engine(info: ModelInfo) -> Iterator[tuple[Any, dict[str, Any], list[str]]]:
    """Free the device of ComfyUI's models, and yield the objects that a node needs, or raise NotHere.

    That is a model, of which nothing is loaded yet; the arguments of `generate` that connect a job with
    ComfyUI; and the notes of the job, as they come.
    """
    with importing():
        from diffusers_helper import pipeline  # noqa: F401 - nodes take what they need from it later
        from diffusers_helper.loading.loaders import load_models

    if absence := absence_of(info):
        raise NotHere(absence)
    convolutions = initialize_miopen_fallback(rung=conv_rung(os.environ))
    host = management()
    host.unload_all_models()
    host.soft_empty_cache()
    notes: list[str] = []
    with explained(), interruptible() as interrupt:
        device_type = host.get_torch_device().type
        models = load_models(info, device=device_type, cancel=interrupt, convolutions=convolutions)
        local = Local(dict(os.environ), is_guest=True)
        yield models, {"on_event": event_listener(notes), "cancel": interrupt, "local": local}, notes


def take_pictures(settings: dict[str, Any]) -> dict[str, Image.Image]:
    pictures: dict[str, Image.Image] = {}
    for name in PICTURES:
        if (image := settings.pop(name, None)) is not None:
            colours, alpha = image[0, ..., :3], image[0, ..., 3:]
            if alpha.numel():  # what is transparent becomes white
                colours = colours * alpha + 1 - alpha
            pixels = (colours.expand(-1, -1, 3).clamp(0, 1) * 255).round().to(torch.uint8)
            pictures[name] = Image.fromarray(pixels.cpu().numpy())
    return pictures


def request_of(
    settings: Mapping[str, Any], images: Mapping[str, Image.Image], folder: Path
) -> GenerationRequest:
    values = {name: _value(SETTINGS[name], value) for name, value in settings.items()}
    values |= {name: str(folder / f"{name}.png") for name in images}
    find = comfy("folder_paths").get_full_path_or_raise
    loras = choices_of(values.get("lora", ""))
    values["lora"] = text_of(replace(lora, file=find("loras", lora.file)) for lora in loras)
    # Pictures at times and the video to continue are files in ComfyUI's input folder.
    find = comfy("folder_paths").get_annotated_filepath
    if values.get("video"):
        values["video"] = find(values["video"])
    if pictures := timed_pictures_of(str(values.get(TIMED_PICTURES) or "")):
        values[TIMED_PICTURES] = text_of(replace(picture, file=find(picture.file)) for picture in pictures)
    return GenerationRequest.from_dict(values)


def write_pictures(images: Mapping[str, Image.Image], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, image in images.items():
        image.save(folder / f"{name}.png")


def _value(info: SettingInfo, value: Any) -> Any:
    return number_or_text(str(value).strip() or _AUTO) if info.is_optional and info.is_number else value


def new_folder() -> Path:
    return Path(comfy("folder_paths").get_output_directory(), "framepack", secrets.token_hex(4)).absolute()


def event_listener(notes: list[str]) -> Callable[[Event], None]:
    show = progress_bar()
    section_steps = [0]

    def listen(event: Event) -> None:
        if isinstance(event, JobStarted):
            section_steps[:] = [0] * event.sections
        elif isinstance(event, Warned):
            notes.append(event.message)
            show_text(event.message)  # before the work, which may take an hour
        elif isinstance(event, StepDone):
            show(*event.progress(section_steps), _preview(event.preview))

    return listen


def _preview(path: str | None) -> tuple[str, Image.Image, int] | None:
    if path is None:
        return None
    with Image.open(path) as picture:
        return ("JPEG", picture.convert("RGB"), _PREVIEW_SIDE)


def video_outputs(video: Path) -> tuple[Tensor, str, Any]:
    return _frames(video), str(video), comfy("comfy_api.input_impl").VideoFromFile(str(video))


def _frames(video: Path) -> Tensor:
    """Read an MP4 as ComfyUI's IMAGE: (frames, height, width, 3), 0 to 1."""
    import imageio.v3 as imageio

    return torch.from_numpy(imageio.imread(video, plugin="pyav")).float() / 255
