"""What a person does on the chat page, and what is read off it."""

from typing import TYPE_CHECKING

from tests.browser.conftest import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Pairs of colours that are hard to read, and how light the page is (0 to 1).
CONTRAST = """() => {
    const light = (rgb) => {
        const [r, g, b] = rgb.match(/[\\d.]+/g).map((x) => x / 255)
            .map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (node) => {
        const colour = getComputedStyle(node).backgroundColor;
        return colour === "rgba(0, 0, 0, 0)" ? behind(node.parentElement) : colour;
    };
    const weak = [];
    for (const node of document.querySelectorAll("main *, header *, aside *")) {
        const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        if (!own || !node.checkVisibility() || node.matches(":disabled, svg *")) continue;
        const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) weak.push(`${node.localName}.${node.className} ${ratio.toFixed(2)}`);
    }
    return [weak, light(getComputedStyle(document.body).backgroundColor)];
}"""
LAST = ".message.assistant:last-of-type"


def say(page: "Page", text: str) -> None:
    """Type into whatever has the focus, as a person without a mouse does."""
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def wait_done(page: "Page", answers: int | None = None) -> None:
    """Until no answer streams; with `answers`, until there are so many."""
    count = "document.querySelectorAll('.assistant').length"
    wanted = f"{count} > 0" if answers is None else f"{count} === {answers}"
    until(page, f"{wanted} && document.querySelector('#log').getAttribute('aria-busy') === 'false'")
    assert page.locator("#send").inner_text() == "Send"


def content(page: "Page") -> str:
    return page.locator(f"{LAST} .content").inner_text()


def focused(page: "Page") -> str:
    return str(
        page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
    )
