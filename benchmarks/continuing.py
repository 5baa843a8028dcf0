"""How videos from elsewhere are continued: the step at the joint, and what becomes of the original's frames.

    python benchmarks/continuing.py [--clips 24 pq ...] [--keep FOLDER]

Each clip shows a disc that moves over a moving pattern, drawn for the times of its frames. The step at the
joint is set against the mean of the five steps before and after it, since a step has the size of the motion.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import imageio.v3 as imageio
import numpy as np
from av.container import OutputContainer
from av.video.reformatter import Colorspace
from av.video.stream import VideoStream

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from diffusers_helper.conditions.footage import all_frames  # noqa: E402
from diffusers_helper.conditions.picture_file import fit_picture  # noqa: E402
from diffusers_helper.errors import LongtakeError  # noqa: E402
from diffusers_helper.events import Warned  # noqa: E402
from diffusers_helper.families.packing import MODES, Mode  # noqa: E402
from diffusers_helper.loading.loaders import Models, load_models  # noqa: E402
from diffusers_helper.models.registry import find_model  # noqa: E402
from diffusers_helper.output.video import GrowingVideo  # noqa: E402
from diffusers_helper.pipeline import generate  # noqa: E402
from diffusers_helper.request import GenerationRequest  # noqa: E402

TICK = 600
OURS = (160, 96)  # the width and height in which the demo model continues clips of 192x128
WHITE = 203  # nits of a white surface in a picture of high dynamic range (ITU-R BT.2408)
_QUALITY = {"crf": "12", "x265-params": "log-level=none"}
_PQ, _HLG, _BT2020 = 16, 18, 9  # the codes of ITU-T H.273
_TO_BT2020 = np.array([[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]])


def drawn(time: float, width: int, height: int) -> np.ndarray:
    """Return what a clip shows at a time in seconds, (H, W, 3) bytes."""
    y, x = np.mgrid[:height, :width][..., None]
    y, x = y / height * 64, x / width * 96
    phase = np.array([0.0, 2.0, 4.0])
    picture = 120 + 60 * np.sin(x / 25 + 3 * time + phase) * np.cos(y / 20 - 2 * time)
    is_disc = np.hypot(x - 48 - 32 * np.sin(2 * time), y - 32) < 13
    return np.where(is_disc, np.array([220, 60, 40]), picture).astype(np.uint8)


def pq(pixels: np.ndarray) -> np.ndarray:
    """Return a picture, bytes for a standard screen, as PQ values of 0 to 1 with the primaries of BT.2020."""
    light = (pixels / 255) ** 2.2 @ _TO_BT2020.T * WHITE / 10000
    power = light**0.1593017578125
    return ((0.8359375 + 18.8515625 * power) / (1 + 18.6875 * power)) ** 78.84375


def hlg(pixels: np.ndarray) -> np.ndarray:
    """Return a picture as `pq` does, as HLG values for a screen of 1000 nits."""
    shown = (pixels / 255) ** 2.2 @ _TO_BT2020.T * WHITE / 1000
    luma = shown @ np.array([0.2627, 0.6780, 0.0593])
    scene = shown * np.maximum(luma, 1e-9)[..., None] ** (1 / 1.2 - 1)
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    return np.where(scene <= 1 / 12, np.sqrt(3 * scene), a * np.log(np.maximum(12 * scene - b, 1e-9)) + c)


RANGES: dict[int, Callable[[np.ndarray], np.ndarray]] = {_PQ: pq, _HLG: hlg}


@dataclass(frozen=True)
class Clip:
    """A clip to be written.

    Attributes:
        rates: The frames per second, in turns of ten frames.
        turned: The degrees, counterclockwise, by which a player turns it.
        transfer: The code of a high dynamic range; 0 for the standard one.
    """

    rates: tuple[int, ...]
    seconds: float = 2
    size: tuple[int, int] = (192, 128)
    ending: str = "mp4"
    codec: str = "libx264"
    sound: bool = False
    turned: int = 0
    transfer: int = 0
    is_cut: bool = False
    is_ours: bool = False

    def times(self) -> Iterator[Fraction]:
        """Yield the time of each frame in seconds."""
        time, number = Fraction(0), 0
        while time < self.seconds:
            yield time
            time += Fraction(1, self.rates[number // 10 % len(self.rates)])
            number += 1

    def seen(self, time: float) -> np.ndarray:
        """Return what a player shows at a time in seconds, (H, W, 3) bytes."""
        width, height = OURS if self.is_ours else self.size
        return np.rot90(drawn(time, width, height), self.turned // 90)

    def write(self, path: Path) -> Path:
        """Write it, and return its path."""
        if self.is_ours:
            video = GrowingVideo(path.parent, width=OURS[0], height=OURS[1], mode="forward", crf=16)
            frames = np.stack([drawn(float(time), *OURS) for time in self.times()])
            return video.add_section(frames).rename(path)
        with av.open(path, "w", options={"movflags": "+faststart"}) as container:
            self._write(container)
        if self.is_cut:
            path.write_bytes(path.read_bytes()[: path.stat().st_size * 9 // 10])
        return path

    def _write(self, container: OutputContainer) -> None:
        stream = cast(VideoStream, container.add_stream(self.codec, rate=self.rates[0], options=_QUALITY))
        stream.width, stream.height = self.size
        stream.pix_fmt = "yuv420p10le" if self.transfer else "yuv444p" if self.size[0] % 2 else "yuv420p"
        stream.codec_context.time_base = Fraction(1, TICK)
        if self.turned:
            stream.set_display_rotation(self.turned)
        if self.transfer:
            stream.codec_context.color_trc = self.transfer
            stream.codec_context.color_primaries = stream.codec_context.colorspace = _BT2020
        voice = container.add_stream("aac", rate=48000) if self.sound else None
        for time in self.times():
            frame = self._frame(drawn(float(time), *self.size), stream.pix_fmt)
            frame.pts, frame.time_base = int(time * TICK), Fraction(1, TICK)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if voice is not None:
            silence = av.AudioFrame.from_ndarray(
                np.zeros((1, int(48000 * self.seconds)), np.float32), "fltp", "mono"
            )
            silence.sample_rate = 48000
            container.mux([*voice.encode(silence), *voice.encode(None)])

    def _frame(self, pixels: np.ndarray, form: str) -> av.VideoFrame:
        if not self.transfer:
            return av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=form)
        deep = (65535 * np.clip(RANGES[self.transfer](pixels), 0, 1)).astype(np.uint16)
        frame = av.VideoFrame.from_ndarray(deep, format="rgb48le").reformat(
            format=form, dst_colorspace=Colorspace(_BT2020)
        )
        frame.color_trc = self.transfer
        return frame


CLIPS: Mapping[str, Clip] = {
    "24": Clip((24,)),
    "25": Clip((25,), sound=True),
    "60": Clip((60,), ending="mov"),
    "changing rate": Clip((24, 60, 10), ending="mkv"),
    "odd size": Clip((30,), size=(333, 251)),
    "PQ": Clip((25,), codec="libx265", transfer=_PQ),
    "HLG": Clip((60,), codec="libx265", transfer=_HLG, sound=True),
    "turned": Clip((30,), turned=-90, sound=True),
    "1 s": Clip((30,), seconds=1, codec="libvpx-vp9", ending="webm"),
    "60 s": Clip((30,), seconds=60, sound=True),
    "cut off": Clip((30,), is_cut=True),
    "ours": Clip((30,), is_ours=True),
}


def steps_at(frames: np.ndarray, joint: int) -> tuple[float, float]:
    """Return the step to the first new frame, and the largest step near it, each over the mean near it.

    Args:
        joint: The place of the first new frame.
        frames: (T, H, W, 3) bytes.
    """
    steps = np.abs(np.diff(frames[max(0, joint - 6) : joint + 6].astype(np.int16), axis=0)).mean((1, 2, 3))
    place = min(joint, 6) - 1
    near = np.delete(steps, place).mean()
    return float(steps[place] / near), float(steps.max() / near)


def main() -> int:
    """Continue each clip in both orders, print what became of it, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", nargs="+", default=list(CLIPS), choices=list(CLIPS))
    parser.add_argument("--keep", type=Path, help="a folder in which the files stay")
    arguments = parser.parse_args()
    models = load_models(find_model("demo"))
    with tempfile.TemporaryDirectory() as place, Rows(__file__) as rows:
        for name in arguments.clips:
            folder = (arguments.keep or Path(place)) / name.replace(" ", "-")
            folder.mkdir(parents=True)
            clip = CLIPS[name].write(folder / f"clip.{CLIPS[name].ending}")
            for mode in MODES:
                row = {"clip": name, "mode": mode} | continued(clip, mode, models, folder / mode)
                rows.add(row)
                sys.stdout.write(f"{row}\n")
                sys.stdout.flush()
    return rows.exit_code(otherwise=int(any("error" in row for row in rows)))


def continued(clip: Path, mode: Mode, models: Models, folder: Path) -> dict[str, object]:
    """Continue a clip by a section, and return what became of it."""
    request = GenerationRequest(
        image="", video=str(clip), prompt="the red ball moves right", seconds=1, steps=4, mode=mode, seed=7
    )
    said: list[str] = []
    try:
        result = generate(
            request, models, folder=folder,
            on_event=lambda event: said.append(event.message) if isinstance(event, Warned) else None,
        )  # fmt: skip
    except LongtakeError as error:
        return {"error": str(error)}
    found = imageio.imread(result.video, plugin="pyav")
    joint = len(found) - 36
    height, width = found.shape[1:3]
    given = np.stack([np.asarray(fit_picture(one, height, width, 0.5)) for one in all_frames(clip)])
    error = np.square(found[:joint].astype(float) - given[:joint]).mean()
    step, largest = steps_at(found, joint)
    return {
        "size": f"{width}x{height}", "before": joint, "given": len(given), "joint": round(step, 2),
        "largest": round(largest, 2), "psnr": round(float(10 * np.log10(255**2 / max(error, 1e-9))), 1),
        "said": said,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
