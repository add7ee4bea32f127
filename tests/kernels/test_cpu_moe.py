"""CPU moe and weight scales: against the reference, and bit for bit against itself in other company."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch

from pydflash.errors import UnsupportedError
from pydflash.kernels.cpu import library as cpu_library
from pydflash.kernels.cpu.ops import build_ops
from pydflash.kernels.ops import Expert, MoeArgs, OpTable, Weight
from pydflash.kernels.ref import moe as ref_moe
from pydflash.quant.tensor import QuantTensor
from tests.kernels.cpu_cases import dequantized, random_weight, spans_of

Tensor = torch.Tensor

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _outputs_begin_as_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # fills what torch.empty gives
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def ops() -> OpTable:
    return build_ops(CPU, 2)


class Layer:
    """A random layer in both layouts: `args` for the CPU kernels, `plain` for the reference."""

    def __init__(
        self,
        ops: OpTable,
        experts: int = 9,
        used: int = 3,
        E: int = 64,
        F: int = 32,
        shared: int = 48,
        **more: object,
    ) -> None:
        self.ops = ops
        self.values: dict[int, Tensor] = {}
        self.norm = 1 + torch.randn(E) / 10
        self.E = E

        def expert(seed: int, size: int) -> Expert:
            name = "Q8_0" if size % 32 == 0 else "F32"
            ups = [random_weight("Q4_0", size, E, seed), random_weight("Q5_1", size, E, seed + 1)]
            return Expert(
                gate_up=self.weight(ups), down=self.weight([random_weight(name, E, size, seed)])
            )

        self.args = MoeArgs(
            router=self.weight([random_weight("F32", experts, E, 7)]),
            experts=tuple(expert(100 + 2 * i, F) for i in range(experts)),
            used=used,
            shared=expert(1, shared) if shared else None,
            **more,  # type: ignore[arg-type]
        )

    def weight(self, parts: list[QuantTensor]) -> Weight:
        made = self.ops.prepare(parts)
        self.values[id(made)] = torch.cat([dequantized(p) for p in parts])
        return made

    def product(self, rows: Tensor, w: Weight) -> Tensor:
        return rows @ self.values[id(w)].T

    def reference(self, x: Tensor) -> Tensor:
        return ref_moe.moe(x, self.norm, 1e-6, self.args, spans_of(len(x)), self.product)

    def __call__(self, x: Tensor, ops: OpTable | None = None) -> Tensor:
        ops = ops or self.ops
        return ops.moe(x.clone(), self.norm, 1e-6, self.args, spans_of(len(x)))


SHAPES = {
    "plain": {"shared": 0},
    "shared": {},
    "gated": {"shared_gate": torch.randn(64, generator=torch.Generator().manual_seed(1))},
    "sigmoid": {"sigmoid": True, "scale": 2.5},
    "raw": {"normalise": False, "act": "gelu"},
    "halves": {"F": 24, "shared": 40},
    "odd": {"F": 7, "E": 32, "experts": 21, "used": 4},
    "all": {"experts": 5, "used": 5},
    "one": {"experts": 1, "used": 1},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_moe_against_the_reference(ops: OpTable, shape: str) -> None:
    layer = Layer(ops, **SHAPES[shape])  # type: ignore[arg-type]
    for tokens in (1, 3, 50):
        x = torch.randn(tokens, layer.E)
        torch.testing.assert_close(layer(x), layer.reference(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_in_any_company(ops: OpTable, shape: str) -> None:
    layer = Layer(ops, **SHAPES[shape])  # type: ignore[arg-type]
    one = build_ops(CPU, 1)
    x = torch.randn(150, layer.E)
    alone = torch.cat([layer(x[t : t + 1], one) for t in range(len(x))])
    for tokens in (2, 4, 5, 13, 150):
        assert torch.equal(layer(x[:tokens]), alone[:tokens])
        assert torch.equal(layer(x[-tokens:], one), alone[-tokens:])


@pytest.mark.parametrize("shape", ["gated", "odd"])
def test_every_instruction_set_gives_the_same_bits(ops: OpTable, shape: str) -> None:
    library = cpu_library.load()
    assert library is not None
    layer = Layer(ops, **SHAPES[shape])  # type: ignore[arg-type]
    x = torch.randn(9, layer.E)
    best = layer(x)
    try:
        cpu_library.select(library, "portable")
        plain = layer(x)
    finally:
        cpu_library.select(library)
    assert torch.equal(best, plain)


def test_the_lower_expert_wins_a_tie(ops: OpTable) -> None:
    layer = Layer(ops, experts=6, used=2, shared=0)
    same = random_weight("F32", 6, 64, 3)
    same.data[:] = same.data[0]
    args = layer.args = replace(layer.args, router=layer.weight([same]))
    x = torch.randn(4, 64)
    want = layer(x)
    layer.args = replace(args, experts=(*args.experts[:2], *args.experts[:1] * 4))
    assert torch.equal(layer(x), want)


def test_unchosen_experts_are_not_read(ops: OpTable) -> None:
    """Their scales are NaN: one product with them would show."""
    layer = Layer(ops, experts=8, used=2, shared=0)
    x = torch.randn(1, 64)
    want = layer(x)
    normed = torch.nn.functional.rms_norm(x, (64,), layer.norm, 1e-6)
    chosen, _ = ref_moe.route(layer.product(normed, layer.args.router), layer.args)
    for i in set(range(8)) - set(chosen.flatten().tolist()):
        layer.args.experts[i].down.packed.data[0].fill_(255)  # type: ignore[attr-defined]
    assert torch.equal(layer(x), want)


def test_an_unknown_activation_is_refused(ops: OpTable) -> None:
    with pytest.raises(UnsupportedError, match="relu"):
        Layer(ops, act="relu")(torch.randn(1, 64))


@pytest.mark.parametrize("rows", [96, 70])
@pytest.mark.parametrize("tokens", [1, 3, 7])
def test_weight_scales(ops: OpTable, rows: int, tokens: int) -> None:
    """The scale multiplies the sums before the bias, on every way through the products."""
    part = random_weight("Q8_0", rows, 64)
    bias, scale = torch.randn(rows), torch.randn(rows)
    w = ops.prepare([part], bias)
    w.scale = scale
    x, norm, spans = torch.randn(tokens, 64), torch.ones(64), spans_of(tokens)
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
    want = (x @ dequantized(part).T) * scale + bias
    close(ops.linear(x, w, spans), want)
    residual = torch.randn(tokens, rows)
    close(ops.linear_add(x, w, residual.clone(), spans), residual + want)
    normed = torch.nn.functional.rms_norm(x, (64,), norm, 1e-6)
    both = (normed @ dequantized(part).T) * scale + bias
    gate, up = both.chunk(2, -1)
    close(ops.norm_gated(x, norm, 1e-6, w, "silu", spans), torch.nn.functional.silu(gate) * up)
    w.scale = None
    close(ops.linear(x, w, spans), x @ dequantized(part).T + bias)


def test_experts_with_scales(ops: OpTable) -> None:
    layer = Layer(ops)
    x = torch.randn(6, 64)
    for expert in layer.args.experts:
        for w in (expert.gate_up, expert.down):
            w.scale = torch.rand(w.rows) * 2
            layer.values[id(w)] *= w.scale[:, None]
    torch.testing.assert_close(layer(x), layer.reference(x), rtol=1e-4, atol=1e-4)
