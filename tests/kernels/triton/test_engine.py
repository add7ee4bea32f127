"""The whole engine over Triton's kernels: a tiny hybrid model says what it says by the reference's."""

from pathlib import Path

import torch

from pydflash.engine.engine import Engine
from pydflash.engine.request import Request
from pydflash.kernels.record import Again
from pydflash.sampling.params import SamplingParams
from tests.backends import ON_GPU
from tests.spec.test_engine_exact import Guesses, make_engine, run
from tests.tiny.gguf import tiny_gguf
from tests.tiny.qwen35 import DeltaShape

PROMPT = (5, 9, 11)


def asked() -> list[Request]:
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    return [Request(prompt=PROMPT, params=params, seed=0, id=1)]


def poisoned(engine: Engine) -> Engine:
    """Keys and values that nobody stored are NaN."""
    for tensor in engine.states.kv._tensors():
        tensor[: engine.states.kv.num_pages].fill_(float("nan"))
    return engine


def test_a_tiny_model_drafts_and_answers(tmp_path: Path) -> None:
    """Prompt, tree verification in padded steps, commit and compaction."""
    path = tiny_gguf(
        tmp_path / "tiny.gguf",
        "qwen35",
        hidden=32,
        heads=2,
        kv_heads=1,
        ffn=32,
        vocab=272,
        delta=DeltaShape(k_heads=1, v_heads=2, state=16),
    )
    want = run(make_engine(path, ops="ref"), asked())
    guesses = Guesses({1: [*PROMPT, *want[0]]}, seed=1)
    record = None if ON_GPU else Again()
    engine = make_engine(path, ops="triton", proposer=guesses, record=record)
    assert engine.states.recurrent is not None
    assert run(poisoned(engine), asked()) == want
    assert engine.graphs.captured
    assert torch.isfinite(engine.states.recurrent.layers[0].state).all()
