"""Clips for tests of the writer, and readers of the frames, times and boxes of an MP4."""

import struct
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import imageio.v3 as imageio
import numpy as np

from diffusers_helper.families.packing import Mode, SectionPlan, plan_sections
from diffusers_helper.output.video import GrowingVideo

FPS = 30
Sections = list[tuple[np.ndarray | None, np.ndarray | None]]
# The boxes that contain boxes, and the number of bytes before the first of those.
_PARENTS = {b"moov": 0, b"trak": 0, b"mdia": 0, b"minf": 0, b"stbl": 0, b"edts": 0, b"stsd": 8, b"avc1": 78}


def scene(num_frames: int, height: int = 64, width: int = 96) -> np.ndarray:
    """Draw a moving disc over a moving soft pattern, uint8 (T, H, W, 3); no two frames are equal."""
    time = np.arange(num_frames)[:, None, None, None]
    y, x = np.mgrid[:height, :width][:, None, :, :, None]
    phase = np.array([0.0, 2.0, 4.0])
    picture = 120 + 60 * np.sin(x / 25 + time / 10 + phase) * np.cos(y / 20 - time / 15)
    centre = width / 2 + width / 3 * np.sin(time / 9)
    disc = np.hypot(x - centre, y - height / 2) < height / 5
    return np.where(disc, np.array([220, 60, 40]), picture).astype(np.uint8)


def flat(levels: list[int], size: int = 32) -> np.ndarray:
    """Draw one grey frame per level, uint8 (T, size, size, 3)."""
    return np.broadcast_to(np.array(levels, np.uint8)[:, None, None, None], (len(levels), size, size, 3))


def cut(frames: np.ndarray, plan: SectionPlan) -> Sections:
    """Return the arguments of `add_section` for a whole clip of `plan.total_frames` frames."""
    parts: Sections = []
    done = 0
    for section in plan:
        final, pending = section.final_frames, section.pending_frames
        if plan.mode == "forward":
            parts.append((frames[done:][:final], frames[done + final :][:pending]))
        else:
            end = len(frames) - done
            parts.append((frames[end - final : end], frames[end - final - pending : end - final]))
        done += final
    return parts


def writer(folder: Path, mode: Mode = "forward", **changes: Any) -> GrowingVideo:
    folder.mkdir(exist_ok=True)
    return GrowingVideo(folder, **{"width": 96, "height": 64, "mode": mode, "crf": 16, **changes})


def parts_of(clip: np.ndarray, mode: Mode) -> Sections:
    """Return the arguments of `add_section` for a clip of 36 N + 1 frames, in the order of the calls."""
    plan = plan_sections(1.2 * (len(clip) // 36), mode=mode)
    assert plan.total_frames == len(clip)
    return cut(clip, plan)


def write(folder: Path, clip: np.ndarray, mode: Mode, **changes: Any) -> Path:
    """Write a clip of 36 N + 1 frames, and return the finished video."""
    video = writer(folder, mode, **changes)
    for final, pending in parts_of(clip, mode):
        video.add_section(final, pending)
    return video.finish()


def names(folder: Path) -> set[str]:
    """Return the relative paths of all files below a folder, including hidden ones."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def visible(frames: np.ndarray, shown: int, mode: Mode) -> np.ndarray:
    """Return the part of a clip that a version of the video with `shown` frames shows."""
    return frames[:shown] if mode == "forward" else frames[len(frames) - shown :]


def read(path: Path) -> np.ndarray:
    """Return all frames of a video, uint8 (T, H, W, 3)."""
    return imageio.imread(path, plugin="pyav")


def read_luma(path: Path) -> np.ndarray:
    """Return the decoded luma plane of all frames, uint8 (T, H, W)."""
    with av.open(path) as container:
        return np.stack([frame.to_ndarray()[: frame.height] for frame in container.decode(video=0)])


def times(path: Path) -> tuple[list[Fraction], list[Fraction]]:
    """Return the decoding times in the order of the file, and the sorted presentation times, in frames."""
    with av.open(path) as container:
        packets = [packet for packet in container.demux(video=0) if packet.pts is not None]
    unit = packets[0].time_base * FPS
    return [packet.dts * unit for packet in packets], sorted(packet.pts * unit for packet in packets)


def psnr(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the peak signal-to-noise ratio of each frame, in dB."""
    error = (a.astype(np.float64) - b).reshape(len(a), -1)
    return 10 * np.log10(255**2 / np.maximum((error**2).mean(1), 1e-9))


def boxes(data: bytes, path: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield the boxes of an MP4 in order, each as its path ("moov/trak/…") and its payload."""
    at = 0
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        assert size >= 8
        payload, name = data[at + 8 : at + size], f"{path}{kind.decode('latin1')}"
        yield name, payload
        if kind in _PARENTS:
            yield from boxes(payload[_PARENTS[kind] :], f"{name}/")
        at += size
