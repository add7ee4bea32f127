"""The API's description as a page: whole, readable, and made without another host (see `open_page`)."""

import pytest

from tests.browser.conftest import Open, until
from tests.browser.steps import CONTRAST

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_every_endpoint_and_its_fields(open_page: Open, width: int, scheme: str) -> None:
    page = open_page("docs", viewport={"width": width, "height": 800}, color_scheme=scheme)
    until(page, "document.querySelectorAll('section').length > 15")
    chat = page.get_by_role("region", name="POST /v1/chat/completions", exact=True)
    fields = chat.get_by_role("region", name="Fields of ChatBody").inner_text()
    assert "messages (required)" in fields
    assert "list of Message" in fields
    details = chat.locator("details")
    names = details.locator("summary").all_inner_texts()
    assert {"Message", "ToolCall", "FunctionCall", "StreamOptions"} <= set(names)
    details.nth(names.index("FunctionCall")).locator("summary").press("Enter")
    assert "arguments" in details.nth(names.index("FunctionCall")).inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(CONTRAST)[0] == []


def test_a_server_that_is_gone_is_told(open_page: Open) -> None:
    page = open_page()
    page.route("**/openapi.json", lambda route: route.abort())
    page.goto(page.url + "docs")
    until(page, "!document.querySelector('#trouble').hidden")
    assert "cannot be reached" in page.locator("#trouble").inner_text()
