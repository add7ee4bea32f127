"""The status page against the scripted server."""

from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Open, until
from tests.browser.live import STATUS, LiveServer
from tests.browser.steps import CONTRAST, focused

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


@pytest.fixture
def full(open_page: Open) -> "Page":
    """The page of a server that says everything."""
    page = open_page()
    page.route("**/status/json", lambda route: route.fulfill(json=STATUS))
    page.route("**/status/events", lambda route: route.abort())
    page.goto(page.url + "status")
    page.wait_for_selector("#tiles dd")
    return page


def tiles(page: "Page") -> dict[str, str]:
    names = page.locator("#tiles dt").all_inner_texts()
    return dict(zip(names, page.locator("#tiles dd").all_inner_texts(), strict=True))


def test_figures(full: "Page") -> None:
    assert tiles(full) == {
        "Running": "2",
        "Waiting": "1",
        "Tokens per second": "31.4",
        "Acceptance length": "2.50",
        "Requests in all": "17",
        "Up": "5 min",
    }
    assert full.locator("#model").inner_text() == "scripted-1b"
    assert full.locator("#phase").inner_text() == "Answering"
    assert full.locator("#cache").inner_text().split("\n") == [
        *("Pages total", "1,024", "Pages used", "300", "Lifetime hits", "5")
    ]
    rows = full.locator("#history tr")
    assert rows.count() == 2
    assert rows.first.locator("td").all_inner_texts() == ["90", "128", "412.5", "31.4", "2.75"]


def test_live(open_page: Open, server: LiveServer) -> None:
    """The real board, while another page's answer streams."""
    status, chat = open_page("status"), open_page()
    until(status, "document.querySelector('#phase').textContent === 'Idle'")
    server.service.pause_s = 0.02
    chat.keyboard.type("endless")
    chat.keyboard.press("Enter")
    until(status, "document.querySelector('#phase').textContent === 'Answering'")
    until(status, "document.querySelector('#latest').textContent.includes('word20 word21 ')")
    until(status, "document.querySelector('#current').textContent.includes('endless')")
    until(status, "document.querySelectorAll('#trees svg').length")
    until(status, "parseFloat(document.querySelectorAll('#tiles dd')[2].textContent) > 5")
    assert tiles(status)["Running"] == "1"
    assert tiles(status)["Acceptance length"] == "4.00", "the mean over the last trees"
    until(status, "document.querySelector('#rate polyline').getAttribute('points').includes(' ')")
    label = status.locator("#acceptance svg").get_attribute("aria-label") or ""
    assert label.startswith("Acceptance length: now 4.00, ")
    chat.keyboard.press("Escape")
    until(status, "document.querySelector('#phase').textContent === 'Idle'")
    assert status.locator("#history tr").count() == 0, "what was stopped is not in the figures"
    chat.keyboard.type("short")
    chat.keyboard.press("Enter")
    until(status, "document.querySelectorAll('#history tr').length")
    newest = status.locator("#history tr").first.locator("td").all_inner_texts()
    assert newest == ["42", "3", "412.5", "31.4", "2.75"]


def test_generated_text_is_no_html(open_page: Open) -> None:
    page = open_page()
    events = 'event: token\ndata: {"text": "<b>a</b> "}\n\n'
    kind = "text/event-stream"
    page.route("**/status/events", lambda r: r.fulfill(body=events, content_type=kind))
    page.goto(page.url + "status")
    until(page, "document.querySelector('#latest').textContent.startsWith('<b>a</b> ')")
    assert page.locator("#latest b").count() == 0


def test_draft_tree(full: "Page") -> None:
    tree = full.locator("#trees svg")
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


def test_stopped_engine_is_said(open_page: Open, server: LiveServer) -> None:
    server.service.board.failure = "out of memory"
    try:
        page = open_page("status")
        until(page, "document.querySelector('#trouble').textContent.includes('out of memory')")
    finally:
        server.service.board.failure = None
    page.wait_for_selector("#trouble", state="hidden")


def test_key(open_page: Open) -> None:
    with LiveServer(key="s3cret") as guarded:
        page = open_page("status", own=guarded)
        page.wait_for_selector("#key-form:not([hidden])")
        assert focused(page) == "key"
        page.keyboard.type("s3cret")
        page.keyboard.press("Enter")
        page.wait_for_selector("#tiles dd")
        page.wait_for_selector("#trouble", state="hidden")
        page.close()


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_and_can_be_read(open_page: Open, width: int, scheme: str) -> None:
    page = open_page(viewport={"width": width, "height": 640}, color_scheme=scheme)
    page.route("**/status/json", lambda route: route.fulfill(json=STATUS))
    page.route("**/status/events", lambda route: route.abort())
    page.goto(page.url + "status")
    page.locator("#trees svg").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    weak, _ = page.evaluate(CONTRAST)
    assert weak == []
