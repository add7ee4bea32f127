"""Experts in Triton: routing and grouping against plain Python, sums against the reference."""

from functools import partial

import pytest
import torch

from pydflash.errors import UnsupportedError
from pydflash.kernels.ops import Expert, MoeArgs, RowKind, Span, Weight
from pydflash.kernels.ref import moe as ref_moe
from pydflash.kernels.triton import experts, flow, pointwise
from pydflash.kernels.triton.moe import moe
from pydflash.kernels.triton.route import group, route
from pydflash.kernels.triton.weights import packed_of, prepare
from pydflash.quant.tensor import QuantTensor
from tests.backends import large
from tests.kernels.cpu_cases import dequantized, random_weight, spans_of

Tensor = torch.Tensor
Spans = tuple[Span, ...]


class Layer:
    """A random layer and the values of its weights."""

    def __init__(
        self,
        device: torch.device,
        *,
        experts: int = 4,
        used: int = 2,
        E: int = 128,
        F: int = 32,
        shared: int = 0,
        gated: bool = False,
        formats: tuple[str, str, str] = ("Q4_0", "Q4_0", "Q8_0"),
        **more: object,
    ) -> None:
        self.device, self.E = device, E
        self.values: dict[int, Tensor] = {}
        self.norm = (0.01 + torch.randn(E) / 1000).to(device)
        gate, up, down = formats

        def expert(seed: int, size: int) -> Expert:
            ups = [random_weight(gate, size, E, seed), random_weight(up, size, E, seed + 1)]
            return Expert(
                gate_up=self.weight(ups), down=self.weight([random_weight(down, E, size, seed)])
            )

        self.args = MoeArgs(
            router=self.weight([scaled(random_weight("F32", experts, E, 7), 20.0)]),
            experts=tuple(expert(100 + 2 * i, F) for i in range(experts)),
            used=used,
            shared=expert(1, shared) if shared else None,
            shared_gate=torch.randn(E).to(device) / 16 if gated else None,
            **more,  # type: ignore[arg-type]
        )

    def weight(self, parts: list[QuantTensor]) -> Weight:
        made = prepare(parts, self.device, None)
        self.values[id(made)] = torch.cat([dequantized(p) for p in parts]).to(self.device)
        return made

    def product(self, rows: Tensor, w: Weight) -> Tensor:
        return rows @ self.values[id(w)].T

    def reference(self, x: Tensor, spans: Spans) -> Tensor:
        return ref_moe.moe(x, self.norm, 1e-6, self.args, spans, self.product)

    def __call__(self, x: Tensor, spans: Spans | None = None) -> Tensor:
        return moe(x.clone(), self.norm, 1e-6, self.args, spans or spans_of(len(x)))


def scaled(tensor: QuantTensor, factor: float) -> QuantTensor:
    tensor.data.view(torch.float32).mul_(factor)
    return tensor


