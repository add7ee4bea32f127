"""LLM, its streams and its conversations, on tiny models with the real engine under them."""

import threading
import time
from pathlib import Path

import pytest

from pydflash.config import EngineConfig, RuntimeConfig, StateConfig, StepConfig
from pydflash.errors import (
    CapacityError,
    ConfigError,
    ContextLengthError,
    EngineError,
    RequestError,
    TemplateError,
    UnsupportedError,
)
from pydflash.sampling.params import SamplingParams
from pydflash.service.events import Finished, TextDelta
from pydflash.service.llm import LLM, fold
from tests.tiny.gguf import tiny_gguf


@pytest.fixture(scope="module")
def llm(tiny_llama: Path):
    config = EngineConfig(state=StateConfig(max_concurrency=4))
    with LLM(tiny_llama, config=config) as model:
        yield model


def test_generate_is_the_fold_of_stream(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, temperature=0.8, seed=4, logprobs=2, ignore_eos=True)
    whole = llm.generate("once upon", params)
    events = list(llm.stream("once upon", params))
    assert isinstance(events[-1], Finished)
    assert all(isinstance(e, TextDelta) for e in events[:-1])
    again = fold(iter(events))
    assert (again.text, again.tokens, again.logprobs) == (whole.text, whole.tokens, whole.logprobs)
    assert len(whole.tokens) == len(whole.logprobs) == 20
    assert all(lp.logprob < 0 and len(lp.top) == 2 for lp in whole.logprobs)
    assert whole.finish.reason == "length"
    assert whole.finish.usage.prompt_tokens == len(llm.encode("once upon"))
    assert whole.finish.seed == 4
    assert whole.text == llm.tokenizer.decode(list(whole.tokens), skip_special=True)


def test_many_prompts_at_once_answer_as_alone(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=9)
    prompts = ["a", "once upon a time", "xyz " * 20, "q"]
    together = llm.generate(prompts, params)
    assert [c.tokens for c in together] == [llm.generate(p, params).tokens for p in prompts]


