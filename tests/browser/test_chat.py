"""The chat page, by keyboard, against the scripted server."""

import json
import re

import pytest

from tests.browser.conftest import Open, until
from tests.browser.live import ANSWER, CALL, THOUGHT, TOOLS, LiveServer, words
from tests.browser.steps import LAST, content, focused, say, wait_done

pytestmark = pytest.mark.browser


def test_tokens_stream_and_render(open_page: Open, server: LiveServer) -> None:
    page = open_page()
    assert focused(page) == "prompt"
    server.service.pause_s = 0.02
    say(page, "Why is the sky blue?")
    until(page, "document.querySelector('.assistant .content').textContent.length > 20")
    early = content(page)
    until(
        page,
        f"document.querySelector('.assistant .content').textContent.length > {len(early) + 20}",
    )
    assert page.locator("#send").inner_text() == "Stop"
    assert page.locator("#log").get_attribute("aria-busy") == "true"
    wait_done(page)
    answer = page.locator(LAST)
    assert answer.locator("h4").inner_text() == "Why the sky is blue"
    assert answer.locator("td").all_inner_texts()[:3] == ["blue", "450 nm", "4.4"]
    assert answer.locator("li > ul > li").count() == 2
    assert answer.locator("pre").inner_text().startswith("def scattered(wavelength: float)")
    assert answer.locator("b").count() == 0
    assert (
        answer.locator(".figures")
        .inner_text()
        .startswith(
            f"{len(words(ANSWER))} tokens · 31.4 tokens/s · 2.75 tokens a step · first after "
        )
    )
    assert answer.locator(".figures").inner_text().endswith("prompt 42, 30 of it cached")
    assert focused(page) == "prompt"
    assert page.locator("#model").inner_text() == "scripted-1b"
    sent = server.requests[-1]
    assert sent["stream"] is True
    assert sent["model"] == "scripted-1b"
    assert sent["messages"] == [{"role": "user", "content": "Why is the sky blue?"}]
    assert "temperature" not in sent, "an empty setting is the server's to choose"


def test_what_is_announced_is_the_answer(open_page: Open) -> None:
    page = open_page()
    say(page, "Why?")
    wait_done(page)
    live = page.locator("#live")
    assert live.get_attribute("aria-live") == "polite"
    lines = live.locator("p").all_text_contents()
    assert lines[-1] == "End of the answer."
    said = "".join("".join(lines[:-1]).split())
    assert said == "".join(ANSWER.split())
    assert len(lines) > 3, "the stream is read in pieces"


