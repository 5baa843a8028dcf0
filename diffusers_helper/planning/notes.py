"""The sentences of a plan: on limits that gave way, on what changes pixels, and on what makes it slow."""

from diffusers_helper.attention.backends import SLICED
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.planning.budget import JobPlan
from diffusers_helper.planning.profiles import YOU, Profile, Setting
from diffusers_helper.planning.smaller_plans import FirstPlan
from diffusers_helper.planning.vae import DEFAULT_CHUNK
from diffusers_helper.units import duration, gb_text

_HELPED = (
    "A second card encodes texts and pictures and decodes, so the transformer stays on the first one between "
    "the sections."
)
COMPILES = "The first step compiles the transformer's blocks, which may take minutes; later steps are faster."
# The command that deletes the smaller plans of jobs that ran out of memory.
FORGET = "longtake doctor --forget-smaller-plans"


def choice_notes(first: FirstPlan) -> tuple[str, ...]:
    attention = attention_note(first.levels.demands[0].attention)
    notes = (first.reason, attention, *limit_notes(first.levels.plan, first.profile))
    return tuple(filter(None, notes))


def attention_note(attention: Setting[str]) -> str:
    if attention.value != SLICED or attention.source == YOU:
        return ""
    return f"Attention is computed in slices, which takes longer, because {attention.reason}."


def limit_notes(job: JobPlan, profile: Profile) -> list[str]:
    notes, budget, default = list[str](), job.budget, profile.cap_bytes
    cap, total = budget.cap_bytes, budget.total_bytes
    if budget.max_cap_bytes and cap > default.value:
        notes.append(
            f"The default cap of {gb_text(default.value)} GB is too small for this video, which gets "
            f"{gb_text(cap, round_up=True)} GB. {gb_text(total - cap)} of {gb_text(total)} GB stay free for "
            f"other programs, instead of {gb_text(total - default.value)} GB."
        )
    if job.preserved_bytes < budget.preserved_bytes:
        notes.append(
            f"Of the {gb_text(budget.preserved_bytes)} GB to preserve, {gb_text(job.preserved_bytes)} GB are "
            f"preserved under the cap of {gb_text(cap, round_up=True)} GB, since some weights stay on "
            f"the device. {gb_text(job.stage('sample').streamed_bytes)} GB are streamed in each pass."
        )
    return notes


def notes_of(first: FirstPlan, info: ModelInfo, side: int) -> list[str]:
    request, profile, levels = first.request, first.profile, first.levels
    job, largest = levels.plan, levels.demands[0]
    tile = job.vae_tile_px
    notes = limit_notes(job, profile)
    if job.helper:
        notes.append(_HELPED)
    elif job.keep_all_resident:
        notes.append("Everything fits at once and stays on the device.")
    if levels.reason:
        card = "machine" if profile.machine.kind == "cpu" else "card"
        notes.append(
            f"Memory ran out on this {card} before, so the plan is smaller than it could be: "
            f"{levels.reason}. `{FORGET}` discards this."
        )
    if tile and tile < side:
        instead = f" instead of {largest.vae_tile_px}" if tile != largest.vae_tile_px else ""
        notes.append(f"The VAE works in tiles of {tile} pixels{instead}, which changes the pixels slightly.")
    if request.vae_chunk != DEFAULT_CHUNK and "vae_chunk" not in info.family.ignored:
        notes.append(
            f"The VAE chunk is {request.vae_chunk} instead of the VAE's own {DEFAULT_CHUNK}, which changes "
            "the pixels slightly."
        )
    remarks = profile.preserved_advice(job.budget), first.reason, attention_note(largest.attention)
    return [*notes, *filter(None, remarks)]


def slow_note(streamed_bytes: int, free_bytes: int, seconds: float | None, fewest: JobPlan | None) -> str:
    speed = f"about {duration(seconds)} per step" if seconds else "the disk's speed is not known yet"
    fewest_bytes = fewest.stage("sample").streamed_bytes if fewest else streamed_bytes
    advice = ""
    if fewest and fewest_bytes < streamed_bytes:
        preserved = gb_text(fewest.budget.preserved_bytes)
        advice = f"preserve {preserved} GB, with which {gb_text(fewest_bytes)} GB are streamed; "
    return (
        f"{gb_text(streamed_bytes)} GB of streamed weights do not fit into {gb_text(free_bytes)} GB of free "
        f"main memory, so each step reads them from the disk again ({speed}). What helps: {advice}a copy "
        "with 8-bit weights, which longtake models convert writes and which needs about two thirds as "
        "much; a smaller model; closing other programs."
    )
