"""The node that finishes a video: enlarges it, smooths it, edits it, or puts another one behind it."""

import os
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from diffusers_helper.miopen_fallback import initialize_miopen_fallback
from diffusers_helper.planning.variables import conv_rung
from diffusers_helper.request import SETTINGS, GenerationRequest
from rocm_nodes.framepack.node import VideoNode, event_listener, new_folder, video_outputs
from rocm_nodes.host import comfy, importing, interruptible, management
from rocm_nodes.page import Inputs, explained, number, of_type, reported

_STEPS = "enlarge:2,smooth:60"
_CRF = SETTINGS["crf"]


class ROCMFinishVideo(VideoNode):
    FUNCTION = "finish"
    OUTPUT_NODE = True
    DESCRIPTION = "Enlarge a video, make its motion smoother, edit it, or put another one behind it."
    SEARCH_ALIASES = ("upscale", "interpolate", "join", "longtake")
    REQUIRED: ClassVar[Inputs] = {
        "video": of_type("VIDEO", "The video, with its sound."),
        "steps": of_type("STRING", SETTINGS["finish"].help.replace("`", ""), default=_STEPS),
    }
    OPTIONAL: ClassVar[Inputs] = {
        "join": of_type("VIDEO", "The video to put behind it; join:12 is a cross-fade of 12 frames."),
        "crf": number(_CRF.default, int(_CRF.low), int(_CRF.high), _CRF.help),
    }

    def work(self, inputs: Any) -> dict[str, Any]:
        with importing():
            from diffusers_helper.conditions.sources import with_sources
            from diffusers_helper.job.finish import finish
            from diffusers_helper.job.upscale_model import load_upscale_model

        folder, notes = new_folder(), list[str]()
        folder.mkdir(parents=True)
        files = {name: _file(getattr(inputs, name), folder / name) for name in ("video", "join")}
        folders = [*map(Path, comfy("folder_paths").get_folder_paths("upscale_models"))]
        request = with_sources(
            GenerationRequest.from_dict({"finish": inputs.steps, "crf": inputs.crf, **files}), folders
        )
        convolutions = initialize_miopen_fallback(rung=conv_rung(os.environ))
        load = partial(load_upscale_model, folders, convolutions, management().get_torch_device())
        management().unload_all_models()
        management().soft_empty_cache()
        with explained(), interruptible() as interrupt:
            listener = event_listener(notes)
            video = finish(request, folder / "job", on_event=listener, cancel=interrupt, load=load)
        return reported("Finish", [f"{video}.", *notes], video_outputs(video))


def _file(video: Any, target: Path) -> str:
    """Find the file of ComfyUI's video; one that has none yet is written. "" for no video."""
    if video is None:
        return ""
    source = video.get_stream_source()
    if isinstance(source, str):
        return source
    target.write_bytes(source.getvalue())
    return str(target)
