"""Tests of the arithmetic of branches, without a model."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusers_helper.errors import InputError
from diffusers_helper.families.packing import MODES, Mode, count_sections, plan_sections
from diffusers_helper.provenance.branch import (
    Branch,
    branch,
    change_remaining,
    extension,
    kept_words,
    may_differ,
    num_finished_sections,
    why_fixed,
)
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage, Span, merged_spans, setting_names
from diffusers_helper.provenance.recipe import VaeUse, read_uses, write_uses
from diffusers_helper.request import SETTINGS, GenerationRequest

both = st.sampled_from(MODES)


def request(mode: Mode, sections: int, **settings: Any) -> GenerationRequest:
    return GenerationRequest(image="x", mode=mode, seconds=max(1.0, 1.2 * sections), **settings)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    """Return the folder of a job with as many finished sections as any video has; the files are empty."""
    made = JobFolder(tmp_path_factory.mktemp("job"))
    made.sections.mkdir()
    for number in range(1, 101):
        (made.sections / f"{number:04}.safetensors").touch()
    return made


@given(mode=both, sections=st.integers(2, 30), data=st.data())
def test_kept_sections_keep_their_positions_and_new_ones_get_those_of_the_new_length(
    mode: Mode, sections: int, data: Any
) -> None:
    keep = data.draw(st.integers(1, sections - 1))
    total = data.draw(st.integers(keep + 1, 40))
    old, new = request(mode, sections), request(mode, total, seed=1)
    lineage = Lineage((Span.of(keep, old),))
    plan = lineage.sections(new)
    before, after = plan_sections(old.seconds, mode=mode), plan_sections(new.seconds, mode=mode)
    assert len(plan) == total
    assert [s.indices for s in plan][:keep] == [s.indices for s in before][:keep]
    assert plan.sections[keep:] == after.sections[keep:]
    # Whatever decides which frames are decoded, blended and counted is that of the new video.
    for one, other in zip(plan, after, strict=True):
        assert replace(one, padding=0, indices=other.indices) == replace(other, padding=0)
    assert [lineage.request_for(n, new).seed for n in range(1, total + 1)] == [31337] * keep + [1] * (
        total - keep
    )


@settings(max_examples=40)
@given(mode=both, sections=st.integers(2, 12), data=st.data())
def test_a_branch_of_a_branch_keeps_the_settings_of_each_section(
    job: JobFolder, mode: Mode, sections: int, data: Any
) -> None:
    job.lineage.unlink(missing_ok=True)
    current, lineage = request(mode, sections), Lineage()
    for _ in range(data.draw(st.integers(1, 4))):
        total = count_sections(current.seconds)
        keep = data.draw(st.integers(1, total - 1))
        seconds = 1.2 * data.draw(st.integers(keep + 1, 14))
        made = branch(job, current, keep, {"seed": data.draw(st.integers(0, 2)), "seconds": seconds})
        for number in range(1, keep + 1):
            old, new = lineage.request_for(number, current), made.lineage.request_for(number, made.request)
            assert Span.of(0, old) == Span.of(0, new)
        assert made.lineage.request_for(keep + 1, made.request) == made.request
        assert (made.lineage.kept, made.lineage.parent) == (keep, job.job)
        made.lineage.write(job.lineage)
        current, lineage = made.request, Lineage.read(job.lineage)
        assert lineage == made.lineage


@settings(max_examples=40)
@given(mode=both, sections=st.integers(1, 99), seconds=st.floats(0.01, 119))
def test_an_extension_adds_whole_sections_and_at_least_one(
    job: JobFolder, mode: Mode, sections: int, seconds: float
) -> None:
    job.lineage.unlink(missing_ok=True)
    old = request(mode, sections)
    added = max(1, round(seconds / 1.2))
    if sections + added > 100 or (mode == "inverted" and sections == 1):
        with pytest.raises(InputError):
            extension(job, old, seconds)
        return
    made = extension(job, old, seconds)
    assert count_sections(made.request.seconds) == sections + added
    assert made.lineage.kept == (sections if mode == "forward" else sections - 1)
    # A longer forward video is the same as one that was made so from the start.
    assert bool(merged_spans(made.lineage.spans, made.request)) == (mode == "inverted")


def test_each_setting_may_differ_or_has_a_reason() -> None:
    assert set(may_differ()) < set(SETTINGS)
    fixed = {name: why_fixed(name) for name in SETTINGS if name not in may_differ()}
    assert all(reason and reason.endswith(".") for reason in fixed.values())
    assert all(why_fixed(name) is None for name in may_differ())


def test_it_is_said_what_is_kept() -> None:
    assert "first 2.4 s" in kept_words(request("forward", 4), 2)
    assert "last 2.4 s" in kept_words(request("inverted", 4), 2)
    assert "what comes before them is made anew" in kept_words(request("inverted", 4), 2)


@pytest.mark.parametrize(
    "spans",
    [[{"sections": 0.5, "settings": {}}], [{"sections": 1}], [{"sections": 1, "settings": {"crf": 1}}], [7]],
)
def test_a_damaged_lineage_is_told(tmp_path: Path, spans: list[Any]) -> None:
    file = tmp_path / "lineage.json"
    file.write_text(f'{{"parent": "", "kept": 1, "spans": {spans}}}'.replace("'", '"'))
    with pytest.raises(InputError, match=r"lineage\.json is damaged"):
        Lineage.read(file)


def test_a_span_of_an_inverted_video_ends_before_its_section_with_the_picture() -> None:
    shorter = request("inverted", 3).seconds
    for last, fits in ((2, True), (3, False)):
        refused = contextlib.nullcontext() if fits else pytest.raises(InputError, match="from 1 to 2")
        with refused:
            Lineage((Span(last, {"seconds": shorter}),)).sections(request("inverted", 6))


@pytest.mark.parametrize("lasts", [[2, 2], [3, 2], [4], [0]])
def test_spans_that_do_not_fit_are_refused(lasts: list[int]) -> None:
    with pytest.raises(InputError, match="expected a section from"):
        Lineage(tuple(Span(last, {}) for last in lasts)).sections(request("inverted", 4))


SECTION = {
    "prompt": "x", "negative": "x", "seconds": 9.0, "seed": 1, "steps": 3, "guidance": 2.0, "cfg": 3.0,
    "cfg_rescale": 0.5, "sampler": "euler", "prompt_blend": 2, "shift": 9.0, "step_cache": "teacache",
    "end_strength": 0.2, "vision_change": "constant",
}  # fmt: skip


def test_a_span_restores_each_setting_of_its_sections_and_no_other() -> None:
    assert SECTION.keys() <= {*setting_names("section")}
    plain = replace(request("inverted", 4), crf=30, vram_cap_gb=5.0)
    for name, value in SECTION.items():
        changed = replace(plain, **{name: value})
        assert getattr(changed, name) != getattr(plain, name)
        for own, other in ((plain, changed), (changed, plain)):
            assert Span.of(1, own).applied_to(replace(other, crf=20)) == replace(own, crf=20)
    forward = Span.of(1, request("forward", 4)).applied_to(request("forward", 9))
    assert forward.seconds == request("forward", 9).seconds  # no section of its depends on the length


def test_neighbouring_spans_with_the_same_settings_are_told_as_one() -> None:
    last = request("forward", 9)
    spans = [Span.of(number, replace(last, seed=seed)) for number, seed in enumerate((5, 5, 6, 6, 5, 7), 1)]
    merged = merged_spans(spans, replace(last, seed=7))
    assert [(span.last, span.settings["seed"]) for span in merged] == [(2, 5), (4, 6), (5, 5)]


@pytest.mark.parametrize("mode", MODES)
def test_what_is_kept_of_a_job_comes_with_the_files_that_say_how_it_was_made(
    mode: Mode, tmp_path: Path
) -> None:
    parent, child = JobFolder(tmp_path / "parent"), JobFolder(tmp_path / "child")
    child.path.mkdir()
    for subfolder in (parent.sections, parent.segments, parent.thumbs):
        subfolder.mkdir(parents=True)
    for number in range(1, 6):
        for file in (parent.latents(number), parent.segment(number), parent.thumb(number)):
            file.write_text(f"{number}")
    single = "encodings", "overflow", "weight_type", "original", "first"
    others = "memory", "attention", "crash_record", "preview", "video"
    for name in (*single, *others):
        getattr(parent, name).write_text(name)
    parent.sums.write_text('{"0001.mp4": "a", "0003.mp4": "c"}')  # that of the second was never made
    uses = tuple(VaeUse(number, 64 * (number + 1), "fp16", 2) for number in (0, 1, 3, 4))
    write_uses(parent.vae, uses)
    Lineage((Span(1, {"seed": 5}), Span(4, {"seed": 6})), "grandparent", 4).write(parent.lineage)
    assert num_finished_sections(parent) == 5
    old = request(mode, 6)
    made = branch(parent, old, 3, {"seed": 9, "seconds": old.seconds, "crf": old.crf})
    assert (made.request.seed, made.request.vae_tile, made.request.vae_precision) == (9, 320, "fp16")
    assert (made.lineage.parent, made.lineage.kept) == ("parent", 3)
    assert [(span.last, span.settings["seed"]) for span in made.lineage.spans] == [(1, 5), (3, 6)]
    made.fill(child)
    names = {path.relative_to(child.path).as_posix() for path in child.path.rglob("*") if path.is_file()}
    kept = {f"sections/000{n}.safetensors" for n in (1, 2, 3)} | {f"thumbs/000{n}.webp" for n in (1, 2, 3)}
    files = {getattr(parent, name).name for name in single}
    assert names == kept | files | {"segments/0001.mp4", "segments/sums.json", "vae.json", "lineage.json"}
    assert (child.latents(3).read_text(), child.sums.read_text()) == ("3", '{\n "0001.mp4": "a"\n}')
    assert read_uses(child.vae) == uses[:2]
    assert Lineage.read(child.lineage) == made.lineage
    bare = JobFolder(tmp_path / "bare")
    bare.path.mkdir()
    Branch(old, Lineage(kept=0), parent).fill(bare)  # the start picture's encoding and the VAE's use for it
    assert read_uses(bare.vae) == uses[:1]


def test_what_remains_of_a_job_changes_and_what_is_made_stays_of_its_kind(tmp_path: Path) -> None:
    old = replace(request("forward", 9), vae_tile=64)
    changed, lineage = change_remaining(JobFolder(tmp_path), old, {"seed": 3})
    assert (changed, lineage) == (replace(old, seed=3), Lineage())
    (tmp_path / "sections").mkdir()
    for number in (1, 2):
        JobFolder(tmp_path).latents(number).touch()
    Lineage((Span(1, {"seed": 8}),), "parent", 1).write(tmp_path / "lineage.json")
    write_uses(JobFolder(tmp_path).vae, (VaeUse(0, 512, "bf16", 4),))
    changed, lineage = change_remaining(JobFolder(tmp_path), old, {"seed": 3})
    assert changed == replace(old, seed=3)  # its checkpoints were made with these settings of the VAE
    assert (lineage.parent, lineage.kept, [span.last for span in lineage.spans]) == ("parent", 1, [1, 2])
    with pytest.raises(InputError, match="cannot change crf"):
        change_remaining(JobFolder(tmp_path / "not begun"), old, {"crf": 40})
