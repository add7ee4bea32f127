"""Draws from logits that stay on a device: the same answers as from whole rows, with and without drafts."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pydflash.engine.request import Request
from pydflash.kernels.record import Again
from pydflash.sampling.ask import Stretch
from pydflash.sampling.device import Best, DeviceRows
from pydflash.sampling.sampler import Sampler
from tests.backends import FAST, ON_GPU, table
from tests.spec.test_engine_exact import Guesses, make_engine, requests, run


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> list[DeviceRows]:
    """Samplers take the way of logits on a device, by the reference's ops; the rows of every step."""
    made: list[DeviceRows] = []
    ops = table("ref", threads=1)

    def rows(
        self: Sampler, logits: torch.Tensor, stretches: Sequence[Stretch], best: Best | None = None
    ) -> DeviceRows:
        logits = logits[:, : self.vocab_size]
        if best is not None:
            assert all(torch.equal(a, b) for a, b in zip(best, ops.argmax(logits), strict=True))
        made.append(DeviceRows(self._dice, ops, logits, stretches, best))
        return made[-1]

    monkeypatch.setattr(Sampler, "rows", rows)
    return made


def test_answers_are_those_of_whole_rows(
    tiny_qwen3: Path, on_device: list[DeviceRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _some()
    together = run(make_engine(tiny_qwen3, ops=FAST), asked)
    known = {len(r.prompt): [*r.prompt, *answer] for r, answer in zip(asked, together, strict=True)}
    guesses = Guesses(known, 5)
    drafted = run(make_engine(tiny_qwen3, ops=FAST, proposer=guesses), _some())
    assert guesses.hits
    assert on_device
    monkeypatch.undo()
    whole = run(make_engine(tiny_qwen3, ops=FAST), _some())
    assert together == whole
    assert drafted == whole


@pytest.mark.skipif(ON_GPU, reason="the rows' ops are the reference's, on the CPU")
def test_captured_steps_bring_their_best_tokens(
    tiny_qwen3: Path, on_device: list[DeviceRows]
) -> None:
    """Greedy draws take them as they are; padding of the vocabulary is never the best."""
    request = requests()[0]
    plain = run(make_engine(tiny_qwen3, ops="ref"), [request])[0]
    guesses = Guesses({request.id: [*request.prompt, *plain]}, 5)
    engine = make_engine(tiny_qwen3, ops="ref", proposer=guesses, record=Again(), vocab=300)
    on_device.clear()
    small = run(engine, [request])[0]
    assert engine.graphs.captured > 1
    eager = [rows for rows in on_device if rows._best is None]
    assert len(eager) == 1 < len(on_device), "the prompt's own step"
    engine = make_engine(tiny_qwen3, ops="ref", vocab=300)
    assert small == run(engine, [request])[0]


def _some() -> list[Request]:
    """Greedy, plain temperature, filters, and an end of text that is banned for a while."""
    every = requests()
    return [every[i] for i in (0, 1, 2, 6)]
