"""The latents made so far, and the parts of them that a section and its decode need."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from diffusers_helper.errors import LongtakeError
from diffusers_helper.guidance import Context
from diffusers_helper.job_folder import write_atomic
from diffusers_helper.packing import HISTORY, HISTORY_1X, HISTORY_2X, HISTORY_4X, Mode, Section

_KEY = "latents"


class History:
    """Latents in order of time, fp32 on the CPU.

    Attributes:
        start: (1, 16, 1, h, w), the picture's.
        latents: (1, 16, T, h, w), all that is real so far. Forward mode begins with the picture's, inverted
            mode gets it with the last section.
    """

    def __init__(self, mode: Mode, start: Tensor) -> None:
        self._mode, self.start = mode, start
        self.latents = start if mode == "forward" else start[:, :, :0]

    def add(self, window: Tensor, section: Section) -> None:
        """Takes the latents (1, 16, W, h, w) of a section."""
        if self._mode == "forward":
            self.latents = torch.cat([self.latents, window], dim=2)
        else:
            front = [self.start, window] if section.is_last else [window]
            self.latents = torch.cat([*front, self.latents], dim=2)

    def context(self, section: Section) -> Context:
        """What the section sees: the picture, and the latents nearest to it, zero where there are none."""
        shape = list(self.start.shape)
        shape[2] = HISTORY
        nothing = self.start.new_zeros(shape)
        if self._mode == "forward":
            near = torch.cat([nothing, self.latents[:, :, -HISTORY:]], dim=2)[:, :, -HISTORY:]
            history_4x, history_2x, history_1x = near.split([HISTORY_4X, HISTORY_2X, HISTORY_1X], dim=2)
        else:
            near = torch.cat([self.latents[:, :, :HISTORY], nothing], dim=2)[:, :, :HISTORY]
            history_1x, history_2x, history_4x = near.split([HISTORY_1X, HISTORY_2X, HISTORY_4X], dim=2)
        return Context(section.indices, self.start, history_1x, history_2x, history_4x)

    def to_decode(self, section: Section) -> tuple[Tensor, int]:
        """The latents to decode after a section, which has been added, and the place of the first.

        Places are counted from where the video began to grow: the picture, or the video's end.
        """
        count, total = section.decode_latents, self.latents.shape[2]
        if self._mode == "inverted":
            return self.latents[:, :, :count], -total
        return self.latents[:, :, -count:], total - count


def section_file(folder: Path, number: int) -> Path:
    """Where the latents of a section are kept in a job's folder for them."""
    return folder / f"{number:04}.safetensors"


def save_section(folder: Path, number: int, window: Tensor) -> None:
    """Keeps the latents of a section: the file is whole or not there."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(section_file(folder, number), save({_KEY: window.contiguous()}))


def load_sections(folder: Path, shape: tuple[int, ...]) -> dict[int, Tensor]:
    """The latents of the sections that a job has finished, by number from 1 on without a gap.

    Raises:
        LongtakeError: if a file is damaged or its latents have another shape.
    """
    found: dict[int, Tensor] = {}
    while (file := section_file(folder, len(found) + 1)).is_file():
        try:
            window = load_file(file)[_KEY]
        except (OSError, SafetensorError, KeyError) as error:
            raise LongtakeError(f"{file} cannot be read ({error}).", "Delete it to make it again.") from error
        if tuple(window.shape) != shape:
            raise LongtakeError(
                f"{file} holds latents of shape {tuple(window.shape)}; expected {shape}.",
                "Resume with the request that the job was started with.",
            )
        found[len(found) + 1] = window
    return found
