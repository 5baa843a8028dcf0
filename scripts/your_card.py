"""A script that writes the table of docs/your-card.md from the plans and recommendations for each card."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from huggingface_hub import constants

from app.machine import machine_of_card
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.models.sizes import published_bytes
from diffusers_helper.planning.cards.speeds import CARDS
from diffusers_helper.planning.profiles import Profile, profile_for
from diffusers_helper.planning.set_ups import SetUp, recommend, transformer_in
from diffusers_helper.planning.times import forecast
from diffusers_helper.planning.video import plan_video
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import about, duration, gb_text

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "your-card.md"
_BEGIN, _END = "<!-- scripts/your_card.py writes from here -->\n", "<!-- to here -->"
_STEPS_BEGIN, _STEPS_END = "<!-- and from here -->\n", "<!-- to there -->"
_CARDS = {
    "8 GB (RX 7600)": "gfx1100:8", "12 GB (RX 7700 XT)": "gfx1100:12", "16 GB (RX 6800)": "gfx103x:16",
    "16 GB (RX 7800 XT)": "gfx1100:16", "16 GB (RX 9070 XT)": "gfx1200:16",
    "20 GB (RX 7900 XT)": "gfx1100:20", "24 GB (RX 7900 XTX)": "gfx1100:24",
    "Strix Halo, 64 GB for the GPU": "gfx1151:64", "Strix Halo, 96 GB for the GPU": "gfx1151:96",
}  # fmt: skip
_MODELS_BEGIN, _MODELS_END = "<!-- the models begin -->\n", "<!-- the models end -->"
_MODELS = {
    "wan-5b-fast": "Wan 2.2 5B Fast", "wan-5b": "Wan 2.2 5B", "helios-distilled": "Helios Distilled*",
    "framepack-i2v": "FramePack",
}  # fmt: skip
_HEAD = (
    "memory of the card", "cap", "preserved", "on the card", "streamed per step", "copied in",
    "a step computes", "first second, first job", "free RAM", "predicted peak",
)  # fmt: skip


def documented(text: str) -> str:
    """Return the document's text with the table that the planner gives now."""
    info = find_model("framepack-i2v")
    table = _table(_HEAD, [_row(name, card, info) for name, card in _CARDS.items()])
    size = gb_text(sum(map(published_bytes, info.components)))
    small = gb_text(transformer_in(info, "int8").file_bytes)
    disk = (
        f"**Disk.** The model takes {size} GB. A copy of its transformer in int8, which is not needed here, "
        f"would take {small} GB more.\n"
    )
    text = _replaced(text, _BEGIN, f"{table}\n{disk}", _END)
    rows = [
        (name, *(_pace(name, card, find_model(model)) for model in _MODELS)) for name, card in _CARDS.items()
    ]
    text = _replaced(text, _MODELS_BEGIN, _table(("card", *_MODELS.values()), rows), _MODELS_END)
    return _replaced(text, _STEPS_BEGIN, _steps_table(info), _STEPS_END)


def _replaced(text: str, begin: str, content: str, end: str) -> str:
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.partition(end)[2]}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *rows))


def _steps_table(info: ModelInfo) -> str:
    work = _best(_profile("RX 7900 XTX", "gfx1100:24"), info).plan.work
    first_cards = {card.reported.card: card for card in CARDS if card.name == card.reported.card}
    rows = [
        (
            card.name, f"{card.reported.products / 1e12:.3g}", f"{card.reported.attention / 1e12:.3g}",
            f"{card.step(work).seconds:.3g}", card.reported.published,
        )
        for card in first_cards.values()
    ]  # fmt: skip
    head = ("card", "products, TFLOP/s", "attention, TFLOP/s", "s per step", "published, TFLOP/s")
    return _table(head, rows)


def _row(name: str, card: str, info: ModelInfo) -> tuple[str, ...]:
    best = _best(_profile(name, card), info)
    if best.settings["resolution"] or best.settings["weight_dtype"] != "default":
        raise ValueError(f"{name}: the page says that all cards keep the model's resolution and weights")
    plan, sample = best.plan, best.plan.job.stage("sample")
    cells = (
        plan.job.budget.cap_bytes, plan.job.preserved_bytes, sample.resident_bytes, plan.step_bytes,
        plan.waiting_bytes, plan.job.peak_bytes,
    )  # fmt: skip
    cap, preserved, stays, streamed, ram, peak = map(gb_text, cells)
    copied = f"{duration(plan.copy_seconds)}, {plan.copies.name}" if plan.copies and plan.step_bytes else "–"
    times = forecast(plan, _profile(name, card), info)
    if plan.computing is None or times is None:
        raise ValueError(f"{name}: no time of a step is known")
    computing = duration(plan.computing.seconds)
    begins = about(times.first_second_seconds.first_job).removeprefix("about ")
    return name, cap, preserved, stays, streamed, copied, computing, begins, ram, peak


def _pace(name: str, card: str, info: ModelInfo) -> str:
    """Estimate the seconds of video that a card makes in a minute, after the first job."""
    profile = _profile(name, card)
    plan = _best(profile, info).plan
    times = forecast(plan, profile, info)
    if times is None or times.has_decode == info.name.startswith("helios"):
        raise ValueError(
            f"{name}, {info.name}: the page says that all times but that of Helios' decoder are known"
        )
    video_seconds = plan.frames / plan.sections / info.family.fps
    return f"{60 * video_seconds / times.section_seconds:.2g}"


def _profile(name: str, card: str) -> Profile:
    return profile_for(replace(machine_of_card(card), name=name), {})


def _best(profile: Profile, info: ModelInfo) -> SetUp:
    plan = partial(plan_video, profile=profile)
    settings = {"mode": info.modes[0], "steps": info.steps, "cfg": info.cfg}
    request = GenerationRequest(image="none", model=info.name, **settings)
    return recommend(request, info, plan).set_up


if __name__ == "__main__":
    constants.HF_HUB_CACHE = ""  # the sizes are those of the table, whatever this machine has
    DOCUMENT.write_text(documented(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
