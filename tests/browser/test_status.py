"""The status page against the scripted server."""

import pytest

from tests.browser.conftest import Open, until
from tests.browser.fake import FakeServer
from tests.browser.test_chat import CONTRAST, focused

pytestmark = pytest.mark.browser


def test_figures(open_page: Open) -> None:
    page = open_page("status")
    page.wait_for_selector("#tiles dd")
    tiles = dict(
        zip(
            page.locator("#tiles dt").all_inner_texts(),
            page.locator("#tiles dd").all_inner_texts(),
            strict=True,
        )
    )
    assert (tiles["Running"], tiles["Waiting"], tiles["Requests in all"]) == ("2", "1", "17")
    assert tiles["Up"] == "5 min"
    assert float(tiles["Tokens per second"]) > 20
    assert page.locator("#model").inner_text() == "scripted-1b"
    assert page.locator("#phase").inner_text() == "Answering"
    assert page.locator("#cache").inner_text().split("\n") == [
        *("Pages total", "1,024", "Pages used", "300", "Lifetime hits", "5")
    ]
    rows = page.locator("#history tr")
    assert rows.count() == 2
    assert rows.first.locator("td").all_inner_texts() == ["90", "128", "412.5", "31.4", "2.75"]


def test_events_arrive_and_charts_grow(open_page: Open) -> None:
    page = open_page("status")
    until(page, "document.querySelector('#latest').textContent.startsWith('The sky is ')")
    until(page, "document.querySelector('#latest').textContent.includes('<b>air</b>')")
    assert page.locator("#latest b").count() == 0
    points = page.locator("#acceptance polyline").get_attribute("points") or ""
    assert len(points.split()) >= 3
    label = page.locator("#acceptance svg").get_attribute("aria-label") or ""
    assert label.startswith("Acceptance length: now ")
    now = float(label.split("now ")[1].split(",")[0])
    assert 2 <= now <= 3.5


def test_draft_tree(open_page: Open) -> None:
    page = open_page("status")
    tree = page.locator("#trees svg")
    tree.wait_for()
    assert tree.get_attribute("aria-label") == "Draft of 7 tokens, 3 accepted:  is blue because the"
    assert tree.locator("g.node").count() == 9
    assert tree.locator("g.taken text").all_text_contents() == ["·sky", "·is", "·blue", "·because"]
    assert tree.locator("g.drawn text").all_text_contents() == ["·the"]
    assert tree.locator("path.edge").count() == 8
    boxes = tree.locator("rect").evaluate_all(
        "(rects) => rects.map((r) => `${r.getAttribute('x')} ${r.getAttribute('y')}`)"
    )
    assert len(set(boxes)) == 9, "no two boxes in one place"


def test_a_server_that_gives_only_a_phase(open_page: Open) -> None:
    page = open_page()
    page.route(
        "**/status/json", lambda route: route.fulfill(json={"phase": "idle", "current": None})
    )
    page.route("**/status/events", lambda route: route.abort())
    page.goto(page.url + "status")
    page.wait_for_selector("#tiles dd")
    assert page.locator("#phase").inner_text() == "Idle"
    assert page.locator("#tiles dd").all_inner_texts() == ["0", "–", "–", "–", "–", "–"]
    assert page.locator("#trees-part, #cache-part, #history-part").evaluate_all(
        "(parts) => parts.every((part) => part.hidden)"
    )


def test_lost_server_is_said_and_found_again(open_page: Open) -> None:
    page = open_page("status")
    page.wait_for_selector("#tiles dd")
    page.route("**/status/json", lambda route: route.abort())
    page.wait_for_selector("#trouble:not([hidden])")
    assert "cannot be reached" in page.locator("#trouble").inner_text()
    page.unroute("**/status/json")
    page.wait_for_selector("#trouble", state="hidden")


def test_key(open_page: Open, server: FakeServer) -> None:
    server.key = "s3cret"
    page = open_page("status")
    page.wait_for_selector("#key-form:not([hidden])")
    assert focused(page) == "key"
    page.keyboard.type("s3cret")
    page.keyboard.press("Enter")
    page.wait_for_selector("#tiles dd")
    page.wait_for_selector("#trouble", state="hidden")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_and_can_be_read(open_page: Open, width: int, scheme: str) -> None:
    page = open_page("status", viewport={"width": width, "height": 640}, color_scheme=scheme)
    page.locator("#trees svg").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    weak, _ = page.evaluate(CONTRAST)
    assert weak == []
