"""GraphPool: a step padded to a bucket, in buffers used again and again, gives what the step alone gives."""

from pathlib import Path

import pytest
import torch

from pydflash.engine.batch import gather
from pydflash.engine.engine import Engine
from pydflash.engine.graphs import Bucket
from pydflash.engine.request import Request
from pydflash.errors import EngineError
from pydflash.kernels.ops import PAGE_SIZE, Recurrent, RowKind
from pydflash.kernels.record import Again, page_widths
from pydflash.sampling.params import SamplingParams
from pydflash.spec.proposal import Proposal
from tests.backends import ON_GPU
from tests.spec.test_engine_exact import Guesses, make_engine, run
from tests.tiny.gguf import tiny_gguf
from tests.tiny.qwen35 import DeltaShape

SLOW = "triton" if ON_GPU else "ref"


@pytest.fixture(params=["llama", "qwen35"], scope="module")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(
        tmp_path_factory.mktemp("graphs") / "tiny.gguf",
        request.param,
        hidden=32,
        heads=2,
        kv_heads=1,
        ffn=32,
        delta=DeltaShape(k_heads=1, v_heads=2, state=8),
    )


def asked() -> list[Request]:
    """Three, greedy and sampled, one of them past a page's end."""
    kinds = [
        SamplingParams(max_tokens=6, ignore_eos=True),
        SamplingParams(max_tokens=5, temperature=1.0, ignore_eos=True),
        SamplingParams(max_tokens=7, temperature=0.6, top_k=20, ignore_eos=True),
    ]
    prompts = [(5,), tuple(range(3, 34)), (7, 8, 9, 10)]
    return [
        Request(prompt=prompt, params=params, seed=i)
        for i, (prompt, params) in enumerate(zip(prompts, kinds, strict=True))
    ]


def captured(path: Path, **more: object) -> Engine:
    record = None if ON_GPU else Again()
    return make_engine(path, ops=SLOW, record=record, running=3, **more)  # type: ignore[arg-type]


def test_captured_steps_say_what_eager_ones_say(path: Path) -> None:
    """Rows come and go, with drafts and without: no token changes."""
    eager = make_engine(path, ops=SLOW, running=3)
    eager.graphs.captures = False
    plain = [run(eager, [r])[0] for r in asked()]
    alone = captured(path)
    assert [run(alone, [r])[0] for r in asked()] == plain
    assert alone.graphs.captured == 1
    requests = asked()
    known = {r.id: [*r.prompt, *said] for r, said in zip(requests, plain, strict=True)}
    engine = captured(path, proposer=Guesses(known, seed=1))
    assert run(engine, requests, [0, 1, 3]) == plain
    assert engine.graphs.captured > 1


def test_padding_touches_scratch_only(path: Path) -> None:
    """Every page and slot that somebody may own is as after an eager step, and after its commit."""
    engines = [captured(path), captured(path)]
    engines[1].graphs.captures = False
    tree = Proposal((4, 9, 11, 5, 6), (-1, 0, 0, 1, 2), (0, 1, 1, 2, 2))
    seen = []
    for engine in engines:
        for tensor in engine.states.kv._tensors():
            tensor.zero_()  # memory is as it is found, otherwise
        for request in asked()[:2]:
            engine.add(request)
        for _ in range(4):
            engine.step()
        work, _ = engine._work(engine.scheduler.plan(engine._admit))
        assert [w.row.phase.name for w in work] == ["DECODE", "DECODE"]
        state = work[0].state
        state.reserve(5)
        work[0] = type(work[0])(work[0].row, state, tree)
        ran = engine.graphs.forward(work)
        assert ran.logits.shape == (6, engine.model.vocab_size)
        held = [ran.logits.clone(), *_held(engine)]
        engine.states.commit([w.state for w in work], [[0, 2, 4], [0]])
        seen.append(held + _held(engine))
    for a, b in zip(*seen, strict=True):
        assert torch.equal(a, b)


def _held(engine: Engine) -> list[torch.Tensor]:
    """Copies of every page and slot that somebody may own."""
    states = engine.states
    parts = [t[: states.kv.num_pages].clone() for t in states.kv._tensors()]
    for layer in states.layers:
        if isinstance(layer, Recurrent):
            assert states.recurrent is not None
            parts += [t[: states.recurrent.num_slots].clone() for t in (layer.conv, layer.state)]
    return parts


def test_a_bucket_is_the_smallest_that_fits(path: Path) -> None:
    engine = captured(path)
    for request in asked():
        engine.add(request)
    for _ in range(4):
        engine.step()
    work, _ = engine._work(engine.scheduler.plan(engine._admit))
    cols = gather(work)
    assert engine.graphs.bucket(cols) == Bucket(tokens=3, rows=4, pages=8)
    scratch = engine.states.scratch
    assert scratch is not None
    cols.pad(4, 4, scratch)
    assert cols.cu_q == [0, 1, 2, 3, 3, 4]
    assert cols.kinds == [RowKind.EXACT] * 5
    assert cols.write_slots[3] == scratch.page * PAGE_SIZE
    assert cols.row_of[3] == 4
    assert list(cols.ancestors[3]) == [scratch.page * PAGE_SIZE]
    assert cols.logit_rows == [0, 1, 2, 3]


def test_prompts_and_recomputed_rows_run_eagerly(path: Path) -> None:
    engine = captured(path)
    engine.add(asked()[1])
    cols = gather(engine._work(engine.scheduler.plan(engine._admit))[0])
    assert cols.kinds == [RowKind.PREFILL]
    assert engine.graphs.bucket(cols) is None


def test_widths_of_page_tables() -> None:
    assert page_widths(8) == (8,)
    assert page_widths(128) == (128,)
    assert page_widths(129) == (128, 129)
    assert page_widths(2048) == (128, 512, 2048)


def test_without_memory_one_request_fails_and_the_rest_go_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one being read; what others had is computed again, to the same tokens."""
    plain = [run(make_engine(path, ops=SLOW, running=3), [r])[0] for r in asked()]
    engine = make_engine(path, ops=SLOW, running=3)
    requests = asked()
    engine.add(requests[0])
    said: dict[int, list[int]] = {r.id: [] for r in requests}
    for _ in range(3):
        _note(engine, said)
    forward, failing = engine.graphs.forward, True

    def scarce(work: list, trees: object = None) -> object:  # type: ignore[type-arg]
        nonlocal failing
        if failing and any(w.row.phase.name == "PREFILL" for w in work):
            failing = False
            forward(work)  # states are advanced, and then it fails
            raise torch.OutOfMemoryError("none left")
        return forward(work)

    monkeypatch.setattr(engine.graphs, "forward", scarce)
    engine.add(requests[1])
    errors = []
    while not engine.is_idle:
        errors += _note(engine, said)
        engine.states.check()
    assert [type(e) for e in errors] == [EngineError]
    assert "--max-concurrency" in str(errors[0])
    assert said[requests[0].id] == plain[0]
    assert said[requests[1].id] == []


def _note(engine: Engine, said: dict[int, list[int]]) -> list[EngineError]:
    errors = []
    for result in engine.step():
        said[result.sequence.request.id] += [d.token for d in result.draws]
        if result.error is not None:
            errors.append(result.error)
    return errors
