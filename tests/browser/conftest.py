"""A headless Chromium and the scripted server. Needs the `browser` extra and Chromium on the PATH."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.browser.live import LiveServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright, Request

WAIT_S = 20.0
Open = Callable[..., "Page"]
NAMES = ("chromium", "chromium-browser", "google-chrome")


def until(page: "Page", what: str | Callable[[], bool]) -> None:
    """Wait until a JavaScript expression, or a call, is true.

    playwright's own wait for a function evaluates text inside the page, which the pages' policy forbids.
    """
    end = time.monotonic() + WAIT_S
    while not (page.evaluate(what) if isinstance(what, str) else what()):
        assert time.monotonic() < end, f"still waiting for {what}"
        page.wait_for_timeout(20)


def chromium(playwright: "Playwright") -> "Browser":
    """The system's Chromium ($CHROMIUM names one), else playwright's own, which says how to install it."""
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    # Imported here: only `make test-browser` installs it, and other suites collect this folder too.
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = chromium(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def running() -> Iterator[LiveServer]:
    with LiveServer() as server:
        yield server


@pytest.fixture
def server(running: LiveServer) -> LiveServer:
    running.requests.clear()
    running.service.board.history.clear()
    running.service.board.trees.clear()
    running.service.pause_s = 0.004
    return running


@pytest.fixture
def open_page(browser: "Browser", server: LiveServer) -> Iterator[Open]:
    """Opens a path in a browser profile of its own; script errors and foreign requests fail the test."""
    wrong: list[str] = []
    contexts = []

    def note(request: "Request", own: LiveServer) -> None:
        own.note(request.url, request.post_data)
        if urlsplit(request.url).scheme != "data" and not request.url.startswith(own.url):
            wrong.append(f"asked another host: {request.url}")

    def open_(path: str = "", own: LiveServer = server, **options: object) -> "Page":
        context = browser.new_context(**options)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * WAIT_S)
        page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
        page.on("request", lambda request: note(request, own))
        page.on(
            "console",
            lambda message: (
                wrong.append(message.text) if "Content Security" in message.text else None
            ),
        )
        page.goto(own.url + path)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not wrong
