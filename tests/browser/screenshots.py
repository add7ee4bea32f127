"""Redraw docs/images/: `make screenshots`. The answers are the scripted server's."""

import json
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.conftest import chromium, until
from tests.browser.live import TOOLS, LiveServer

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDE = (1100, 720)
NARROW = (360, 640)


def chat(page: Page) -> None:
    page.keyboard.type("Why is the sky blue?")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.assistant .figures')?.textContent")
    page.wait_for_timeout(200)


def settings(page: Page) -> None:
    chat(page)
    page.locator("#open-settings").click()
    page.locator("[name=system]").fill("Answer briefly, with a table where it helps.")
    page.locator("[name=temperature]").fill("0.6")


def tool(page: Page) -> None:
    page.locator("#open-settings").click()
    page.locator("[name=tools]").fill(json.dumps(TOOLS))
    page.keyboard.press("Escape")
    page.locator("#prompt").fill("How is the weather in Athens? Use the tool")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.assistant .call-form').length")
    page.wait_for_timeout(200)


def status(page: Page) -> None:
    """While an answer streams in another tab."""
    other = page.context.new_page()
    other.goto(page.url)
    other.keyboard.type("Count the words, endless")
    other.keyboard.press("Enter")
    page.goto(page.url + "status")
    page.locator("#trees svg").first.wait_for()
    page.wait_for_timeout(9000)  # for the charts to have some samples


PICTURES = {
    "chat-light": (settings, WIDE, "light"),
    "chat-dark": (chat, WIDE, "dark"),
    "chat-360": (chat, NARROW, "light"),
    "tool-dark-360": (tool, NARROW, "dark"),
    "status-light": (status, WIDE, "light"),
    "status-dark": (status, WIDE, "dark"),
    "status-360": (status, NARROW, "dark"),
}


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with LiveServer() as server, sync_playwright() as playwright:
        server.service.pause_s = 0.02
        browser = chromium(playwright)
        for name, (act, (width, height), scheme) in PICTURES.items():
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            page = context.new_page()
            page.goto(server.url)
            act(page)
            page.screenshot(path=IMAGES / f"page-{name}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
