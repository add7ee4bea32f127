"""`pydflash chat`: a conversation in the terminal, or piped through it line by line.

The prefix cache keeps the conversation's state, so a turn costs only its own tokens. Ctrl-C
stops the answer, not the program; Ctrl-D or /quit leaves.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from pydflash import catalog
from pydflash.cli import run as single
from pydflash.cli.options import configured
from pydflash.cli.sampling import SamplingFlags
from pydflash.config import EngineConfig
from pydflash.errors import RequestError
from pydflash.paths import cache_dir
from pydflash.sampling.params import SamplingParams
from pydflash.service.events import Finished

if TYPE_CHECKING:
    from pydflash.service.llm import LLM

HELP = """\
/reset         forget the conversation, keep the system message
/system TEXT   start again with this system message (none: without one)
/stats         figures of the last answer and of the conversation
/help          this
/quit          leave (so does Ctrl-D)
End a line with \\ to continue it on the next. Ctrl-C stops an answer."""


@configured(sampling=SamplingFlags, engine=EngineConfig)
def chat(
    model: Annotated[str, Parameter(help="catalogue name, path, or hf:owner/repo/file")] = (
        catalog.DEFAULT_MODEL
    ),
    *,
    system: Annotated[str | None, Parameter(help="system message")] = None,
    pull: single.PullFlag = False,
    quiet: single.QuietFlag = False,
    sampling: SamplingFlags,
    engine: EngineConfig,
) -> None:
    """Talk with a model; reads lines from a pipe too."""
    params = sampling.params()
    path = single.locate(model, may_pull=pull)
    with single.open_llm(path, engine) as llm:
        is_terminal = sys.stdin.isatty()
        if not quiet:
            single.show_plan(llm)
        if is_terminal and not quiet:
            print(f"{model} · /help lists the commands", file=sys.stderr)
        with _history(wanted=is_terminal):
            Repl(llm, params, system=system, is_terminal=is_terminal).loop()


class Repl:
    """Reads lines, sends them, shows answers. One conversation at a time."""

    def __init__(
        self, llm: "LLM", params: SamplingParams, *, system: str | None, is_terminal: bool
    ) -> None:
        self._llm, self._params, self._is_terminal = llm, params, is_terminal
        self._conversation = llm.conversation(system=system)
        self._last: Finished | None = None

    def loop(self) -> None:
        for text in self._inputs():
            if not text.strip():
                continue
            if text.startswith("/"):
                if not self._command(text):
                    return
                continue
            try:
                self._answer(text)
            except RequestError as error:
                # The conversation stands as it was; in a pipe nobody could react, so it ends there.
                if not self._is_terminal:
                    raise
                print(f"error: {error}", file=sys.stderr)

    def _answer(self, text: str) -> None:
        try:
            finished = single.show(self._conversation.send(text, self._params))
        except KeyboardInterrupt:
            print("[stopped]", file=sys.stderr)
            return
        self._last = finished or self._last

    def _command(self, line: str) -> bool:
        """Obey a /command; False to leave."""
        name, _, rest = line.strip().partition(" ")
        match name:
            case "/quit" | "/exit":
                return False
            case "/help":
                print(HELP, file=sys.stderr)
            case "/reset":
                self._conversation.reset()
                self._last = None
            case "/system":
                self._conversation = self._llm.conversation(system=rest.strip() or None)
                self._last = None
            case "/stats":
                self._show_stats()
            case _:
                print(f"{name} is not a command; /help lists them", file=sys.stderr)
        return True

    def _show_stats(self) -> None:
        if self._last is None:
            print("no finished answer yet", file=sys.stderr)
            return
        print(single.figures(self._last), file=sys.stderr)
        usage = self._last.usage
        print(
            f"conversation {len(self._conversation.messages)} messages, "
            f"{usage.prompt_tokens + usage.completion_tokens} tokens · "
            f"ended by {self._last.reason} · seed {self._last.seed}",
            file=sys.stderr,
        )

    def _inputs(self) -> Iterator[str]:
        """Messages: a line each, or several joined where a line ends with a backslash."""
        lines: list[str] = []
        while True:
            try:
                line = self._read("... " if lines else "> ")
            except EOFError:
                if self._is_terminal:
                    print()
                if lines:
                    yield "\n".join(lines)
                return
            except KeyboardInterrupt:
                print("\n(Ctrl-D or /quit leaves)", file=sys.stderr)
                lines = []
                continue
            if line.endswith("\\"):
                lines.append(line[:-1])
                continue
            yield "\n".join([*lines, line])
            lines = []

    def _read(self, prompt: str) -> str:
        if self._is_terminal:
            return input(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")


@contextlib.contextmanager
def _history(*, wanted: bool) -> Iterator[None]:
    """Line editing with a history kept between runs, where the system has readline."""
    try:
        import readline
    except ImportError:
        wanted = False
    if not wanted:
        yield
        return
    file = cache_dir() / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)
