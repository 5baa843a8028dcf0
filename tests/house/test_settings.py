"""Tests that each setting and sampler is written once, and all surfaces follow from `GenerationRequest`."""

import argparse
import re
from dataclasses import dataclass
from inspect import signature
from typing import Annotated, Any

import pytest

from app.commands import arguments
from app.ui.catalogue import Catalogue
from app.ui.errors import page_error, page_words
from app.ui.form import settings as form
from app.ui.form.controls import form_markup
from app.ui.generate import generate_endpoints
from app.ui.live import words
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.models.registry import find_model
from diffusers_helper.output.checkpoints import Origins
from diffusers_helper.provenance.branch import why_fixed
from diffusers_helper.provenance.lineage import Lineage, Span, merged_spans
from diffusers_helper.provenance.recipe import Recipe
from diffusers_helper.request import FINISHING, SAMPLERS, SETTINGS, GenerationRequest
from diffusers_helper.sampling import sampler
from diffusers_helper.setting import SettingInfo, settings_of
from tests.support.jobs import ROOT


@dataclass(frozen=True, kw_only=True, slots=True)
class WithGlow(GenerationRequest):
    glow: Annotated[
        float,
        SettingInfo("Glow", "How brightly `cfg` glows.", "Look", low=0, high=7, step=0.5, scope="section"),
    ] = 2.5


@pytest.fixture
def glow(monkeypatch: pytest.MonkeyPatch) -> SettingInfo:
    """Return a setting that no surface knows, as if it were a field of the request."""
    setting = settings_of(WithGlow)["glow"]
    monkeypatch.setitem(SETTINGS, "glow", setting)
    monkeypatch.setitem(form.PAGE_SETTINGS, "glow", setting)
    return setting


def test_a_new_setting_is_checked(glow: SettingInfo) -> None:
    assert WithGlow.from_dict({"image": "x", "glow": 7}).glow == 7.0
    with pytest.raises(InputError) as caught:
        WithGlow(image="x", glow=7.5)
    error = caught.value
    assert (error.setting, error.expected, error.code) == ("glow", "a number from 0 to 7", "bad_input")
    # One error, in each surface's words.
    assert str(error) == "glow is 7.5; expected a number from 0 to 7. Set glow to a value in that range."
    assert arguments.error_line(error).startswith("--glow is 7.5; expected a number from 0 to 7. Set --glow ")
    assert page_error(error)[0] == "Glow is 7.5; expected a number from 0 to 7."


def test_a_new_setting_is_an_argument(glow: SettingInfo, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    arguments.add_settings(parser)
    assert arguments.settings_from(parser.parse_args(["--glow", "3.5"]))["glow"] == 3.5
    help_text = " ".join(parser.format_help().split())
    assert "--glow N How brightly --cfg glows. It takes a number from 0 to 7 (default: 2.5)." in help_text


def test_a_new_setting_is_a_parameter_of_the_endpoint(glow: SettingInfo) -> None:
    service: Any = None
    endpoint = generate_endpoints(service, Catalogue())[0].function
    parameter = signature(endpoint).parameters["glow"]
    assert (parameter.default, parameter.annotation) == (2.5, float)


@pytest.mark.parametrize("model", ["demo", "framepack-f1", "helios-distilled", "wan-5b-fast"])
def test_the_form_begins_with_the_values_of_the_preselected_model(model: str) -> None:
    catalogue = Catalogue(model)
    result, values = form_markup(catalogue), form.defaults(find_model(model), catalogue.planner)
    for name in ("steps", "cfg", "seconds"):
        value = re.search(rf'name="{name}"[^>]* value="([^"]*)"', result)
        assert value, name
        assert float(value[1]) == values[name], name


def test_a_new_setting_is_a_control_that_is_kept_and_reset(glow: SettingInfo) -> None:
    made = form_markup(Catalogue())
    bounds = 'min="0" max="7" step="0.5" value="2.5"'
    assert f'name="glow" aria-label="number input for Glow" {bounds}' in made
    assert f'<input type="range" aria-label="range slider for Glow" {bounds}' in made
    assert '<span class="lt-info">How brightly CFG Scale glows.</span>' in made
    assert form.defaults(find_model("demo"), Catalogue().planner)["glow"] == 2.5
    assert form.usable_values(Catalogue(), '{"glow": 6.5}')["glow"] == 6.5
    assert "glow" not in form.usable_values(Catalogue(), '{"glow": 7.5}')
    assert ("Glow", "5", False) in words.settings(WithGlow(image="x", glow=5))
    assert words.settings(WithGlow(image="x", steps=4)) == [
        ("Seed", "31337", False), ("Model", "Longtake demo model", False),
    ]  # fmt: skip


def test_a_new_setting_is_recorded_where_it_differs_from_its_default(glow: SettingInfo) -> None:
    plain, glowing = WithGlow(image="x", seconds=3.6), WithGlow(image="x", seconds=3.6, glow=5)
    facts: dict[str, Any] = {"model": None, "side": 64, "made_with": {}, "pictures": {}}
    assert "glow" not in Recipe.of(plain, (), (), **facts).settings
    assert Recipe.of(glowing, (), (), **facts).settings["glow"] == 5.0
    assert "glow" not in Origins(plain, Lineage(), {"picture": "0"}, FRAMEPACK).of_section(1)
    assert Origins(glowing, Lineage(), {"picture": "0"}, FRAMEPACK).of_section(1)["glow"] == "5.0"


def test_a_branch_may_change_a_new_setting(glow: SettingInfo) -> None:
    assert why_fixed("glow") is None
    plain, glowing = WithGlow(image="x", seconds=3.6), WithGlow(image="x", seconds=3.6, glow=5)
    # A span without the setting, as an earlier version wrote it, was made with the default.
    for before, after in ((plain, glowing), (glowing, plain)):
        lineage = Lineage((Span.of(1, before),))
        assert [lineage.request_for(number, after) for number in (1, 2)] == [before, after]
        assert merged_spans(lineage.spans, after) == lineage.spans
    assert "glow" not in Span.of(1, plain).settings


def test_every_setting_is_on_every_surface() -> None:
    parser = argparse.ArgumentParser()
    arguments.add_settings(parser)
    service: Any = None
    endpoint = signature(generate_endpoints(service, Catalogue())[0].function).parameters
    controls = form_markup(Catalogue())
    for name, setting in SETTINGS.items():
        assert setting.help.endswith(".")
        assert f"--{name.replace('_', '-')} " in parser.format_help()
        assert (name in endpoint) == (name not in FINISHING)
        assert (f' name="{name}"' in controls) == setting.on_page


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_has_its_module(name: str) -> None:
    assert sampler(name).__name__ == f"sample_{name}"
    assert (ROOT / "diffusers_helper" / "sampling" / f"{name}.py").is_file()
    assert GenerationRequest(image="x", sampler=name).sampler == name


def test_what_a_user_wrote_is_never_taken_for_a_setting() -> None:
    with pytest.raises(InputError) as caught:
        GenerationRequest(image="x", mode="`steps`")
    assert page_error(caught.value)[0].startswith("Order is ''steps''; expected inverted or forward")


def test_names_that_no_surface_knows_stay() -> None:
    error = LongtakeError("`nothing` failed.", "Ask `doctor`, or look at `a b`.")
    assert str(error) == "nothing failed. Ask longtake doctor, or look at `a b`."
    assert page_words(error.remedy) == "Ask longtake doctor, or look at `a b`."
    assert arguments.error_line(error) == str(error)
