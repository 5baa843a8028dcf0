"""The temporal windows in which a job's VAE decodes, and the amount of work for each section."""

from __future__ import annotations

from diffusers_helper.families.packing import SectionPlan

# The distance of the windows of HunyuanVideo's VAE in latent frames; a window is two latent frames longer.
OWN_CHUNK = 3


def window_sizes(num_latents: int, chunk: int) -> dict[int, int]:
    """Return the start and length of each temporal window, in latent frames, as a dict.

    Windows start `chunk` latent frames apart and have `chunk + 2` of them, or fewer at the end. The first one
    of a window is a lead-in, and the last one is shared with the next window. A window that would add no
    frames is left out.
    """
    if num_latents <= chunk + 1:
        return {0: num_latents}
    return {start: min(chunk + 2, num_latents - start) for start in range(0, num_latents - 1, chunk)}


def decode_windows(plan: SectionPlan, chunk: int = OWN_CHUNK) -> tuple[tuple[int, ...], ...]:
    """Return the lengths of the windows that are decoded for each section, in latent frames.

    Sections and windows are in the order of making. Since windows overlap, they have more latent frames than
    the section. Windows that were decoded for the previous section are reused, and left out here.
    """
    work: list[tuple[int, ...]] = []
    before: set[tuple[int, int]] = set()
    for section in plan:
        sizes = window_sizes(section.decode_latents, chunk)
        windows = [(section.begin + start, size) for start, size in sizes.items()]
        work.append(tuple(window[1] for window in windows if window not in before))
        before = set(windows)
    return tuple(work)


def decode_work(plan: SectionPlan, chunk: int = OWN_CHUNK) -> tuple[int, ...]:
    """Return the number of latent frames that are decoded for each section, in order of making."""
    return tuple(map(sum, decode_windows(plan, chunk)))
