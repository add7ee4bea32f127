"""Paged attention: q/k norm, rope, store, then softmax over the pages. The specification.

Keys are read back after the store, the step's own too, so that a quantised cache is exact. A tree node
finds its ancestors through `batch.ancestors`; its keys are gathered in order of absolute position. What a
query may not see at all (below the row's first position, above its last) is not read.
"""

from collections.abc import Sequence

import torch

from pydflash.kernels.ops import PAGE_SIZE, AttnArgs, PagedKV, RowKind, StepBatch
from pydflash.kernels.ref.pointwise import apply_rope, rms_norm

Tensor = torch.Tensor

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def attention(qkv: Tensor, kv: PagedKV, args: AttnArgs, batch: StepBatch) -> Tensor:
    """qkv f32 [T, (H + 2G) * D] -> f32 [T, H * D]. Stores this step's keys and values first.

    With `args.gated` there are 2H query parts, each head's gate after its query.
    """
    H, G, D = args.heads, args.kv_heads, args.head_dim
    parts = 2 * H if args.gated else H
    q, k, v = torch.split(qkv.view(-1, parts + 2 * G, D), [parts, G, G], 1)
    gate = None
    if args.gated:
        q, gate = q[:, 0::2], q[:, 1::2]
    if args.q_norm is not None:
        q = rms_norm(q, args.q_norm, args.eps)
    if args.k_norm is not None:
        k = rms_norm(k, args.k_norm, args.eps)
    if args.rope is not None:
        q = apply_rope(q, batch.positions, args.rope)
        k = apply_rope(k, batch.positions, args.rope)
    store(kv, k, v, batch.write_slots)
    out = torch.empty(qkv.shape[0], H, D, dtype=torch.float32, device=qkv.device)
    for row, kind in enumerate(batch.kinds):
        start, stop = batch.cu_q[row], batch.cu_q[row + 1]
        step = stop - start if kind is RowKind.PREFILL else 1
        for t in range(start, stop, step):
            both_ways = not args.causal and kind is RowKind.EXACT
            low = 0 if batch.first is None else int(batch.first[row])
            slots = _key_slots(batch, row, stop - 1 if both_ways else t + step - 1, args.causal)[
                low:
            ]
            keys, values = load(kv, slots)
            at = torch.arange(low, low + len(slots), device=q.device)
            seen = _seen(at, batch.positions[t : t + step], args.window, both_ways)
            out[t : t + step] = _softmax_over(q[t : t + step], keys, values, seen, args)
    if gate is not None:
        out *= gate.sigmoid()
    return out.view(-1, H * D)


def store_kv(pairs: Tensor, kv: PagedKV, args: AttnArgs, batch: StepBatch) -> None:
    """pairs f32 [T, 2G * D]: keys to norm and rotate, then values. Stores both, attends to nothing."""
    k, v = pairs.reshape(-1, 2, args.kv_heads, args.head_dim).unbind(1)
    if args.k_norm is not None:
        k = rms_norm(k, args.k_norm, args.eps)
    if args.rope is not None:
        k = apply_rope(k, batch.positions, args.rope)
    store(kv, k, v, batch.write_slots)


def store(kv: PagedKV, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write keys and values f32 [T, G, D] at physical places int [T]."""
    page, lane = slots.long() // PAGE_SIZE, slots.long() % PAGE_SIZE
    if kv.k_format == "q8_0":
        codes, scale = quantize_q8_0(k)
        kv.k[page, :, :, lane] = codes
        assert kv.k_scale is not None
        kv.k_scale[page, :, :, lane] = scale
    else:
        kv.k[page, :, :, lane] = k.to(kv.k.dtype)
    if kv.v_format == "q8_0":
        codes, scale = quantize_q8_0(v)
        kv.v[page, :, lane] = codes
        assert kv.v_scale is not None
        kv.v_scale[page, :, lane] = scale
    else:
        kv.v[page, :, lane] = v.to(kv.v.dtype)


def load(kv: PagedKV, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Read keys and values back as f32 [S, G, D] each, from physical places int [S]."""
    page, lane = slots.long() // PAGE_SIZE, slots.long() % PAGE_SIZE
    keys = kv.k[page, :, :, lane].float()
    values = kv.v[page, :, lane].float()
    if kv.k_scale is not None:
        keys = keys * kv.k_scale[page, :, :, lane].float().repeat_interleave(32, -1)
    if kv.v_scale is not None:
        values = values * kv.v_scale[page, :, lane].float().repeat_interleave(32, -1)
    return keys, values


def copy_slots(kvs: Sequence[PagedKV], src: Tensor, dst: Tensor) -> None:
    """Copy stored positions src int [n] to dst int [n]; all reads happen before any write."""
    for kv in kvs:
        _copy_slots(kv, src, dst)


def _copy_slots(kv: PagedKV, src: Tensor, dst: Tensor) -> None:
    sp, sl = src.long() // PAGE_SIZE, src.long() % PAGE_SIZE
    dp, dl = dst.long() // PAGE_SIZE, dst.long() % PAGE_SIZE
    kv.k[dp, :, :, dl] = kv.k[sp, :, :, sl]
    kv.v[dp, :, dl] = kv.v[sp, :, sl]
    if kv.k_scale is not None:
        kv.k_scale[dp, :, :, dl] = kv.k_scale[sp, :, :, sl]
    if kv.v_scale is not None:
        kv.v_scale[dp, :, dl] = kv.v_scale[sp, :, sl]


def quantize_q8_0(x: Tensor) -> tuple[Tensor, Tensor]:
    """f32 [..., D] -> int8 [..., D] codes and f16 [..., D / 32] scales, GGUF's Q8_0."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    d = blocks.abs().amax(-1, keepdim=True) / 127
    inverse = torch.where(d > 0, 1 / d, torch.zeros_like(d))
    scaled = blocks * inverse
    codes = (scaled.abs() + 0.5).floor() * scaled.sign()
    return codes.to(torch.int8).flatten(-2), d.squeeze(-1).to(torch.float16)


def _key_slots(batch: StepBatch, row: int, t: int, tree: bool) -> Tensor:
    """Physical places of every position up to token t's own, in order of position."""
    positions = torch.arange(int(batch.positions[t]) + 1, device=batch.tokens.device)
    pages = batch.page_table[row].long()
    slots = pages[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
    if tree and batch.ancestors is not None and batch.kinds[row] is RowKind.EXACT:
        base = int(batch.base[row])
        depth = len(positions) - base
        slots = torch.cat((slots[:base], batch.ancestors[t, :depth].long()))
    return slots


def _seen(at: Tensor, pos: Tensor, window: int | None, both_ways: bool) -> Tensor:
    """Which keys at positions at [S] queries at pos [n] see: bool [n, S]."""
    ahead = at[None, :] - pos[:, None]
    seen = torch.ones_like(ahead, dtype=torch.bool) if both_ways else ahead <= 0
    return seen if window is None else seen & (ahead.abs() < window)


def _softmax_over(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor, args: AttnArgs) -> Tensor:
    """q [n, H, D] over the keys, values [S, G, D] it has seen, bool [n, S] -> [n, H, D]."""
    group = args.heads // args.kv_heads
    keys = keys.repeat_interleave(group, 1)  # [S, H, D]
    values = values.repeat_interleave(group, 1)
    scores = torch.einsum("nhd,shd->hns", q, keys) * args.scale
    if args.softcap is not None:
        scores = torch.tanh(scores / args.softcap) * args.softcap
    scores = scores.masked_fill(~seen, float("-inf"))
    return torch.einsum("hns,shd->nhd", scores.softmax(-1), values)
