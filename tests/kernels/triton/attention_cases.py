"""Layers, caches and steps for the tests of Triton's attention, on the device under test."""

from dataclasses import fields, replace
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from pydflash.kernels.ops import AttnArgs, PagedKV, Rope, RowKind, Span, StepBatch
from tests.kernels.cpu_cases import Row, fill, paged_kv
from tests.kernels.cpu_cases import step as plain_step

Tensor = torch.Tensor
T = TypeVar("T")


def rope(dims: int, *, interleaved: bool, positions: int = 2048) -> Rope:
    angles = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(0, dims, 2) / dims)
    return Rope(cos=angles.cos(), sin=angles.sin(), dims=dims, interleaved=interleaved)


def args_of(heads: int = 6, kv_heads: int = 2, head_dim: int = 64, **more: Any) -> AttnArgs:
    base = AttnArgs(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5, rope=None
    )
    return replace(base, **more)


def random_qkv(args: AttnArgs, tokens: int) -> Tensor:
    queries = args.heads * (2 if args.gated else 1)
    return torch.randn(tokens, (queries + 2 * args.kv_heads) * args.head_dim)


def filled(args: AttnArgs, rows: list[Row], k: str, v: str) -> PagedKV:
    """Random keys and values at positions 0..base - 1 of the rows, NaN or stray codes elsewhere."""
    kv = paged_kv(args, 1 + max(max(row.pages) for row in rows), k, v)
    for row in rows:
        shape = (row.base, args.kv_heads, args.head_dim)
        fill(kv, args, row, torch.randn(shape), torch.randn(shape))
    return kv


def step(*rows: Row, ancestors: bool = False, first: list[int] | None = None) -> StepBatch:
    """The StepBatch of `rows`, exact ones first, with the spans that an engine gives."""
    batch = plain_step(*rows, ancestors=ancestors)
    exact = batch.cu_q[sum(row.kind is RowKind.EXACT for row in rows)]
    spans = [Span(0, exact, RowKind.EXACT)] if exact else []
    for r, row in enumerate(rows):
        if row.kind is RowKind.PREFILL:
            spans.append(Span(batch.cu_q[r], batch.cu_q[r + 1], RowKind.PREFILL))
    assert [kind for kind, _ in groupby(row.kind for row in rows)] != [0, 1]
    return replace(
        batch,
        spans=tuple(spans),
        first=None if first is None else torch.tensor(first, dtype=torch.int32),
    )


def on(device: torch.device, record: T) -> T:
    """A copy of a record (of records) with its tensors on the device."""
    moved: dict[str, Any] = {}
    for field in fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            moved[field.name] = value.to(device, copy=True)
        elif isinstance(value, Rope):
            moved[field.name] = on(device, value)
    return replace(record, **moved)  # type: ignore[type-var]


def same_pages(a: PagedKV, b: PagedKV) -> bool:
    """Bit for bit, also where nothing was stored."""
    pairs = ((a.k, b.k), (a.v, b.v), (a.k_scale, b.k_scale), (a.v_scale, b.v_scale))
    return all(
        x is y is None
        or (x is not None and y is not None and torch.equal(_bits(x.cpu()), _bits(y.cpu())))
        for x, y in pairs
    )


def _bits(x: Tensor) -> Tensor:
    return x.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def sum_rows_alone(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix unit's rows know nothing of where they lie, nor of how an operand is turned; those of numpy's
    products do, so that the interpreter needs another sum before bits can be compared."""
    if device.type == "cpu":
        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", _dot)


def _dot(_: object, a: Any, b: Any, acc: Any, *how: object) -> Any:
    x, y = (np.ascontiguousarray(side.data, np.float32) for side in (a, b))
    return interpreter.TensorHandle(np.einsum("mk,kn->mn", x, y) + acc.data, acc.dtype.scalar)
