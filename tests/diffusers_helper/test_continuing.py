"""Tests of videos that continue another one: which frames become history, and what the file holds."""

import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import imageio.v3 as imageio
import numpy as np
import pytest
import torch
from av.video.stream import VideoStream
from PIL import Image

from benchmarks.continuing import CLIPS
from diffusers_helper.conditions.footage import all_frames, last_frames, read_footage
from diffusers_helper.errors import InputError
from diffusers_helper.events import Event, SectionFinished, Warned
from diffusers_helper.families.packing import MODES, Mode
from diffusers_helper.loading.loaders import Models
from diffusers_helper.output.checkpoints import read_tensors
from diffusers_helper.output.video import GrowingVideo
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling.schedule import noise_for
from tests.support.clips import scene
from tests.support.making import make, seconds_for

_TICK = 600


def write_clip(
    path: Path,
    times: list[Fraction],
    size: tuple[int, int] = (96, 64),
    *,
    codec: str = "libx264",
    form: str = "yuv420p",
    sound: bool = False,
) -> Path:
    """Write a clip whose frame number n is grey with the level 4 n + 16, visible from the n-th time on."""
    with av.open(path, "w") as container:
        options = {"preset": "ultrafast", "qp": "1", "x265-params": "log-level=none"}
        stream = cast(VideoStream, container.add_stream(codec, rate=30, options=options))
        stream.width, stream.height, stream.pix_fmt = *size, form
        stream.codec_context.time_base = Fraction(1, _TICK)
        voice = container.add_stream("aac", rate=48000) if sound else None
        for number, time in enumerate(times):
            pixels = np.full((size[1], size[0], 3), 4 * (number % 60) + 16, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=form)
            frame.pts, frame.time_base = int(time * _TICK), Fraction(1, _TICK)
            frame.duration = int((times[-1] - times[-2]) * _TICK)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if voice is not None:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 4800), np.float32), "fltp", "mono")
            silence.sample_rate = 48000
            container.mux([*voice.encode(silence), *voice.encode(None)])
    return path


def even(count: int, rate: int) -> list[Fraction]:
    return [Fraction(number, rate) for number in range(count)]


def numbers(frames: list[Image.Image]) -> list[int]:
    """Return the numbers of a clip's frames, read from their levels, which lose about 1 by conversion."""
    return [round((float(np.asarray(one)[8:-8, 8:-8].mean()) - 15) / 4) for one in frames]


# Each output frame shows what is visible in the middle of its thirtieth of a second.
SHOWN = {
    "24": (even(24, 24), [0, 1, 2, 2, 3, 4, 5, 6, 6, 7, 8, 9, 10, 10, 11, 12, 13, 14, 14, 15, 16, 17, 18, 18,
                          19, 20, 21, 22, 22, 23]),
    "25": (even(25, 25), [0, 1, 2, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10, 11, 12, 12, 13, 14, 15, 16, 17, 17, 18, 19,
                          20, 21, 22, 22, 23, 24]),
    "60": (even(60, 60), list(range(1, 60, 2))),
    "changing": ([Fraction(0), Fraction(1, 10), Fraction(1, 5), Fraction(3, 10), Fraction(1, 3)],
                 [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4]),
}  # fmt: skip


@pytest.mark.parametrize("rate", SHOWN)
def test_frames_are_taken_by_time(rate: str, tmp_path: Path) -> None:
    times, expected = SHOWN[rate]
    clip = write_clip(tmp_path / "clip.mp4", times, sound=rate == "25")
    assert numbers(list(all_frames(clip))) == expected
    assert numbers(last_frames(clip, 9)) == expected[-9:]


