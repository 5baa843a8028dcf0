"""Tests of the preview of the section in the making."""

from pathlib import Path
from typing import Any

from diffusers_helper.request import GenerationRequest
from tests.support.pages import Stand, module, needs_chromium

pytestmark = needs_chromium


def test_the_preview_can_be_put_away_and_stays_away(page: Any, stand: Stand, photo: Path) -> None:
    stand.service.queue.add(GenerationRequest(image=str(photo), prompt="the red ball moves right"))
    stand.engine.go(4)
    page.locator(".lt-latent").wait_for()
    small = page.locator(".lt-latent").bounding_box()["width"]
    page.get_by_role("button", name="Enlarge").click()
    assert page.locator(".lt-latent").bounding_box()["width"] > 1.5 * small
    page.get_by_role("button", name="Hide").click()
    page.reload()
    page.get_by_role("button", name="Show preview").wait_for()
    assert not page.locator(".lt-latent").is_visible()
    page.get_by_role("button", name="Show preview").press("Enter")
    page.locator(".lt-latent").wait_for()


def test_a_moving_preview_comes_to_its_end_before_the_next_one_of_its_section(page: Any) -> None:
    page.evaluate(f"""async () => {{
        const {{ preparePreview }} = await {module("live/preview.js")};
        const show = preparePreview(document.querySelector('.lt-stage'));
        window.show = (data, label, seconds) => {{
            show({{ data: `data:,${{data}}`, label, seconds }});
            return document.querySelector('.lt-latent img').src;
        }};
    }}""")

    def show(data: str, label: str, seconds: float) -> str:
        return page.evaluate("(given) => window.show(...given)", [data, label, seconds])

    assert show("a", "0.0 – 1.2 s", 600) == "data:,a"
    assert show("b", "0.0 – 1.2 s", 600) == "data:,a"
    assert show("c", "1.2 – 2.4 s", 0.1) == "data:,c"  # another section is shown at once
    show("d", "1.2 – 2.4 s", 600)
    page.wait_for_function("document.querySelector('.lt-latent img').src === 'data:,d'")
