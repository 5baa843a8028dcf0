"""The sound of a finished video: that of its sources, in step with the edit, or that of another file."""

from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError, InvalidDataError

from diffusers_helper.conditions.film import open_container, picture_stream
from diffusers_helper.errors import InputError, first_line
from diffusers_helper.files import replacing
from diffusers_helper.finish.finishing import Finishing

RATE = 48_000
_BITS_PER_SECOND = 160_000
DROPPED = "The sound is left out, since it cannot follow reverse, to and fro, or another speed."


def soundtrack(finishing: Finishing, paths: list[Path], chosen: Path | None) -> np.ndarray | None:
    """Make the sound (samples, 2), int16, as long as the video; None for none."""
    seconds = finishing.result.frames / finishing.result.rate
    if chosen:
        return read_sound(chosen, Fraction(0), seconds)
    edit = finishing.edit
    if edit.mute or edit.loses_sound or not any(source.has_sound for source in finishing.sources):
        return None
    rate = finishing.sources[0].rate
    clips, fade = edit.clips(rate), max(0, edit.join)
    begins = [0, *accumulate(len(clip) - fade for clip in clips[:-1])]
    track = np.zeros((_samples(seconds), 2), np.float32)
    ramp = np.linspace(0, 1, _samples(fade / rate), dtype=np.float32)[:, None]
    sources = zip(paths, finishing.sources, clips, begins, strict=True)
    for number, (path, source, clip, begin) in enumerate(sources):
        if not source.has_sound:
            continue
        samples = read_sound(path, clip.start / rate, len(clip) / rate).astype(np.float32)
        if number:
            samples[: len(ramp)] *= ramp
        if number < len(clips) - 1:
            samples[len(samples) - len(ramp) :] *= ramp[::-1]
        target = track[_samples(begin / rate) :][: len(samples)]
        target += samples[: len(target)]
    return np.clip(np.rint(track), -32768, 32767).astype(np.int16)


def _samples(seconds: Fraction | float) -> int:
    return round(seconds * RATE)


def read_sound(path: Path, begin: Fraction, seconds: Fraction) -> np.ndarray:
    """Read a part of a file's sound (samples, 2), int16; what it lacks is silence."""
    track = np.zeros((_samples(seconds), 2), np.int16)
    try:
        with open_container(path, sounds=True) as container:
            stream = next((stream for stream in container.streams.audio if stream.codec_context), None)
            if stream is None:
                raise _refusal(path, "it has none")
            leading = picture_stream(container) or stream
            origin = Fraction(leading.start_time or 0) * (leading.time_base or 1)
            resampler = AudioResampler(format="s16", layout="stereo", rate=RATE)
            index = None
            for frame in _frames(container, stream):
                if index is None:  # later times follow from the samples
                    time = (frame.pts or 0) * (frame.time_base or 0)
                    index = _samples(time - origin) - _samples(begin)
                for part in resampler.resample(frame):
                    samples = part.to_ndarray().reshape(-1, 2)[max(0, -index) :]
                    target = track[max(0, index) :][: len(samples)]
                    target[:] = samples[: len(target)]
                    index += part.samples
                if index >= len(track):
                    break
    except (FFmpegError, OSError, ValueError) as error:
        raise error if isinstance(error, InputError) else _refusal(path, first_line(error)) from error
    return track


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    for packet in container.demux(stream):
        with suppress(InvalidDataError):
            yield from packet.decode()


def _refusal(path: Path, reason: str) -> InputError:
    return InputError(
        f"The sound of {path.name} cannot be used ({reason}); expected a file with sound.",
        "Choose another file.", setting="sound",
    )  # fmt: skip


def write_sound(samples: np.ndarray, file: Path) -> None:
    with (
        replacing(file) as temporary,
        av.open(temporary, "w", format="mp4", options={"fflags": "+bitexact"}) as output,
    ):
        stream: Any = output.add_stream("aac", rate=RATE, layout="stereo")
        stream.bit_rate = _BITS_PER_SECOND
        for begin in range(0, len(samples), RATE):
            content = samples[begin : begin + RATE].reshape(1, -1)
            frame = AudioFrame.from_ndarray(content, format="s16", layout="stereo")
            frame.sample_rate, frame.pts, frame.time_base = RATE, begin, Fraction(1, RATE)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