def test_the_end_of_a_longer_video_is_found_without_decoding_all(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mkv", even(110, 24), (50, 38))
    whole = [np.asarray(frame) for frame in all_frames(clip)]
    found = [np.asarray(frame) for frame in last_frames(clip, 13)]
    assert np.array_equal(np.stack(found), np.stack(whole[-13:]))


def test_ten_bits_become_eight(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", even(5, 30), codec="libx265", form="yuv420p10le")
    assert numbers(list(all_frames(clip))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", CLIPS)
def test_frames_of_videos_from_elsewhere_are_those_that_a_player_shows(name: str, tmp_path: Path) -> None:
    drawing = replace(CLIPS[name], seconds=2)
    clip = drawing.write(tmp_path / f"clip.{drawing.ending}")
    shown = [np.asarray(frame).astype(float) for frame in all_frames(clip)]
    assert len(shown) == 60 or (drawing.is_cut and 30 < len(shown) < 60)
    times = [float(time) for time in drawing.times()]
    for number, frame in enumerate(shown):
        visible = max(time for time in times if time <= (number + 0.5) / 30)
        assert np.abs(frame - drawing.seen(visible)).mean() < 6
    assert np.array_equal(last_frames(clip, 5), shown[-5:])


@pytest.mark.parametrize("ending", ["mp4", "mkv", "webm", "ts"])
def test_a_damaged_end_is_left_out(ending: str, tmp_path: Path) -> None:
    drawing = replace(CLIPS["cut off"], ending=ending, codec="libvpx-vp9" if ending == "webm" else "libx264")
    clip = drawing.write(tmp_path / f"clip.{ending}")
    content = clip.read_bytes()
    clip.write_bytes(content[:-600] + bytes(200))
    frames = list(all_frames(clip))
    assert 30 < len(frames) < 60
    for number, frame in enumerate(frames[:30]):
        assert np.abs(np.asarray(frame).astype(float) - drawing.seen(number / 30)).mean() < 6
    assert len(last_frames(clip, 20)) == 20


@pytest.mark.parametrize("content", [b"no video at all", b""])
def test_a_file_that_is_no_video_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"clip\.mp4 cannot be read"):
        read_footage(path)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a video of one second with motion, in the form of Longtake's own."""
    video = GrowingVideo(tmp_path_factory.mktemp("clip"), width=64, height=64, mode="forward", crf=16)
    return video.add_section(scene(30, 64, 64))


def continuing(clip: Path, mode: Mode, sections: int = 2) -> GenerationRequest:
    return GenerationRequest(
        image="", video=str(clip), prompt="the red ball moves right", seconds=seconds_for(sections), steps=2,
        seed=7, mode=mode, resolution=64,
    )  # fmt: skip


def warnings(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Warned)]


@pytest.mark.parametrize("mode", MODES)
def test_the_file_is_the_original_and_the_new_part(
    mode: Mode, clip: Path, models: Models, tmp_path: Path
) -> None:
    result, events = make(continuing(clip, mode), models, tmp_path / "job")
    given, found = imageio.imread(clip), imageio.imread(result.video)
    assert np.array_equal(found[:30], given), "its packets are copied"
    assert warnings(events) == ["The frames of the video that is continued are copied as they are."]
    assert result.frames == len(found) == 30 + 2 * 36

    steps = np.abs(np.diff(found.astype(np.int16), axis=0)).mean((1, 2, 3))
    assert steps[29] < 2 * steps[30:].mean(), "the joint is no jump"


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_job_gives_the_same_bytes(mode: Mode, models: Models, tmp_path: Path) -> None:
    foreign = write_clip(tmp_path / "clip.mkv", even(30, 25), (70, 54))
    request = continuing(foreign, mode)
    whole, events = make(request, models, tmp_path / "job")
    assert "encoded again" in warnings(events)[0]
    foreign.unlink()  # a job needs only its folder
    for kept in (0, 1):
        folder = tmp_path / f"resumed-{kept}"
        shutil.copytree(tmp_path / "job", folder)
        for file in [*folder.glob("*.mp4"), *folder.glob("sections/*")]:
            if file.stem not in [f"{number:04}" for number in range(1, kept + 1)]:
                file.unlink()
        own = replace(request, image=str(folder / "input.png"), video=str(folder / "original"))
        resumed, _ = make(own, models, folder, resume_from=folder)
        assert resumed.video.read_bytes() == whole.video.read_bytes()


def test_the_tail_is_one_causal_encode_of_the_last_frames(clip: Path, models: Models, tmp_path: Path) -> None:
    result, _ = make(continuing(clip, "forward", 1), models, tmp_path / "job")
    recipe = read_recipe(result.video)
    assert "video" not in recipe.settings
    assert [one for one in recipe.notices if "continues another one" in one]
    found, _ = read_tensors(tmp_path / "job" / "encodings.safetensors")
    frames = np.stack([np.asarray(frame) for frame in last_frames(clip, 73)[-29:]])
    pixels = torch.from_numpy(frames).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
    vae = models.component("vae")
    with torch.inference_mode():
        vae.use_framewise_encoding = True
        posterior = vae.encode(pixels).latent_dist
    noise = noise_for(7, "tail", 0, tuple(posterior.mean.shape))
    expected = (posterior.mean + posterior.std * noise) * vae.config.scaling_factor
    assert found["tail"].shape[2] == 8
    torch.testing.assert_close(found["tail"], expected, atol=1e-4, rtol=1e-4)


def leading(clip: Path, picture: Path, sections: int = 2) -> GenerationRequest:
    return replace(continuing(clip, "inverted", sections), image=str(picture), extend="before")


@pytest.mark.parametrize("sections", [1, 2])
def test_what_comes_before_a_video_leads_to_its_first_frame(
    sections: int, clip: Path, models: Models, small_scene: Path, tmp_path: Path
) -> None:
    request = leading(clip, small_scene, sections)
    result, events = make(request, models, tmp_path / "job")
    given, found = imageio.imread(clip), imageio.imread(result.video)
    new = 36 * sections + 1 + 3  # with the picture's own frame, and those of the video's first latent
    assert np.array_equal(found[new:], given), "its packets are copied"
    assert result.frames == len(found) == new + 30
    versions = [imageio.imread(event.video) for event in events if isinstance(event, SectionFinished)]
    assert [len(one) for one in versions] == [33 + 3 + 30, new + 30][-sections:]
    assert all(np.array_equal(one[-30:], given) for one in versions), "it is played behind each section"
    with Image.open(small_scene) as picture:
        wanted = np.asarray(picture.convert("RGB").resize((64, 64))).astype(np.int16)
    assert (
        np.abs(found[0].astype(np.int16) - wanted).mean()
        < np.abs(found[new].astype(np.int16) - wanted).mean()
    )
    steps = np.abs(np.diff(found[: new + 1].astype(np.int16), axis=0)).mean((1, 2, 3))
    assert steps[-1] < 2 * steps.mean(), "the joint is no jump"

    tail, _ = read_tensors(tmp_path / "job" / "encodings.safetensors")
    assert tail["tail"].shape[2] == 8, "29 of the 30 frames are seen"
    recipe = read_recipe(result.video)
    assert "extend" not in recipe.settings
    assert [one for one in recipe.notices if "`video`, and `extend` as before, to continue it again" in one]
    folder = tmp_path / "resumed"
    shutil.copytree(tmp_path / "job", folder)
    for file in [*folder.glob("*.mp4"), *folder.glob("sections/*")]:
        if file.stem != "0001" or sections == 1:
            file.unlink()
    own = replace(request, image=str(folder / "input.png"), video=str(folder / "original"))
    resumed, _ = make(own, models, folder, resume_from=folder)
    assert resumed.video.read_bytes() == result.video.read_bytes()
    assert warnings(events) == ["The frames of the video that is continued are copied as they are."]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"image": ""}, "begins with a picture"),
        ({"video": ""}, "without a video"),
        ({"mode": "forward"}, "in forward order"),
        ({"end_image": "end.png"}, "with an end picture"),
        ({"loop": "on"}, "continues another one"),
    ],
)
def test_what_comes_before_a_video_needs_a_picture_and_inverted_order(
    changes: dict[str, str], sentence: str, clip: Path
) -> None:
    with pytest.raises(InputError, match=sentence):
        replace(leading(clip, Path("start.png")), **changes)
