"""The windows of time in which a job's VAE decodes, and the work that they are for each section."""

from __future__ import annotations

from diffusers_helper.packing import SectionPlan

# The latent frames by which windows of HunyuanVideo's VAE advance; a window has two more latent frames.
OWN_CHUNK = 3


def window_sizes(num_latents: int, chunk: int) -> dict[int, int]:
    """Return the windows of time, which advance by `chunk` latent frames: the first of each, and its length.

    A window has `chunk + 2` latent frames, or those that are left: the first leads in, the last is shared
    with the next window. A window that would add no frame is left out.
    """
    if num_latents <= chunk + 1:
        return {0: num_latents}
    return {start: min(chunk + 2, num_latents - start) for start in range(0, num_latents - 1, chunk)}


def decode_windows(plan: SectionPlan, chunk: int = OWN_CHUNK) -> tuple[tuple[int, ...], ...]:
    """Return the lengths, in latent frames, of the windows that each section's decode computes.

    Sections and windows come in the order of making. Windows overlap, so that their latent frames are more
    than the section's; windows that were decoded for the section before are reused.
    """
    work: list[tuple[int, ...]] = []
    before: set[tuple[int, int]] = set()
    for section in plan:
        # Places are counted from the point where the video began to grow, as in `History.to_decode`.
        total = plan.window * section.number + (plan.mode == "forward" or section.is_last)
        begin = -total if plan.mode == "inverted" else total - section.decode_latents
        sizes = window_sizes(section.decode_latents, chunk)
        windows = [(begin + start, size) for start, size in sizes.items()]
        work.append(tuple(window[1] for window in windows if window not in before))
        before = set(windows)
    return tuple(work)


def decode_work(plan: SectionPlan, chunk: int = OWN_CHUNK) -> tuple[int, ...]:
    """Return the latent frames that each section's decode computes, in order of making."""
    return tuple(map(sum, decode_windows(plan, chunk)))
