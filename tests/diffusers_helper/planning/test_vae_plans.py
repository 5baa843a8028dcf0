"""Tests of which plans a VAE has, which of them fit, and what each of them takes."""

from itertools import groupby
from typing import Any

from syrupy.assertion import SnapshotAssertion

from diffusers_helper.planning.vae import Task, VaeSettings, Video, plan_vae, vae_plans
from diffusers_helper.planning.vae_estimates import VaeNeeds, even_tiles
from tests.support.answers import text_of

PICTURE, SHORT, LONG = Video(1, 480, 640), Video(4, 480, 640), Video(21, 480, 832)
CASES: list[tuple[Video, dict[str, Any]]] = [
    (PICTURE, {"fallback_px": 256, "overlap": 0.0}), (SHORT, {"fallback_px": 900}), (Video(5, 480, 640), {}),
    (SHORT, {"chunk": 4, "precision": "fp16"}), (LONG, {"chunk": 2, "precision": "bf16", "fallback_px": 300}),
    (LONG, {"tile_px": 831, "overlap": 0.1, "precision": "fp32"}), (LONG, {"tile_px": 832}),
    (LONG, {"largest_px": 256, "overlap": 0.5}), (LONG, {"largest_px": 832}),
]  # fmt: skip


def needs(has_stream: bool) -> VaeNeeds:
    def decode_bytes(latents: int, height: int, width: int, all_latents: int) -> int:
        return 1000 * latents + height * width // 1000 + 10**6 * all_latents

    return VaeNeeds(has_stream, 0, decode_bytes, lambda *sizes: 10 * decode_bytes(*sizes))


def test_the_plans_of_a_vae(snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for video, changes in CASES:
        for has_stream in (False, True):
            plans = vae_plans(needs(has_stream), video, "decode", VaeSettings(**changes))
            sides = [(plan.tiles.side, plan.tiles.overlap) for plan in plans if plan.time == plans[-1].time]
            lines += [] if has_stream else [f"{text_of(video)}, {changes}: {text_of(sides)}"]
            for time, group in groupby(plans, key=lambda plan: plan.time):
                first, *_, last = [*group] * 2
                sizes = first.working_bytes, last.working_bytes
                lines[-1] += f" | {time} {first.chunk}: {first.reason} {last.reason} {sizes}"
    tasks: tuple[Task, ...] = ("encode", "decode")
    encode, decode = (vae_plans(needs(True), PICTURE, task, VaeSettings()) for task in tasks)
    assert [plan.working_bytes for plan in encode] == [10 * plan.working_bytes for plan in decode]
    assert "\n".join(lines) == snapshot


def test_the_first_plan_that_fits_is_followed_by_smaller_ones() -> None:
    plans = vae_plans(needs(True), PICTURE, "decode", VaeSettings(fallback_px=300))
    sides = [plan.tiles.side for plan in plans]
    whole, first = plans[0].working_bytes, plans[1].working_bytes
    for free, share, batch, expected in (
        (whole, 1.0, 1, sides), (whole - 1, 1.0, 1, sides[1:]), (2 * whole, 0.5, 1, sides),
        (2 * whole - 1, 0.5, 1, sides[1:]), (first, 1.0, 1, sides[1:]), (1, 1.0, 1, sides[-1:]),
        (3 * whole + 1, 1.0, 3, sides), (0, 1.0, 1, sides[-1:]),
    ):  # fmt: skip
        for is_batch in (False, True):
            chosen = plan_vae(plans, free, VaeSettings(memory_threshold=share, batch=is_batch))
            assert [plan.tiles.side for plan in chosen] == expected
            assert chosen[0].batch == (batch if is_batch else 1)
    assert [even_tiles(832, 256, overlap) for overlap in (0, 64, 128)] == [(4, 208), (4, 256), (6, 246)]