def test_work_between_steps_runs_on_the_engines_thread(tiny_llama: Path) -> None:
    with LLM(tiny_llama) as model:
        assert model.call(lambda: threading.current_thread().name) == "pydflash-engine"
        with pytest.raises(ZeroDivisionError):
            model.call(lambda: 1 // 0)
        assert model.generate("still there", SamplingParams(max_tokens=3)).tokens
    with pytest.raises(EngineError, match="stopped"):
        model.call(lambda: None)


def test_threads_share_a_model(llm: LLM) -> None:
    params = SamplingParams(max_tokens=10, temperature=1.0, seed=2)
    alone = llm.generate("shared", params).tokens
    out: list[tuple[int, ...]] = []
    threads = [
        threading.Thread(target=lambda: out.append(llm.generate("shared", params).tokens))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out == [alone] * 6


def test_stop_string_cuts_where_it_begins(llm: LLM) -> None:
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=3, ignore_eos=True)
    text = llm.generate("tell", params).text
    stop = text[5:8]
    at = text.index(stop)
    cut = SamplingParams(max_tokens=40, temperature=1.0, seed=3, ignore_eos=True, stop=(stop,))
    got = llm.generate("tell", cut)
    assert got.text == text[:at]
    assert got.finish.reason == "stop"
    assert got.finish.stop == stop


def test_stop_token_ends_without_its_text(llm: LLM) -> None:
    params = SamplingParams(max_tokens=30, temperature=1.0, seed=3, ignore_eos=True)
    tokens = llm.generate("tell", params).tokens
    stop = tokens[6]
    first = tokens.index(stop)
    cut = SamplingParams(
        max_tokens=30, temperature=1.0, seed=3, stop_token_ids=(stop,), ignore_eos=True
    )
    got = llm.generate("tell", cut)
    assert got.tokens == tokens[:first]
    assert got.finish.stop == stop


def test_closing_a_stream_frees_its_pages(llm: LLM) -> None:
    stream = llm.stream("forever", SamplingParams(ignore_eos=True))
    next(stream)
    stream.close()
    # A request after it is served by the same thread, so the abort has been seen.
    llm.generate("x", SamplingParams(max_tokens=1))
    states = llm.loaded.engine.states
    assert states.free() == states.pool.num_pages


def test_a_late_reader_gets_every_token(llm: LLM) -> None:
    """Results wait in a queue while their sequence runs on and ends; none may be lost."""
    params = SamplingParams(max_tokens=30, temperature=1.0, seed=8, ignore_eos=True)
    expected = llm.generate("late", params)
    stream = llm.stream("late", params)
    while not llm.loaded.engine.is_idle or stream._ticket.results.qsize() < 30:
        time.sleep(0.01)
    got = fold(stream)
    assert (got.tokens, got.text, got.finish.reason) == (expected.tokens, expected.text, "length")


def test_a_dropped_stream_is_aborted(llm: LLM) -> None:
    for _ in llm.stream("dropped", SamplingParams(ignore_eos=True)):
        break
    llm.generate("x", SamplingParams(max_tokens=1))
    assert llm.loaded.engine.is_idle
    states = llm.loaded.engine.states
    assert states.free() == states.pool.num_pages


def test_an_unread_stream_holds_nobody(llm: LLM) -> None:
    stream = llm.stream("slow reader", SamplingParams(max_tokens=50, ignore_eos=True))
    assert llm.generate("other", SamplingParams(max_tokens=3, ignore_eos=True)).tokens
    assert len(fold(stream).tokens) == 50


def test_a_conversation_is_not_read_again(tiny_llama: Path) -> None:
    """From the grid on, that is: what this model says does not come back as the same tokens."""
    config = EngineConfig(step=StepConfig(prefill_chunk=32), state=StateConfig(max_concurrency=4))
    with LLM(tiny_llama, config=config) as llm:
        _talk(llm)


def _talk(llm: LLM) -> None:
    talk = llm.conversation(system="be brief")
    params = SamplingParams(max_tokens=8)
    first = fold(talk.send("hello there", params))
    assert first.finish.usage.cached_tokens == 0
    second = fold(talk.send("and again", params))
    usage = second.finish.usage
    assert usage.cached_tokens == first.finish.usage.prompt_tokens // 32 * 32 > 0
    assert [m["role"] for m in talk.messages] == ["user", "assistant"] * 2
    fresh = llm.conversation(system="be brief")
    fresh.messages = talk.messages[:2]
    assert fold(fresh.send("and again", params)).tokens == second.tokens
    talk.reset()
    assert talk.messages == []
    assert fold(talk.send("hello there", params)).tokens == first.tokens
    llm.forget()
    talk.reset()
    assert fold(talk.send("hello there", params)).finish.usage.cached_tokens == 0


def test_an_answer_cut_short_stays_in_the_conversation(llm: LLM) -> None:
    talk = llm.conversation()
    stream = talk.send("go on", SamplingParams(ignore_eos=True, max_tokens=60))
    heard = [next(stream) for _ in range(5)]
    stream.close()
    assert talk.messages[-1]["content"] == "".join(e.text for e in heard)
    assert fold(talk.send("more", SamplingParams(max_tokens=4))).tokens is not None


def test_chat_uses_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    text = llm.loaded.template.render(messages)
    assert llm.encode(messages) == llm.tokenizer.encode(text, add_special=True)
    assert llm.chat(messages, SamplingParams(max_tokens=3)).finish.usage.prompt_tokens == len(
        llm.encode(messages)
    )


def test_requests_that_cannot_be_answered(llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match="512"):
        llm.generate([5] * 600)
    with pytest.raises(RequestError, match="outside the vocabulary"):
        llm.generate([5, 10**6])
    with pytest.raises(RequestError, match="empty"):
        llm.generate("")
    with pytest.raises(RequestError, match="logit_bias"):
        llm.generate("x", SamplingParams(logit_bias={10**6: 1.0}))
    with pytest.raises(TemplateError):
        llm.chat([{"role": "user"}])


def test_a_crash_reaches_every_request(tiny_llama: Path) -> None:
    llm = LLM(tiny_llama)
    stream = llm.stream("x", SamplingParams(ignore_eos=True))

    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    llm.loaded.engine.step = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(EngineError, match="boom") as caught:
        for _ in stream:
            pass
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(EngineError, match="stopped"):
        llm.generate("y")
    llm.close()


def test_loading_what_cannot_be_run(tmp_path: Path, tiny_llama: Path) -> None:
    def config(**state: int) -> EngineConfig:
        return EngineConfig(state=StateConfig(**state))

    with pytest.raises(CapacityError, match="--max-ctx 512"):
        LLM(tiny_llama, config=config(max_ctx=4096))
    with pytest.raises(CapacityError, match="--kv-pages"):
        LLM(tiny_llama, config=config(kv_pages=3))
    huge = tiny_gguf(tmp_path / "huge.gguf", "llama", context=2**30, layers=1)
    with pytest.raises(CapacityError, match=r"--max-ctx \d+ or less"):
        LLM(huge, config=config(max_ctx=2**30))
    with pytest.raises(ConfigError, match="--max-concurrency"):
        LLM(tiny_llama, config=config(max_concurrency=0))
    with pytest.raises(ConfigError, match="q4_0"):
        LLM(tiny_llama, config=EngineConfig(state=StateConfig(cache_type_k="q4_0")))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--max-exact-rows"):
        LLM(tiny_llama, config=EngineConfig(step=StepConfig(max_exact_rows=0)))
    with pytest.raises(ConfigError, match="--target-device"):
        LLM(tiny_llama, config=EngineConfig(runtime=RuntimeConfig(target_device="cuda:0")))
    odd = tiny_gguf(tmp_path / "odd.gguf", "llama", extra={"general.architecture": "mamba"})
    with pytest.raises(UnsupportedError, match=r"'mamba'.*llama, qwen3"):
        LLM(odd)
