"""The suite every architecture passes, on every backend: what the engine relies on, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pydflash.engine.request import Phase
from pydflash.models import ARCHITECTURES
from pydflash.spec.proposal import Proposal
from tests.backends import BACKENDS, CLOSE, FAST
from tests.driver import Driver
from tests.tiny.gguf import tiny_gguf
from tests.tiny.qwen35 import DeltaShape, MoeShape

Make = Callable[..., Driver]

TOKENS = [int(t) for t in torch.randint(0, 300, (90,), generator=torch.Generator().manual_seed(5))]
CASES: dict[str, dict[str, Any]] = {
    "f32": {},
    "tied": {"tied": True},
    "bias": {"bias": True},
    "q4_1": {"formats": "Q4_1", "hidden": 64, "ffn": 96},
    "mix": {"formats": {"*attn_v*": "Q8_0", "*ffn_down*": "Q5_1", "*": "Q4_0"}},
    "mha": {"heads": 2, "kv_heads": 2, "head_dim": 32, "layers": 1},
    "yarn": {
        "rope": {
            "scaling.type": "yarn",
            "scaling.factor": 4.0,
            "scaling.original_context_length": 128,
        }
    },
}


# What the younger architectures add to llama and qwen3; what they share is tested there.
HYBRID_CASES: dict[str, dict[str, Any]] = {
    "mix": CASES["mix"],
    "tied": CASES["tied"],
    "groups": {"layers": 4, "delta": DeltaShape(interval=4, k_heads=1, v_heads=3, state=32)},
    "unequal": {"delta": DeltaShape(k_heads=3, v_heads=3, state=8, width=2), "hidden": 96},
}
EXPERT_CASES: dict[str, dict[str, Any]] = {
    "mix": CASES["mix"] | {"moe": MoeShape(fused=True)},
    "sigmoid": {"moe": MoeShape(shared=0), "keys": {"expert_gating_func": 2}},
    "scaled": {"keys": {"expert_weights_scale": 2.5}},
}
ARCH_CASES = {
    "llama": CASES,
    "qwen3": CASES,
    "qwen3moe": EXPERT_CASES,
    "qwen35": HYBRID_CASES,
    "qwen35moe": EXPERT_CASES,
}
WHERE = [(arch, ops) for arch in ARCHITECTURES for ops in BACKENDS]


def write(path: Path, arch: str, case: dict[str, Any]) -> Path:
    extra = {f"{arch}.{key}": value for key, value in case.get("keys", {}).items()}
    return tiny_gguf(
        path / "tiny.gguf", arch, extra=extra, **{k: v for k, v in case.items() if k != "keys"}
    )


# The reference is slow, and its products are the same code for every format and head count.
BUILDS = [
    (arch, ops, case)
    for arch, ops in WHERE
    for case in sorted(ARCH_CASES[arch])
    if ops == FAST or ARCH_CASES[arch] is not CASES or case in ("bias", "mix", "yarn")
]


@pytest.fixture(params=WHERE, ids="-".join)
def where(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture(params=BUILDS, ids="-".join)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    arch, ops, case = request.param
    path = write(tmp_path, arch, ARCH_CASES[arch][case])

    def build(**options: object) -> Driver:
        return Driver(path, **{"ops": ops} | options)  # type: ignore[arg-type]

    return build


def test_prefill_equals_token_by_token(make: Make) -> None:
    d = make()
    a, b = d.state(), d.state()
    whole = d.prefill(a, TOKENS)
    steps = d.decode(b, TOKENS)
    torch.testing.assert_close(whole, steps[-1], **CLOSE)


def test_chunks_of_any_size_agree(make: Make) -> None:
    d = make()
    one = d.prefill(d.state(), TOKENS, chunk=128)
    many = d.prefill(d.state(), TOKENS, chunk=32)
    torch.testing.assert_close(one, many, **CLOSE)


def test_a_batch_is_its_singles(make: Make) -> None:
    """Rows of different lengths, a prefill chunk among them, in one step and alone: the same bits."""
    d = make(threads=2)
    lengths = [1, 31, 32, 33, 64, 70]
    alone, together = [], []
    for n in lengths:
        state = d.state()
        d.prefill(state, TOKENS[:n])
        state.capture()
        alone.append(d.decode(state, [TOKENS[n]]))
        state.rollback(n)
        together.append((state, Phase.DECODE, Proposal.root(TOKENS[n])))
    fresh = d.state()
    expected = d.step([(fresh, Phase.PREFILL, TOKENS[:40])])[0]
    got = d.step([*together, (d.state(), Phase.PREFILL, TOKENS[:40])])
    for n, one, many in zip(lengths, alone, got[:-1], strict=True):
        assert torch.equal(one, many), n
    assert torch.equal(got[-1], expected)


def test_threads_do_not_change_a_bit(make: Make) -> None:
    one, two = make(threads=1), make(threads=2)
    a, b = one.state(), two.state()
    assert torch.equal(one.prefill(a, TOKENS[:50]), two.prefill(b, TOKENS[:50]))
    assert torch.equal(one.decode(a, TOKENS[50:60]), two.decode(b, TOKENS[50:60]))


def test_recompute_in_wide_rows_equals_decoding(make: Make) -> None:
    """A preempted answer is recomputed by exact rows, any number at once."""
    d = make()
    a, b = d.state(), d.state()
    d.prefill(a, TOKENS[:20])
    d.prefill(b, TOKENS[:20])
    d.decode(a, TOKENS[20:60])
    d.step([(b, Phase.RECOMPUTE, TOKENS[20:53])])
    b.extend(33)
    d.step([(b, Phase.RECOMPUTE, TOKENS[53:60])])
    b.extend(7)
    assert torch.equal(d.decode(a, [7]), d.decode(b, [7]))


def test_a_tree_row_equals_the_chain_of_its_path(make: Make) -> None:
    d = make()
    state = d.state()
    d.prefill(state, TOKENS[:30])
    tree = Proposal(
        tokens=(5, 6, 7, 8, 9, 10, 11),
        parents=(-1, 0, 0, 1, 2, 4, 4),
        depth=(0, 1, 1, 2, 2, 3, 3),
    )
    logits = d.verify(state, tree)
    for node in range(len(tree.tokens)):
        path = tree.path(node)
        plain = state.share()
        steps = d.decode(plain, [tree.tokens[i] for i in path])
        assert torch.equal(steps[-1], logits[node]), node
        plain.release()


def test_a_committed_path_equals_never_having_drafted(make: Make) -> None:
    d = make()
    a = d.state()
    d.prefill(a, TOKENS[:29])
    b = a.share()
    tree = Proposal((1, 2, 3, 4, 5), (-1, 0, 0, 2, 2), (0, 1, 1, 2, 2))
    d.verify(a, tree)
    a.commit([0, 2, 4])
    d.decode(b, [1, 3, 5])
    assert torch.equal(d.decode(a, [9, 8, 7]), d.decode(b, [9, 8, 7]))


def test_rollback_is_never_having_gone_ahead(make: Make) -> None:
    d = make()
    a, b = d.state(), d.state()
    d.prefill(a, TOKENS[:40])
    d.prefill(b, TOKENS[:40])
    a.capture()
    d.decode(a, TOKENS[40:50])
    a.rollback(40)
    assert torch.equal(d.decode(a, TOKENS[60:70]), d.decode(b, TOKENS[60:70]))


def test_snapshot_and_restore(make: Make) -> None:
    d = make(kv="f16")
    a = d.state()
    d.prefill(a, TOKENS[:45])
    b = d.state()
    b.import_(a.export())
    assert torch.equal(d.decode(a, TOKENS[45:50]), d.decode(b, TOKENS[45:50]))


@pytest.mark.parametrize("kv", ["f16", "bf16", "q8_0"])
def test_quantised_caches_stay_near_and_exact(
    where: tuple[str, str], kv: str, tmp_path: Path
) -> None:
    arch, ops = where
    path = tiny_gguf(tmp_path / "tiny.gguf", arch, heads=2, kv_heads=1, head_dim=32)
    full, small = Driver(path, ops=ops), Driver(path, ops=ops, kv=kv)
    a, b = full.state(), small.state()
    near = full.prefill(a, TOKENS)
    got = small.prefill(b, TOKENS)
    b.capture()
    assert not torch.equal(near, got)
    torch.testing.assert_close(got, near, rtol=0, atol=0.05 * float(near.abs().max()))
    alone = small.decode(b, [3])
    b.rollback(len(TOKENS))
    rows = [(b, Phase.DECODE, Proposal.root(3)), (small.state(), Phase.PREFILL, TOKENS[:20])]
    assert torch.equal(small.step(rows)[0], alone)


def test_taps_are_layer_outputs(make: Make) -> None:
    d = make()
    last = len(d.model.state_specs()) - 1
    state = d.state()
    logits = d.step([(state, Phase.PREFILL, TOKENS[:20])], taps=frozenset({0, last}))[0]
    assert set(d.taps) == {0, last}
    assert d.taps[last].shape == (20, d.taps[0].shape[1])
    model = d.model
    again = d.ops.norm_linear(
        d.taps[last][-1:].clone(), model.output_norm, model.eps, model.output, _one_row()
    )
    assert torch.equal(again.cpu(), logits)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_reference_and_fast_path_agree(arch: str, tmp_path: Path) -> None:
    for case in ARCH_CASES[arch].values():
        path = write(tmp_path, arch, case)
        ref, fast = Driver(path, ops="ref"), Driver(path, ops=FAST)
        a, b = ref.state(), fast.state()
        expected, got = ref.prefill(a, TOKENS[:60]), fast.prefill(b, TOKENS[:60])
        torch.testing.assert_close(got, expected, **CLOSE)
        expected, got = ref.decode(a, TOKENS[60:64]), fast.decode(b, TOKENS[60:64])
        torch.testing.assert_close(got, expected, **CLOSE)


def _one_row():
    from pydflash.kernels.ops import RowKind, Span

    return (Span(0, 1, RowKind.EXACT),)
