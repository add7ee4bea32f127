"""Part of the GPU bench: llama.cpp on the same file, device, context and KV formats, beside our figures.

It runs when our own model is gone, since both may not fit. It has no trees: a chain of as many rows, the
logits of all wanted, stands beside our tree and its commit. Only its steps are timed; the copy of wanted
logits to the host is part of each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydflash.bench import gpu_parts
from pydflash.bench.gpu_subject import SETTLE, shallow
from pydflash.bench.llama_cpp import GPU_UBATCH, UBATCH
from pydflash.bench.peer import PeerProcess
from pydflash.bench.report import Samples
from pydflash.config import KvFormat

_TIMES = 3  # that a prompt and an answer count, after one that warms up


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Where llama.cpp runs, and how."""

    model: Path
    python: str | None
    gpu: int | None  # its number; None: the CPU
    threads: int
    ctx: int
    cache_types: tuple[KvFormat, KvFormat]

    def measure(
        self, body: Mapping[str, Any], repeats: int, say: Callable[[str], None]
    ) -> dict[str, Any]:
        """Its figures, and our time over its time where `body` has ours."""
        with PeerProcess(
            self.model,
            threads=self.threads,
            ctx=self.ctx,
            python=self.python,
            gpu=self.gpu,
            cache_types=self.cache_types,
        ) as process:
            lines = [*_steps(process, self.ctx, repeats, body), *_texts(process, self.ctx, body)]
            version = process.version
        for line in lines:
            say(f"llama.cpp, {line.words()}")
        return {
            "version": version,
            "gpu": self.gpu,
            "ubatch": UBATCH if self.gpu is None else GPU_UBATCH,
            "ctx": self.ctx,
            "figures": [line.to_json() for line in lines],
            "ratio": {line.name: line.ratio for line in lines if line.ratio is not None},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Seconds of one figure, `ours` the median of a part that ran; of a text, `tokens` are in each."""

    name: str
    tokens: int | None = None
    ours: float | None
    theirs: Samples

    @property
    def ratio(self) -> float | None:
        return None if self.ours is None else self.ours / self.theirs.median

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "tokens": self.tokens,
            "ours_s": self.ours,
            "theirs": self.theirs.to_json(),
            "ratio": self.ratio,
        }

    def words(self) -> str:
        told = f"{self.name}: {shown(self.theirs.median, self.tokens)}"
        if self.ours is None:
            return told
        return f"{told}; ours {shown(self.ours, self.tokens)}, {self.ratio:.2f} x its time"


def shown(seconds: float, tokens: int | None) -> str:
    """A step as milliseconds, a text as tokens a second."""
    return f"{seconds * 1e3:.2f} ms" if tokens is None else f"{tokens / seconds:.1f} tok/s"


def _steps(process: PeerProcess, ctx: int, repeats: int, body: Mapping[str, Any]) -> list[_Line]:
    """One token after few and after many positions, and as many as our first tree has."""
    few, tree, lines = shallow(ctx), gpu_parts.ROWS[0], []
    asked = [(1, few), (tree, few), (1, gpu_parts.deep(ctx))]
    for rows, depth in dict.fromkeys(asked):
        process.fill(depth)
        process.step(rows, depth, SETTLE)
        name = "one-token step" if rows == 1 else f"{rows} rows, a chain beside our tree and commit"
        one = (
            ("step", f"depth {depth}", "wall") if rows == 1 else ("verify", f"{rows} rows", "whole")
        )
        lines.append(
            _Line(
                name=f"{name}, depth {depth}",
                ours=_ours(body, *one, "median_s"),
                theirs=Samples(tuple(process.step(rows, depth, repeats))),
            )
        )
    return lines


def _texts(process: PeerProcess, ctx: int, body: Mapping[str, Any]) -> list[_Line]:
    """Reading a prompt, and writing an answer."""
    prompt, answer, depth = gpu_parts.prompt(ctx), gpu_parts.answer(ctx), shallow(ctx)
    read = [process.prefill(prompt) for _ in range(_TIMES + 1)]
    wrote = [process.decode_steps(answer, depth) for _ in range(_TIMES + 1)]
    rate = _ours(body, "decode", "tok_s")
    return [
        _Line(
            name=f"prefill of {prompt} tokens",
            tokens=prompt,
            ours=_ours(body, "prefill", "median_s"),
            theirs=Samples(tuple(read[1:])),
        ),
        _Line(
            name=f"decode of {answer} tokens, depth {depth}",
            tokens=answer,
            ours=None if rate is None else answer / rate,
            theirs=Samples(tuple(wrote[1:])),
        ),
    ]


def _ours(body: Mapping[str, Any], *path: str) -> float | None:
    """A figure of our own; None where its part failed or did not run."""
    found: Any = body
    for name in path:
        found = found.get(name)
        if found is None:
            return None
    return float(found)