@pytest.mark.parametrize("how", ["Escape", "button"])
def test_stop(open_page: Open, server: LiveServer, how: str) -> None:
    page = open_page()
    server.service.pause_s = 0.004
    say(page, "endless")
    until(page, "document.querySelector('.assistant .content').textContent.includes('word9 ')")
    if how == "Escape":
        page.keyboard.press("Escape")
    else:
        page.keyboard.press("Tab")
        assert focused(page) == "send"
        page.keyboard.press("Enter")
    wait_done(page)
    until(page, lambda: server.service.seen.ends[-1] == "aborted")
    assert page.locator(f"{LAST} .note").inner_text() == "Stopped."
    stopped = content(page)
    assert stopped.startswith("word0 word1")
    assert "tokens/s" in page.locator(f"{LAST} .figures").inner_text()
    page.wait_for_timeout(100)
    assert content(page) == stopped
    page.locator("#prompt").focus()
    say(page, "go on")
    wait_done(page)
    roles = [message["role"] for message in server.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert server.requests[-1]["messages"][1]["content"].strip() == stopped.strip()


def test_enter_while_streaming_neither_sends_nor_stops(open_page: Open, server: LiveServer) -> None:
    page = open_page()
    say(page, "endless")
    until(page, "document.querySelector('.assistant .content').textContent.includes('word3 ')")
    say(page, "next")
    assert page.locator("#prompt").input_value() == "next"
    assert page.locator("#send").inner_text() == "Stop"
    page.keyboard.press("Escape")
    wait_done(page)
    assert len(server.requests) == 1


def test_shift_enter_makes_a_line(open_page: Open, server: LiveServer) -> None:
    page = open_page()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    say(page, "two short")
    wait_done(page)
    assert server.requests[-1]["messages"][0]["content"] == "one\ntwo short"


def test_settings_by_keyboard(open_page: Open, server: LiveServer) -> None:
    page = open_page()
    page.locator("#open-settings").focus()
    page.keyboard.press("Enter")
    assert page.locator("#open-settings").get_attribute("aria-expanded") == "true"
    until(page, "document.querySelector('[name=temperature]').placeholder === '0'")
    page.keyboard.type("Answer in one line.")
    for value in ("0.25", "0.9", "40", "0.05", "64", "7"):
        page.keyboard.press("Tab")
        page.keyboard.type(value)
    page.keyboard.press("Tab")
    page.keyboard.type("low")
    page.keyboard.press("Escape")
    assert focused(page) == "open-settings"
    assert page.locator("#settings").is_hidden()
    page.reload()
    page.locator("#prompt").focus()
    say(page, "short")
    wait_done(page)
    sent = server.requests[-1]
    assert sent["messages"][0] == {"role": "system", "content": "Answer in one line."}
    wanted = {
        "temperature": 0.25,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "max_tokens": 64,
        "seed": 7,
    }
    assert {name: sent[name] for name in wanted} == wanted
    assert sent["reasoning_effort"] == "low"
    page.locator("#open-settings").click()
    page.get_by_role("button", name="Back to the server's choices").click()
    page.keyboard.press("Escape")
    page.locator("#prompt").focus()
    say(page, "again short")
    wait_done(page)
    assert not {*wanted, "reasoning_effort"} & server.requests[-1].keys()
    assert server.requests[-1]["messages"][0]["role"] == "user"


def test_a_bad_setting_is_shown_instead_of_sent(open_page: Open, server: LiveServer) -> None:
    page = open_page()
    page.locator("#open-settings").click()
    page.locator("[name=top_p]").fill("1.5")
    page.keyboard.press("Escape")
    page.locator("#prompt").focus()
    say(page, "hello")
    assert page.locator("[name=top_p]").is_visible()
    assert page.evaluate("document.activeElement.name") == "top_p"
    assert page.locator("#prompt").input_value() == "hello"
    assert server.requests == []


def test_reasoning_is_folded(open_page: Open) -> None:
    page = open_page()
    say(page, "think")
    wait_done(page)
    details = page.locator(f"{LAST} details.reasoning")
    assert details.get_attribute("open") is None
    assert details.locator("summary").inner_text() == "Reasoning"
    assert content(page) == "It is blue."
    details.locator("summary").focus()
    page.keyboard.press("Enter")
    assert details.locator(".thought").inner_text() == THOUGHT


def test_tool_call_and_its_result(open_page: Open, server: LiveServer) -> None:
    page = open_page()
    page.locator("#open-settings").click()
    page.locator("[name=tools]").fill(json.dumps(TOOLS))
    page.keyboard.press("Escape")
    page.locator("#prompt").focus()
    say(page, "use the tool")
    wait_done(page)
    assert server.requests[-1]["tools"] == TOOLS
    call = page.locator(f"{LAST} .call")
    assert call.locator(".call-name").inner_text() == "Tool call: forecast"
    assert json.loads(call.locator("pre").inner_text()) == CALL
    page.get_by_label("Result of forecast").focus()
    page.keyboard.type("sunny")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    wait_done(page, 2)
    asked, called, result = server.requests[-1]["messages"]
    assert asked["role"] == "user"
    function = called["tool_calls"][0]["function"]
    assert function["name"] == "forecast"
    assert json.loads(function["arguments"]) == CALL
    name = called["tool_calls"][0]["id"]
    assert name.startswith("call_")
    assert result == {"role": "tool", "tool_call_id": name, "content": "sunny"}


def test_tools_that_are_no_json(open_page: Open, server: LiveServer) -> None:
    page = open_page()
    page.locator("#open-settings").click()
    page.locator("[name=tools]").fill("{not json")
    page.locator("#prompt").focus()
    say(page, "hello")
    assert "not JSON" in page.locator("#trouble").inner_text()
    assert server.requests == []


def test_an_engine_that_fails(open_page: Open) -> None:
    page = open_page()
    say(page, "fail")
    wait_done(page)
    note = page.locator(f"{LAST} .note").inner_text()
    assert note == "The server failed: the engine ran out of pages"
    assert content(page) == "Some."


def test_a_stream_that_breaks_off(open_page: Open) -> None:
    page = open_page()
    half = ': hello\n\ndata: {"choices": [{"delta": {"content": "Half an answ"}}]}\n\ndata: {"choi'
    kind = "text/event-stream"
    page.route("**/v1/chat/completions", lambda r: r.fulfill(body=half, content_type=kind))
    say(page, "hello")
    wait_done(page)
    note = page.locator(f"{LAST} .note").inner_text()
    assert note == "The connection closed before the answer was complete."
    assert content(page) == "Half an answ"


def test_token_limit_is_told(open_page: Open) -> None:
    page = open_page()
    page.locator("#open-settings").click()
    page.locator("[name=max_tokens]").fill("2")
    page.keyboard.press("Escape")
    page.locator("#prompt").focus()
    say(page, "short")
    wait_done(page)
    assert page.locator(f"{LAST} .note").inner_text() == "Cut off at the token limit."
    assert content(page).strip() == "It is"


def test_a_refusal_is_told_and_can_be_tried_again(open_page: Open, server: LiveServer) -> None:
    page = open_page()
    say(page, "refuse")
    page.wait_for_selector("#trouble:not([hidden])")
    trouble = page.locator("#trouble")
    assert trouble.inner_text() == "prompt of 9000 tokens does not fit in 8192"
    assert trouble.get_attribute("role") == "alert"
    assert page.locator(".message").count() == 1
    page.get_by_role("button", name="Try again").press("Enter")
    until(page, "document.querySelector('#trouble').textContent.startsWith('prompt of 9000')")
    until(page, lambda: len(server.requests) == 2)


def test_no_server(open_page: Open) -> None:
    page = open_page()
    until(page, "document.querySelector('#model').textContent !== ''")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    say(page, "hello")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "cannot be reached" in page.locator("#trouble").inner_text()


def test_api_key_is_asked_for(open_page: Open) -> None:
    with LiveServer(key="s3cret") as guarded:
        page = open_page(own=guarded)
        page.wait_for_selector("#key-form:not([hidden])")
        assert page.locator("#trouble").inner_text() == "This server asks for an API key."
        assert focused(page) == "key"
        say(page, "s3cret")
        until(page, "document.querySelector('#model').textContent === 'scripted-1b'")
        assert page.locator("#trouble").is_hidden()
        assert focused(page) == "prompt"
        say(page, "short")
        wait_done(page)
        page.evaluate("localStorage.setItem('pydflash.key', 'changed')")
        say(page, "think")
        page.wait_for_selector("#key-form:not([hidden])")
        page.locator("#key").fill("s3cret")
        page.keyboard.press("Enter")
        wait_done(page, 2)
        assert page.locator(f"{LAST} details.reasoning").is_visible(), "the question is not lost"
        page.close()


def test_conversation_is_kept_and_new_chat_clears_it(open_page: Open, server: LiveServer) -> None:
    page = open_page()
    say(page, "short")
    wait_done(page)
    page.reload()
    assert page.locator(".user .content").inner_text() == "short"
    assert content(page) == "It is blue."
    assert page.locator("#empty").is_hidden()
    page.get_by_role("button", name="New chat").press("Enter")
    assert page.locator(".message").count() == 0
    assert focused(page) == "prompt"
    page.reload()
    assert page.locator("#empty").is_visible()
    say(page, "other short")
    wait_done(page)
    assert len(server.requests[-1]["messages"]) == 1


def test_unreadable_storage_is_no_trouble(open_page: Open) -> None:
    page = open_page()
    page.evaluate(
        "localStorage.setItem('pydflash.chat', '{x'); localStorage.setItem('pydflash.settings', '3')"
    )
    page.reload()
    say(page, "short")
    wait_done(page)
    assert content(page) == "It is blue."


def test_copy_button(open_page: Open) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    say(page, "code")
    wait_done(page)
    page.get_by_role("button", name="Copy").press("Enter")
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    code = re.search(r"```python\n(.*?)\n```", ANSWER, re.DOTALL)
    assert code
    assert copied == code[1]
