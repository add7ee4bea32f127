"""Random weights, paged caches and steps for the tests of the CPU kernels, and a naive float64 attention."""

from dataclasses import dataclass

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants

from pydflash.kernels.ops import PAGE_SIZE, AttnArgs, PagedKV, RowKind, Span, StepBatch
from pydflash.quant.formats import FORMATS
from pydflash.quant.tensor import QuantTensor

Tensor = torch.Tensor

SCALES = {  # byte offsets of the f16 scales of a block
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "q8_0": torch.int8}


def random_weight(name: str, rows: int, cols: int, seed: int = 0) -> QuantTensor:
    """A matrix of valid random blocks with scales around 0.01."""
    rng = np.random.default_rng(seed)
    fmt = FORMATS[name]
    if name in SCALES:
        data = rng.integers(0, 256, (rows, cols // fmt.block, fmt.block_bytes), dtype=np.uint8)
        for at in SCALES[name]:
            scale = rng.normal(size=(rows, cols // fmt.block, 1)) * 0.01
            data[..., at : at + 2] = scale.astype(np.float16).view(np.uint8)
    else:
        x = torch.from_numpy(rng.normal(size=(rows, cols)).astype(np.float32))
        data = x.to(DTYPES[name.lower()]).view(torch.uint8).numpy()
    return QuantTensor(
        name=f"w.{name}",
        data=torch.from_numpy(data.reshape(rows, -1).copy()),
        format=fmt,
        shape=(rows, cols),
    )


def dequantized(tensor: QuantTensor) -> Tensor:
    """The official dequantisation, f32 [N, K]."""
    kind = GGMLQuantizationType[tensor.format.name]
    return torch.from_numpy(
        quants.dequantize(tensor.data.numpy(), kind).astype(np.float32).reshape(tensor.shape)
    )


def spans_of(tokens: int) -> tuple[Span, ...]:
    return (Span(start=0, stop=tokens, kind=RowKind.EXACT),)


def paged_kv(args: AttnArgs, pages: int, k_format: str, v_format: str) -> PagedKV:
    """Pages full of NaN (or of stray codes): whatever is read before it was stored shows."""
    G, D = args.kv_heads, args.head_dim

    def blank(shape: tuple[int, ...], name: str) -> Tensor:
        if name == "q8_0":
            return torch.full(shape, 77, dtype=torch.int8)
        return torch.full(shape, float("nan"), dtype=DTYPES[name])

    def scales(shape: tuple[int, ...], name: str) -> Tensor | None:
        return torch.full(shape, float("nan"), dtype=torch.float16) if name == "q8_0" else None

    return PagedKV(
        k=blank((pages, G, D, PAGE_SIZE), k_format),
        v=blank((pages, G, PAGE_SIZE, D), v_format),
        k_format=k_format,
        v_format=v_format,
        k_scale=scales((pages, G, D // 32, PAGE_SIZE), k_format),
        v_scale=scales((pages, G, PAGE_SIZE, D // 32), v_format),
    )


@dataclass(frozen=True)
class Row:
    """One sequence of a step: `tokens` new positions from `base`, pages by physical number."""

    base: int
    tokens: int
    pages: tuple[int, ...]
    kind: RowKind = RowKind.EXACT
    parents: tuple[int, ...] | None = (
        None  # a tree: index in the row of each token's parent, -1 first
    )


def step(*rows: Row, ancestors: bool = False) -> StepBatch:
    """The StepBatch of `rows`. Tokens of a tree lie in write order; positions follow their depth."""
    positions: list[int] = []
    slots: list[int] = []
    paths: list[list[int]] = []
    cu_q = [0]
    for row in rows:
        depth: list[int] = []
        chains: list[list[int]] = []
        for i in range(row.tokens):
            parent = i - 1 if row.parents is None else row.parents[i]
            depth.append(0 if parent < 0 else depth[parent] + 1)
            place = row.base + i
            slots.append(row.pages[place // PAGE_SIZE] * PAGE_SIZE + place % PAGE_SIZE)
            chains.append([*(chains[parent] if parent >= 0 else []), slots[-1]])
        positions += [row.base + d for d in depth]
        paths += chains
        cu_q.append(cu_q[-1] + row.tokens)
    width, most = max(len(row.pages) for row in rows), max(map(len, paths))

    def ints(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    total = cu_q[-1]
    return StepBatch(
        tokens=torch.zeros(total, dtype=torch.int32),
        positions=ints(positions),
        row_of=ints([r for r, row in enumerate(rows) for _ in range(row.tokens)]),
        kinds=tuple(row.kind for row in rows),
        cu_q=tuple(cu_q),
        base=ints([row.base for row in rows]),
        page_table=torch.stack(
            [ints([*row.pages] + [0] * (width - len(row.pages))) for row in rows]
        ),
        write_slots=ints(slots),
        slots=torch.zeros(len(rows), dtype=torch.int32),
        ancestors=torch.stack([ints(p + [-1] * (most - len(p))) for p in paths])
        if ancestors
        else None,
        parents=None,
        logit_rows=torch.arange(total),
        spans=spans_of(total),
        starts=ints(cu_q),
    )


def fill(kv: PagedKV, args: AttnArgs, row: Row, keys: Tensor, values: Tensor) -> None:
    """Store keys, values f32 [S, G, D] at positions 0.. of `row`, in the cache's formats."""
    for position in range(keys.shape[0]):
        page, lane = row.pages[position // PAGE_SIZE], position % PAGE_SIZE
        for codes, scale, x, name in (
            (kv.k[page, :, :, lane], kv.k_scale, keys[position], kv.k_format),
            (kv.v[page, :, lane], kv.v_scale, values[position], kv.v_format),
        ):
            if name == "q8_0":
                assert scale is not None
                q, d = quantized(x)
                codes.copy_(q)
                (
                    scale[page, :, :, lane]
                    if codes is not None and scale is kv.k_scale
                    else scale[page, :, lane]
                ).copy_(d)
            else:
                codes.copy_(x)


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """The official Q8_0: f32 [..., D] -> int8 [..., D], f16 [..., D / 32]."""
    raw = quants.quantize(x.numpy(), GGMLQuantizationType.Q8_0).reshape(*x.shape[:-1], -1, 34)
    d = torch.from_numpy(raw[..., :2].copy().view(np.float16)[..., 0])
    return torch.from_numpy(raw[..., 2:].copy().view(np.int8)).flatten(-2), d


def stored(x: Tensor, name: str) -> Tensor:
    """What reading back gives, float64."""
    if name == "q8_0":
        codes, d = quantized(x)
        return codes.double() * d.double().repeat_interleave(32, -1)
    return x.to(DTYPES[name]).double()


def normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def rotated(x: Tensor, position: int, args: AttnArgs) -> Tensor:
    """x [heads, D] float64."""
    if args.rope is None:
        return x
    n = args.rope.dims
    cos, sin = args.rope.cos[position].double(), args.rope.sin[position].double()
    first = slice(0, n, 2) if args.rope.interleaved else slice(0, n // 2)
    second = slice(1, n, 2) if args.rope.interleaved else slice(n // 2, n)
    out = x.clone()
    out[:, first] = x[:, first] * cos - x[:, second] * sin
    out[:, second] = x[:, first] * sin + x[:, second] * cos
    return out


def naive_attention(
    qkv: Tensor, past: tuple[Tensor, Tensor], base: int, args: AttnArgs, kv: PagedKV
) -> Tensor:
    """float64 attention of a chain of tokens behind `past` keys and values [S, G, D] -> [T, H * D]."""
    H, G, D = args.heads, args.kv_heads, args.head_dim
    x = qkv.double().view(-1, H + 2 * G, D)
    keys = [stored(k, kv.k_format) for k in past[0][:base]]
    values = [stored(v, kv.v_format) for v in past[1][:base]]
    out = []
    for t in range(x.shape[0]):
        q = rotated(normed(x[t, :H], args.q_norm, args.eps), base + t, args)
        k = rotated(normed(x[t, H : H + G], args.k_norm, args.eps), base + t, args)
        keys.append(stored(k.float(), kv.k_format))
        values.append(stored(x[t, H + G :].float(), kv.v_format))
        low = max(0, base + t + 1 - args.window) if args.window else 0
        ks = torch.stack(keys[low:]).repeat_interleave(H // G, 1)
        vs = torch.stack(values[low:]).repeat_interleave(H // G, 1)
        scores = torch.einsum("hd,shd->hs", q, ks) * args.scale
        if args.softcap is not None:
            scores = torch.tanh(scores / args.softcap) * args.softcap
        out.append(torch.einsum("hs,shd->hd", scores.softmax(-1), vs).flatten())
    return torch.stack(out)
