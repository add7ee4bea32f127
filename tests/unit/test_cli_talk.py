"""cli.run and cli.chat against a model that is a script: what is printed where, and what is asked."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pydflash.cli import run as single
from pydflash.cli.main import main
from pydflash.config import EngineConfig
from pydflash.errors import ContextLengthError
from pydflash.sampling.params import SamplingParams
from pydflash.service.constraint import Constraint
from pydflash.service.events import Event, Finished, TextDelta, Timings, TokenLogprob, Usage
from pydflash.spec.stats import DraftStats

TIMINGS = Timings(prefill_s=0.5, decode_s=1.0, prefill_tps=24.0, decode_tps=3.0, first_token_s=0.25)


class FakeConversation:
    def __init__(self, llm: "FakeLLM", system: str | None) -> None:
        self.llm, self.system = llm, system
        self.messages: list[dict[str, str]] = []
        self.stats: Finished | None = None
        llm.log.append(("conversation", system))

    def send(self, text: str, params: SamplingParams) -> Iterator[Event]:
        self.messages.append({"role": "user", "content": text})
        yield from self.llm.stream(text, params)

    def reset(self) -> None:
        self.messages.clear()
        self.llm.log.append(("reset", None))


class FakeLLM:
    """Answers with `pieces`; a piece that is an exception is raised."""

    plan = ("weights 94 MB", "state 12 MB")

    def __init__(self) -> None:
        self.pieces: list[str | BaseException] = ["Hel", "lo"]
        self.log: list[tuple[str, Any]] = []
        self.params: SamplingParams | None = None
        self.constraint: Constraint | None = None
        self.engine: EngineConfig | None = None
        self.draft: DraftStats | None = None

    def __enter__(self) -> "FakeLLM":
        return self

    def __exit__(self, *error: object) -> None:
        self.log.append(("close", None))

    def conversation(self, system: str | None = None) -> FakeConversation:
        return FakeConversation(self, system)

    def stream(
        self, prompt: Any, params: SamplingParams, *, constraint: Constraint | None = None
    ) -> Iterator[Event]:
        self.params, self.constraint = params, constraint
        self.log.append(("ask", prompt))
        done = 0
        try:
            for piece in self.pieces:
                if isinstance(piece, BaseException):
                    raise piece
                done += 1
                logprobs = (TokenLogprob(token=done, logprob=-0.5, top=((done, -0.5),)),)
                yield TextDelta(text=piece, tokens=(done,), logprobs=logprobs)
            usage = Usage(prompt_tokens=12, completion_tokens=done, cached_tokens=4)
            yield Finished(reason="stop", usage=usage, timings=TIMINGS, seed=7, draft=self.draft)
        except GeneratorExit:
            self.log.append(("abort", None))


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLLM:
    fake = FakeLLM()

    def open_llm(path: Path, engine: EngineConfig) -> FakeLLM:
        fake.engine = engine
        fake.log.append(("open", path.name))
        return fake

    monkeypatch.setattr(single, "open_llm", open_llm)
    monkeypatch.setenv("PYDFLASH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    return fake


def feed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


FIGURES = (
    "prompt 12 tokens (4 cached), 24.0 tok/s · decode 2 tokens, 3.0 tok/s · first token 0.25 s"
)


def test_run_streams_and_closes_with_figures(
    llm: FakeLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "m.gguf", "Hi", "--system", "Be brief."]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Hello\n"
    assert captured.err == f"weights 94 MB\nstate 12 MB\n{FIGURES}\n"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert llm.log == [("open", "m.gguf"), ("ask", messages), ("close", None)]


def test_run_tells_how_drafts_fared(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.draft = DraftStats(rounds=4, tokens=10, nodes=12, accepted_nodes=6)
    llm.draft.offered, llm.draft.accepted = [4, 4, 2], [3, 2, 1]
    assert main(["run", "m.gguf", "Hi"]) == 0
    assert capsys.readouterr().err.endswith(f"{FIGURES} · {llm.draft.line()}\n")
    assert main(["run", "m.gguf", "Hi", "--stats"]) == 0
    assert capsys.readouterr().err.endswith("accepted by depth: 1 75%, 2 50%, 3 50%\n")
    assert main(["run", "m.gguf", "Hi", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["draft"]["rounds"], told["draft"]["accepted"]) == (4, [3, 2, 1])


def test_run_quiet_prints_the_answer_only(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.pieces = ["ends\n"]
    assert main(["run", "--model", "m.gguf", "Hi", "--quiet"]) == 0
    assert capsys.readouterr() == ("ends\n", "")


def test_run_raw_sends_the_text_itself(llm: FakeLLM) -> None:
    assert main(["run", "m.gguf", "--raw", "--", "-1 + 1 ="]) == 0
    assert ("ask", "-1 + 1 =") in llm.log


@pytest.mark.parametrize("words", [["m.gguf"], ["--model", "m.gguf"]])
def test_run_reads_stdin(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    feed(monkeypatch, "from a pipe\n")
    assert main(["run", *words]) == 0
    assert ("ask", [{"role": "user", "content": "from a pipe\n"}]) in llm.log


def test_stdin_that_is_no_text_is_replaced(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["run", "m.gguf"], ["chat", "m.gguf"]):
        stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(words) == 0
    asked = [what for verb, what in llm.log if verb == "ask"]
    assert asked == [[{"role": "user", "content": "caf\ufffd\n"}], "caf\ufffd"]


def test_run_passes_sampling_and_engine_options(llm: FakeLLM) -> None:
    flags = "--max-tokens 9 --temp 0.7 --top-k 5 --top-p 0.9 --min-p 0.1 --seed 3"
    flags += " --repeat-penalty 1.1 --frequency-penalty 0.2 --presence-penalty 0.3"
    flags += " --rep-window -1 --penalize-prompt --logit-bias 3=-2 --logit-bias 4=1.5"
    flags += " --min-tokens 2 --stop-token-ids 5 --stop-token-ids 6 --ignore-eos"
    flags += " --threads 2 --max-ctx 512 --cache-type-k q8_0 --cache-type-v f32 --ops ref"
    assert main(["run", "m.gguf", "Hi", "--stop", "\n", "--stop", "END", *flags.split()]) == 0
    assert llm.params == SamplingParams(
        max_tokens=9,
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        seed=3,
        repetition_penalty=1.1,
        rep_window=-1,
        penalize_prompt=True,
        logit_bias={3: -2.0, 4: 1.5},
        min_tokens=2,
        stop_token_ids=(5, 6),
        ignore_eos=True,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        stop=("\n", "END"),
    )
    assert llm.engine is not None
    assert (llm.engine.runtime.threads, llm.engine.runtime.ops) == (2, "ref")
    state = llm.engine.state
    assert (state.max_ctx, state.cache_type_k, state.cache_type_v) == (512, "q8_0", "f32")


def test_run_json(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m.gguf", "Hi", "--json", "--logprobs", "1"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"] == "Hello"
    assert answer["tokens"] == [1, 2]
    assert answer["usage"] == {"prompt_tokens": 12, "completion_tokens": 2, "cached_tokens": 4}
    assert answer["timings"]["decode_tps"] == 3.0
    assert (answer["finish_reason"], answer["seed"], answer["model"]) == ("stop", 7, "m.gguf")
    assert answer["logprobs"][1] == {"token": 2, "logprob": -0.5, "top": [[2, -0.5]]}


def test_run_interrupted_ends_the_line_and_exits_130(
    llm: FakeLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.pieces = ["Hel", KeyboardInterrupt()]
    assert main(["run", "m.gguf", "Hi", "--quiet"]) == 130
    assert capsys.readouterr() == ("Hel\n", "interrupted\n")
    assert llm.log[-1] == ("close", None)


def test_run_aborts_when_the_reader_goes_away(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(BrokenPipeError):
        single.show(llm.stream("x", SamplingParams()))
    assert ("abort", None) in llm.log


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a", "b", "c"], "a is neither a file nor a model of the catalogue; put the prompt in"),
        (["m.gguf", "b", "c"], "put the prompt in quotes"),
        (["smolm2-135m"], "did you mean smollm2-135m?"),
        (["m.gguf", "  "], "the prompt is empty"),
        (["m.gguf", "Hi", "--logprobs", "2"], "--logprobs needs --json"),
        (["m.gguf", "Hi", "--raw", "--system", "x"], "leave out --system"),
        (["m.gguf", "Hi", "--temp", "-1"], "temperature must be between 0 and 100"),
    ],
)
def test_run_refuses_wrong_words(
    llm: FakeLLM, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(["run", *words]) == 2
    assert says in capsys.readouterr().err
    assert llm.log == []


def test_run_names_the_remedy_for_a_missing_model(
    llm: FakeLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "Hello there"]) == 1
    assert "run `pydflash pull smollm2-135m`" in capsys.readouterr().err


def test_run_pull_fetches_first(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from pydflash.cli import pull

    asked = []

    def fetch(model: str) -> str:
        asked.append(model)
        return str(tmp_path / "m.gguf")

    monkeypatch.setattr(pull, "fetch", fetch)
    assert main(["run", "Hello there", "--pull"]) == 0
    assert asked == ["smollm2-135m"]
    assert ("open", "m.gguf") in llm.log


def test_chat_through_a_pipe(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["Hi", "", "two \\", "lines", "/stats", "/reset", "/system Be brief.", "/nope", "/help"]
    feed(monkeypatch, "\n".join([*lines, "bye", "/quit", "never"]))
    assert main(["chat", "m.gguf", "--system", "Old."]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Hello\n" * 3
    assert FIGURES in captured.err
    assert "conversation 2 messages, 14 tokens · ended by stop · seed 7" in captured.err
    assert "/nope is not a command" in captured.err
    assert "forget the conversation" in captured.err
    assert llm.log == [
        ("open", "m.gguf"),
        ("conversation", "Old."),
        ("ask", "Hi"),
        ("ask", "two \nlines"),
        ("reset", None),
        ("conversation", "Be brief."),
        ("ask", "bye"),
        ("close", None),
    ]


def test_chat_ctrl_c_stops_the_answer_only(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.pieces = ["Hel", KeyboardInterrupt()]
    feed(monkeypatch, "one\ntwo\n")
    assert main(["chat", "m.gguf", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Hel\nHel\n"
    assert captured.err == "[stopped]\n[stopped]\n"


def test_chat_before_any_answer_has_no_stats(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(monkeypatch, "/stats\n")
    assert main(["chat", "m.gguf", "--quiet"]) == 0
    assert capsys.readouterr().err == "no finished answer yet\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_chat_at_a_terminal(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    answers: list[str | BaseException] = ["half \\", KeyboardInterrupt(), "Hi", EOFError()]

    def typed(prompt: str) -> str:
        asked.append(prompt)
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", typed)
    llm.pieces = [ContextLengthError("the conversation is too long")]
    assert main(["chat", "m.gguf"]) == 0
    assert asked == ["> ", "... ", "> ", "> "]
    captured = capsys.readouterr()
    assert "(Ctrl-D or /quit leaves)" in captured.err
    assert "error: the conversation is too long" in captured.err
    assert ("ask", "Hi") in llm.log


def test_chat_through_a_pipe_fails_loudly(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(monkeypatch, "one\ntwo\n")
    llm.pieces = [ContextLengthError("the conversation is too long")]
    assert main(["chat", "m.gguf", "--quiet"]) == 1
    assert capsys.readouterr().err == "error: the conversation is too long\n"