SHAPES = {
    "plain": {},
    "gated": {"shared": 32, "gated": True, "E": 256, "formats": ("Q6_K", "Q6_K", "Q8_0")},
    "sigmoid": {"shared": 32, "sigmoid": True, "scale": 2.5, "formats": ("Q5_0", "Q5_0", "Q5_1")},
    "two formats": {
        "normalise": False,
        "act": "gelu",
        "E": 256,
        "formats": ("Q4_K", "F16", "Q4_1"),
    },
    "halves": {"E": 96, "F": 40, "experts": 9, "used": 4, "formats": ("F32", "F32", "F32")},
    "one": {"experts": 1, "used": 1},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_moe_against_the_reference(device: torch.device, shape: str) -> None:
    layer = Layer(device, **SHAPES[shape])  # type: ignore[arg-type]
    for tokens in (1, 5):
        x = torch.randn(tokens, layer.E, device=device)
        want = layer.reference(x, spans_of(tokens))
        scale = float((want - x).abs().max())
        torch.testing.assert_close(layer(x), want, rtol=0, atol=6e-3 * scale)


def test_the_norm_after_experts_is_of_what_they_left(device: torch.device) -> None:
    """A norm made with the sum before the experts is theirs, and never what comes after them."""
    layer = Layer(device)
    output = prepare([random_weight("Q8_0", layer.E, 256, 3)], device, None)
    parts = torch.randn(packed_of(output).slots, 2, layer.E, device=device)
    after = torch.rand(layer.E, device=device)
    spans = spans_of(2)
    for _ in range(3):  # what follows a weight is learned
        x = torch.randn(2, layer.E, device=device)
        flow.add(parts, output, x)
        moe(x, layer.norm, 1e-6, layer.args, spans)
        assert torch.equal(flow.norm(x, after, 1e-6, 128), pointwise.norm(x, after, 1e-6, 128))


def test_a_row_has_the_same_bits_in_any_company(device: torch.device) -> None:
    layer = Layer(device, shared=32, gated=True, formats=("Q5_0", "Q5_0", "Q8_0"))
    many = 64 if large(device) else 5
    x = torch.randn(many, layer.E, device=device)
    together = layer(x)
    alone = torch.cat([layer(x[t : t + 1]) for t in range(many)])
    assert torch.equal(together, alone)
    assert torch.equal(layer(x[-4:].contiguous()), together[-4:])


def test_programs_with_several_jobs_give_the_same_bits(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = Layer(device, experts=2, E=1024, formats=("Q4_0", "Q8_0", "Q8_0"))
    up, down = (packed_of(w) for w in (layer.args.experts[0].gate_up, layer.args.experts[0].down))
    assert (
        len(up.segments) * up.units >= 16
    )  # tiles and splits, and of them more than a program takes
    assert sum(s.tiles for s in down.segments) > 3
    x = torch.randn(2, layer.E, device=device)
    want = layer(x)
    monkeypatch.setattr(experts, "MANY", 1)
    monkeypatch.setattr(experts, "JOBS", 3)
    assert torch.equal(layer(x), want)


def test_prompts_take_wider_blocks_and_give_the_same(device: torch.device) -> None:
    layer = Layer(device, E=128, F=32, experts=3)
    x = torch.randn(70, layer.E, device=device)
    spans = (Span(0, 3, RowKind.EXACT), Span(3, 70, RowKind.PREFILL))
    want = layer.reference(x, spans)
    scale = float((want - x).abs().max())
    torch.testing.assert_close(layer(x, spans), want, rtol=0, atol=6e-3 * scale)
    exact = layer(x[:3].contiguous())
    assert torch.equal(layer(x, spans)[:3], exact)


@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_route(device: torch.device, sigmoid: bool, normalise: bool) -> None:
    router = prepare([random_weight("F32", 37, 32, 1)], device, None)
    args = MoeArgs(
        router=router, experts=(), used=5, sigmoid=sigmoid, normalise=normalise, scale=1.5
    )
    logits = (torch.randn(6, 37) * 3).to(device)
    logits[1] = 0.25  # all alike: the lowest ids
    logits[2, 30:] = logits[2].max() + 1
    chosen, weights, _ = route(logits, torch.zeros(6, 128, device=device).half(), args)
    want, close = ref_moe.route(logits, args), partial(torch.testing.assert_close, rtol=1e-5)
    assert torch.equal(chosen.long(), want[0])
    close(weights, want[1], atol=1e-6)


@pytest.mark.parametrize(
    ("tokens", "experts", "used", "size"),
    [(1, 9, 3, 16), (5, 40, 4, 16), (30, 3, 2, 16), (60, 4, 1, 16), (90, 7, 3, 64)],
)
def test_every_pair_stands_in_one_block_of_its_expert(
    device: torch.device, tokens: int, experts: int, used: int, size: int
) -> None:
    chosen = torch.stack([torch.randperm(experts)[:used] for _ in range(tokens)]).int()
    blocks = group(chosen.to(device), experts, size)
    order, (expert, first, held) = blocks.order.tolist(), blocks.entries.tolist()
    want = sorted(range(tokens * used), key=lambda pair: (int(chosen.view(-1)[pair]), pair))
    assert order == want
    seen = []
    for e, at, count in zip(expert, first, held, strict=True):
        assert 0 <= count <= size
        own = order[at : at + count]
        assert all(int(chosen.view(-1)[pair]) == e for pair in own)
        seen += own
    assert sorted(seen) == sorted(want)


def test_experts_that_cannot_be_stacked_are_refused(device: torch.device) -> None:
    layer = Layer(device, E=128, F=32, experts=2, used=1)
    layer.args.experts[1].down.bias = torch.zeros(128)
    with pytest.raises(UnsupportedError, match="biases"):
        layer(torch.randn(1, 128, device=device))
