"""Branches, which are new jobs that begin with the finished sections of another one and then differ from it.

A branch gives the same bytes as a job that makes all sections itself with the same settings for each.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diffusers_helper.errors import InputError
from diffusers_helper.families.packing import MAX_SECONDS
from diffusers_helper.files import link_or_copy, sync_folder, write_atomic
from diffusers_helper.models.registry import model_family, plan_of
from diffusers_helper.provenance.job_folder import JobFolder, read_record
from diffusers_helper.provenance.lineage import Lineage, Span, setting_names
from diffusers_helper.provenance.recipe import read_uses, write_uses
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import count_text
from diffusers_helper.untrusted.limited_json import plain_texts

_WHY_FIXED: dict[str, str] = {
    "image": "The kept sections begin or end at this picture.",
    "video": "The kept sections continue this video.",
    **dict.fromkeys(
        ("crop", "crop_y", "zoom", "picture_shape"), "The kept sections begin or end at this picture."
    ),
    "end_image": "The kept sections were made to lead to this picture, or to none.",
    "end_crop": "The kept sections were made to lead to this picture, or to none.",
    "mode": "The kept sections were made in this order.",
    "resolution": "All frames of a video have one size.",
    "model": "The kept sections are latents of this model, which another one would decode differently.",
    "crf": "The kept sections were already encoded with it.",
    "lora": "The kept sections were made with it, or without one.",
}


def may_differ() -> tuple[str, ...]:
    return setting_names("section", "memory")


def why_fixed(name: str) -> str | None:
    if name in may_differ():
        return None
    work = "already decoded" if name in setting_names("vae") else "made"
    return _WHY_FIXED.get(name, f"The kept sections were {work} with it.")


def check_changes(request: GenerationRequest, changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        reason = why_fixed(name)
        if reason and value != getattr(request, name, None):
            raise InputError(
                f"A branch cannot change `{name}`. {reason}", "Leave it as it is, or make a new video.",
                setting=name,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Branch:
    request: GenerationRequest
    lineage: Lineage
    parent: JobFolder

    def fill(self, folder: JobFolder) -> None:
        """Link or copy the kept files. They never change, so links stay valid if the parent is removed."""
        num_kept = self.lineage.kept
        parent = self.parent
        # The last kept section is decoded again, since some of its frames are blended with the next section.
        # Its thumbnail is replaced then.
        stored_sums = read_sums(parent.sums)
        names = [parent.segment(number).name for number in range(1, num_kept)]
        sums = {name: stored_sums[name] for name in itertools.takewhile(stored_sums.__contains__, names)}
        numbers = range(1, num_kept + 1)
        files = (
            *map(parent.latents, numbers), *(parent.segments / name for name in sums),
            *map(parent.thumb, numbers), parent.encodings, parent.overflow, parent.weight_type,
            parent.original, parent.first,
        )  # fmt: skip
        for file in filter(Path.is_file, files):
            target = folder.path / file.relative_to(parent.path)
            target.parent.mkdir(exist_ok=True)
            link_or_copy(file, target)
        if sums:
            write_atomic(folder.sums, json.dumps(sums, indent=1).encode())
        for subfolder in filter(Path.is_dir, folder.path.iterdir()):
            sync_folder(subfolder)  # the job's folder itself is synced when all is in it
        uses = tuple(use for use in read_uses(parent.vae) if use.section < max(num_kept, 1))
        if uses:
            write_uses(folder.vae, uses)
        self.lineage.write(folder.lineage)


def num_finished_sections(folder: JobFolder) -> int:
    return next(number for number in itertools.count() if not folder.latents(number + 1).is_file())


def max_kept_sections(request: GenerationRequest) -> int:
    if request.one_frame:
        return 0
    return sum(not (section.has_start or section.is_closing) for section in plan_of(request))


def branch(folder: JobFolder, request: GenerationRequest, keep: int, changes: Mapping[str, Any]) -> Branch:
    max_keep = min(num_finished_sections(folder), max_kept_sections(request))
    if max_keep < 1:
        raise InputError(
            f"Job {folder.job} has no finished section before the one that begins with the picture; expected "
            "at least one to keep.",
            "Make a new video instead.",
        )
    if not 1 <= keep <= max_keep:
        raise InputError(
            f"{count_text(keep, 'section')} of job {folder.job} cannot be kept; expected a number from 1 to "
            f"{max_keep}.",
            "Keep another number of sections.",
        )
    check_changes(request, changes)
    new_request = replace(request, **{name: value for name, value in changes.items() if name in may_differ()})
    if (sections := len(plan_of(new_request))) <= keep:
        raise InputError(
            f"The video would have {count_text(sections, 'section')}, of which {keep} are to be kept; "
            "expected at least one new section.",
            "Choose a longer video, or keep fewer sections.",
            setting="seconds",
        )
    parent_lineage = Lineage.read(folder.lineage)
    spans = [replace(span, last=min(span.last, keep)) for span in parent_lineage.spans if span.last < keep]
    lineage = Lineage((*spans, Span.of(keep, parent_lineage.request_for(keep, request))), folder.job, keep)
    lineage.sections(new_request, model_family(new_request.model))  # raises an error if the spans do not fit
    for use in read_uses(folder.vae)[-1:]:  # the VAE's plan in the parent may have set these
        new_request = replace(new_request, **use.settings)
    return Branch(new_request, lineage, folder)


def extension(
    folder: JobFolder, request: GenerationRequest, seconds: float, changes: Mapping[str, Any] | None = None
) -> Branch:
    """Continue a forward video; make an inverted one's section with the start picture anew, and longer."""
    if num_finished_sections(folder) < len(plan_of(request)):
        raise InputError(
            f"Job {folder.job} is not finished; expected a finished video.",
            "Let it finish, or branch from one of its sections.",
        )
    family = model_family(request.model)
    plan = family.plain_sections(request)
    sections, section_seconds = len(plan), plan.section_seconds
    max_sections = len(family.plain_sections(request, MAX_SECONDS))
    num_sections = sections + max(1, round(seconds / section_seconds)) if seconds > 0 else 0
    if not sections < num_sections <= max_sections:
        remaining_seconds = max(0, max_sections - sections) * section_seconds
        raise InputError(
            f"The video has {sections} of at most {max_sections} sections, and {seconds:g} s were to be "
            f"added; expected more than 0 and at most {remaining_seconds:g} s.",
            "Choose another number of seconds.",
            setting="seconds",
        )
    changes = {**(changes or {}), "seconds": round(num_sections * section_seconds, 3)}
    return branch(folder, request, max_kept_sections(request), changes)


def change_remaining(
    folder: JobFolder, request: GenerationRequest, changes: Mapping[str, Any]
) -> tuple[GenerationRequest, Lineage]:
    lineage = Lineage.read(folder.lineage)
    if not num_finished_sections(folder):
        check_changes(request, changes)
        return replace(request, **changes), lineage
    branched = branch(folder, request, num_finished_sections(folder), changes)
    # The checkpoints were made with these settings of the VAE.
    vae = {name: getattr(request, name) for name in setting_names("vae")}
    new_lineage = replace(branched.lineage, parent=lineage.parent, kept=lineage.kept)
    return replace(branched.request, **vae), new_lineage


def kept_words(request: GenerationRequest, keep: int) -> str:
    seconds = f"{keep * plan_of(request).section_seconds:.1f} s"
    if request.mode == "forward":
        return f"The first {seconds} stay, and what follows is made anew."
    return f"The last {seconds} stay, and what comes before them is made anew."


def read_sums(file: Path) -> dict[str, str]:
    return read_record(file, plain_texts, {})
