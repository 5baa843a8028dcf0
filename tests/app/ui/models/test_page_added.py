"""Tests of models that are added and removed while the page is open, in Chromium with a staged engine."""

from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.models.added import ADDED_MODELS, AddedComponent, AddedModel
from diffusers_helper.models.registry import find_model
from tests.support.jobs import wait_until
from tests.support.pages import (
    FIRST,
    Stand,
    choose_model,
    model_chosen,
    needs_chromium,
    notice,
    open_folds,
    start,
    status,
    strict_window,
    visit,
)

pytestmark = needs_chromium
DEMO = find_model("demo")
CARD = ".lt-model-card[data-model=mine]"


@pytest.fixture(autouse=True)
def own_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ADDED_MODELS, "file", tmp_path / "data" / "models.json")


def add(name: str, title: str) -> None:
    """Do what `models add` does after its checks, as another program would."""
    part = AddedComponent(DEMO.components["transformer"].location)
    ADDED_MODELS.add(AddedModel(name, title, "demo", {"transformer": part}))


def choices(page: Any) -> list[str]:
    return page.locator("#in-model option").all_inner_texts()


def wait_for_choice(page: Any, title: str, *, there: bool = True) -> None:
    wait_until(lambda: (title in choices(page)) == there)


def test_an_added_model_can_be_chosen_without_a_new_start(page: Any, stand: Stand, photo: Path) -> None:
    assert "My own" not in choices(page)
    add("mine", "My own")
    wait_for_choice(page, "My own")
    model_chosen(page, DEMO.title)  # the choice itself stays
    choose_model(page, "My own")
    stand.engine.go(FIRST)
    start(page, photo, seconds=2.4)
    status(page, state="running")
    assert stand.service.jobs()[0].request.model == "mine"
    visit(page, stand)
    model_chosen(page, "My own")
    assert "My own" in choices(page)


def test_a_choice_that_the_server_missed_is_made_up_for(browser: Any, stand: Stand) -> None:
    expected = "steps => document.querySelector('#set-steps input[type=number]').value === steps"
    add("mine", "My own")
    with strict_window(browser, stand, complaints=()) as page:  # Chromium itself reports the lost call
        wait_for_choice(page, "My own")
        open_folds(page)
        page.locator("#set-steps input[type=number]").fill("3")
        page.route("**/api/form_model", lambda route: route.abort("internetdisconnected"), times=1)
        choose_model(page, "My own")
        page.wait_for_function(expected, arg=str(DEMO.steps))
        model_chosen(page, "My own")


def test_a_removed_model_leaves_the_choice_and_the_form_says_so(page: Any, stand: Stand) -> None:
    add("mine", "My own")
    wait_for_choice(page, "My own")
    with page.expect_response("**/api/form_model"):  # or the choice might be answered after the removal
        choose_model(page, "My own")
    ADDED_MODELS.remove("mine")
    notice(page, "The model 'mine' was removed, so Longtake demo model is chosen.")
    model_chosen(page, DEMO.title)
    assert "My own" not in choices(page)


def test_the_tab_of_the_models_follows_the_list_and_leads_to_the_form(page: Any, stand: Stand) -> None:
    open_folds(page)
    page.locator("#set-prompt textarea").fill("the red ball moves right")
    page.locator("#set-steps input[type=number]").fill("3")
    page.get_by_role("tab", name="Models").click()
    page.wait_for_selector(".lt-models[data-state=known]")
    assert not page.locator(CARD).count()
    add("mine", "My own")
    card = page.locator(CARD)
    card.wait_for()
    assert "My own" in card.inner_text()
    page.get_by_role("button", name="Make a video with it: My own").click()
    model_chosen(page, "My own")
    assert page.locator("#set-prompt textarea").input_value() == "the red ball moves right"
    assert page.locator("#set-steps input[type=number]").input_value() == str(DEMO.steps)
    assert page.get_by_role("tab", name="Create").get_attribute("aria-selected") == "true"
    page.get_by_role("tab", name="Models").click()
    page.get_by_role("button", name="Remove: My own").click()
    question = page.get_by_role("alertdialog", name="Remove My own?")
    assert "This takes My own off the list. Its files stay where they are." in question.inner_text()
    page.get_by_role("button", name="Remove from the list").click()
    card.wait_for(state="detached")
    assert ADDED_MODELS.find("mine") is None
    assert Path(DEMO.components["transformer"].location, "config.json").is_file()
    add("other", "Another one")
    page.locator(".lt-model-card[data-model=other]").wait_for()
    ADDED_MODELS.remove("other")
    page.locator(".lt-model-card[data-model=other]").wait_for(state="detached")
