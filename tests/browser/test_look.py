"""How the chat page looks and where the focus goes: order, sizes, contrast."""

import pytest

from tests.browser.conftest import Open
from tests.browser.steps import CONTRAST, focused, say, wait_done

pytestmark = pytest.mark.browser


def test_focus_order_and_visible_focus(open_page: Open) -> None:
    page = open_page()
    page.locator(".skip").focus()
    order = []
    for tabs in range(7):
        page.keyboard.press("Tab" if tabs else "Shift")
        order.append(focused(page))
        width = page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)")
        assert width >= 2, f"no visible focus on {order[-1]}"
    assert order == [
        *("Skip to the message box", "new", "open-settings", "Status", "scroller", "prompt", "send")
    ]
    page.keyboard.press("Enter")  # an empty message is not sent
    assert page.locator(".message").count() == 0


@pytest.mark.parametrize("width", [360, 320, 1280])
def test_nothing_sticks_out(open_page: Open, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 640})
    say(page, "x" * 200 + " code")
    wait_done(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.documentElement.scrollHeight") == 640
    box = page.locator("#send").bounding_box()
    assert box
    assert box["x"] + box["width"] <= width
    assert box["y"] + box["height"] <= 640
    page.locator("#open-settings").click()
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(open_page: Open, scheme: str) -> None:
    page = open_page(color_scheme=scheme, viewport={"width": 1280, "height": 800})
    page.locator("#open-settings").click()
    page.locator("#prompt").focus()
    say(page, "think")
    wait_done(page)
    say(page, "code")
    wait_done(page)
    weak, ground = page.evaluate(CONTRAST)
    assert weak == []
    assert (ground > 0.5) == (scheme == "light")
