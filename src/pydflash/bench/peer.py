"""PeerProcess: the llama.cpp worker, run by whichever Python has `llama_cpp`, spoken to in JSON lines."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from pydflash.errors import ConfigError, EngineError

_EXIT_S = 30.0  # for a worker to leave by itself


class PeerProcess:
    """A loaded peer in its own process. Use as a context manager; times come back in seconds."""

    def __init__(
        self,
        model: Path,
        *,
        threads: int,
        ctx: int,
        python: str | None = None,
        exact: bool = False,
    ) -> None:
        if python is None:
            if importlib.util.find_spec("llama_cpp") is None:
                raise ConfigError(
                    "--vs llama.cpp needs the package llama-cpp-python; install it here, or give "
                    "--peer-python the Python of an environment that has it"
                )
            python = sys.executable
        worker = Path(__file__).with_name("llama_cpp.py")
        try:
            self._process = subprocess.Popen(
                [python, str(worker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise ConfigError(f"--peer-python {python} cannot be run: {error.strerror}") from None
        try:
            loaded = self.ask("load", path=str(model), threads=threads, ctx=ctx, exact=exact)
        except EngineError:
            self.close()
            raise
        self.version: str = loaded["version"]
        self.vocab_size: int = loaded["vocab_size"]

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """Send one request and wait for its answer; EngineError with the worker's words when it fails."""
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        try:
            pipe_in.write(json.dumps({"do": verb, **arguments}) + "\n")
            pipe_in.flush()
            line = pipe_out.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise EngineError(f"the llama.cpp worker died while asked to {verb}")
        answer: dict[str, Any] = json.loads(line)
        if not answer.pop("ok"):
            raise EngineError(f"the llama.cpp worker failed to {verb}: {answer['error']}")
        return answer

    def fill(self, depth: int) -> None:
        self.ask("fill", depth=depth)

    def step(self, rows: int, depth: int, repeats: int) -> list[float]:
        seconds: list[float] = self.ask("step", rows=rows, depth=depth, repeats=repeats)["seconds"]
        return seconds

    def prefill(self, count: int) -> float:
        return float(self.ask("prefill", count=count)["seconds"])

    def decode(self, count: int, depth: int) -> float:
        return float(self.ask("decode", count=count, depth=depth)["seconds"])

    def answer(self, tokens: Sequence[int], count: int) -> dict[str, Any]:
        """`count` greedy tokens after a prompt: {"tokens", "prefill_s", "decode_s"}."""
        return self.ask("answer", tokens=list(tokens), count=count)

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(timeout=_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "PeerProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
