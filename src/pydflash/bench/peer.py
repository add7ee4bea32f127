"""PeerProcess: the llama.cpp worker, run by whichever Python has `llama_cpp`, spoken to in JSON lines."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pydflash.config import KvFormat
from pydflash.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import torch

_EXIT_S = 30.0  # for a worker to leave by itself
_ANSWER_S = 120.0  # for one to find its libraries, on a cold disk


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
        gpu: int | None = None,
        cache_types: tuple[KvFormat, KvFormat] = ("f16", "f16"),
    ) -> None:
        """`gpu`: the number of the one that holds everything, keys and values in `cache_types`; without, the
        CPU and F16. ConfigError where llama.cpp cannot be had so."""
        if gpu is not None:
            require_peer(python, gpu)
        self._process = _worker(python)
        try:
            loaded = self.ask(
                "load",
                path=str(model),
                threads=threads,
                ctx=ctx,
                exact=exact,
                gpu=gpu,
                cache_types=cache_types,
            )
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
        answer = _answer(line)
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

    def decode_steps(self, count: int, depth: int) -> float:
        """As `decode`, without what the driver does between steps."""
        return float(self.ask("decode", count=count, depth=depth)["steps_s"])

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


def beside(
    vs: str | None,
    python: str | None,
    model: Path,
    *,
    threads: int,
    ctx: int,
    device: "torch.device | str",
    cache_types: tuple[KvFormat, KvFormat],
) -> AbstractContextManager["PeerProcess | None"]:
    """llama.cpp where our own model runs; nothing without `vs`."""
    if vs is None:
        return nullcontext(None)
    return PeerProcess(
        model,
        threads=threads,
        ctx=ctx,
        python=python,
        gpu=gpu_of(device),
        cache_types=cache_types,
    )


def require_peer(python: str | None, gpu: int | None) -> None:
    """ConfigError unless llama.cpp can be had there, on a GPU if a number is given. Loads no model."""
    process, where = _worker(python), python or sys.executable
    try:
        told, _ = process.communicate('{"do": "has_gpu"}\n', timeout=_ANSWER_S)
        answer = _answer(told)
    except subprocess.TimeoutExpired:
        process.kill()
        answer = {"ok": False, "error": f"it said nothing in {_ANSWER_S:.0f} s"}
    if not answer["ok"]:
        raise ConfigError(f"--vs llama.cpp cannot use {where}: {answer['error']}")
    if gpu is not None and not answer.get("has_gpu"):
        raise ConfigError(
            f"the llama_cpp of {where} has no GPU, and on the CPU it is no peer of ours; build it with "
            "one (CMAKE_ARGS=-DGGML_CUDA=on pip install llama-cpp-python), or give --peer-python the "
            "Python of an environment that has such a build"
        )


def _answer(line: str) -> dict[str, Any]:
    """The worker's answer; one that says what came instead, if that is none."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if isinstance(found, dict) and "ok" in found:
        return found
    told = line.strip().splitlines()
    words = f"it says {told[0][:80]!r}" if told else "its worker died"
    return {"ok": False, "error": f"it is no Python with llama_cpp: {words}"}


def gpu_of(device: "torch.device | str") -> int | None:
    """The number of the GPU that a peer takes beside ours; None for the CPU."""
    kind, _, index = str(device).partition(":")
    return None if kind == "cpu" else int(index or 0)


def _worker(python: str | None) -> subprocess.Popen[str]:
    if python is None:
        if importlib.util.find_spec("llama_cpp") is None:
            raise ConfigError(
                "--vs llama.cpp needs the package llama-cpp-python; install it here, or give "
                "--peer-python the Python of an environment that has it"
            )
        python = sys.executable
    worker = Path(__file__).with_name("llama_cpp.py")
    try:
        return subprocess.Popen(
            [python, str(worker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    except OSError as error:
        raise ConfigError(f"--peer-python {python} cannot be run: {error.strerror}") from None
