"""Stored positions that move: compaction after a tree, copy on write. All layers of a shape in one launch."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from pydflash.kernels.ops import PAGE_SIZE, PagedKV
from pydflash.kernels.ref import attention as ref
from pydflash.kernels.triton.addresses import addresses, tensor_at

Tensor = torch.Tensor

MOST = 512
"""Positions that one program holds; more of them move through torch."""

_Shapes = list[tuple[PagedKV, Tensor]]
"""Where layers' pages lie, by shape: the first layer of it, and int64 [layers, 4] on the device."""


def copy_slots(kvs: Sequence[PagedKV], src: Tensor, dst: Tensor) -> None:
    """Move stored positions src -> dst, int32 [n] each; every source is read before any place is written."""
    count = src.shape[0]
    if count > MOST:
        ref.copy_slots(kvs, src, dst)
        return
    if count == 0 or not kvs:
        return
    src, dst = src.contiguous(), dst.contiguous()
    for kv, table in _tables(kvs):
        G, D = kv.k.shape[1], kv.k.shape[2]
        copy_slots_kernel[(triton.cdiv(D, 32), G, 2 * len(table))](
            table,
            kv.k,
            kv.k_scale,
            kv.v,
            kv.v_scale,
            src,
            dst,
            count,
            KV_HEADS=G,
            D=D,
            BLOCK_S=max(16, triton.next_power_of_2(count)),
            PAGE=PAGE_SIZE,
        )


def _tables(kvs: Sequence[PagedKV]) -> _Shapes:
    """Kept with the first layer, by addresses: graphs read them."""
    key = tuple([p for kv in kvs for p in (kv.k.data_ptr(), kv.v.data_ptr())])
    if not isinstance(kvs[0].buffers, dict):
        kvs[0].buffers = {}
    tables: dict[tuple[int, ...], _Shapes] = kvs[0].buffers
    if key not in tables:
        by_shape: dict[tuple[object, ...], list[PagedKV]] = {}
        for kv in kvs:
            by_shape.setdefault((kv.k.shape[1:], kv.k_format, kv.v_format), []).append(kv)
        tables[key] = [
            (
                layers[0],
                addresses([(kv.k, kv.k_scale, kv.v, kv.v_scale) for kv in layers], kvs[0].k.device),
            )
            for layers in by_shape.values()
        ]
    return tables[key]


@triton.jit(do_not_specialize=["count"])
def copy_slots_kernel(
    table_ptr,
    k_ptr,
    k_scale_ptr,
    v_ptr,
    v_scale_ptr,
    src_ptr,
    dst_ptr,
    count,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_S: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Grid (D / 32, KV_HEADS, layers times K or V). A program holds its dimensions of all places at once;
    between its reads and its writes stands a barrier, and no other program touches those dimensions."""
    i_b, i_g = tl.program_id(0), tl.program_id(1)
    table_ptr += tl.program_id(2) // 2 * 4
    o_s = tl.arange(0, BLOCK_S)
    m_s = o_s < count
    src = tl.load(src_ptr + o_s, mask=m_s, other=0)
    dst = tl.load(dst_ptr + o_s, mask=m_s, other=0)
    src_head = (src // PAGE).to(tl.int64) * KV_HEADS + i_g
    dst_head = (dst // PAGE).to(tl.int64) * KV_HEADS + i_g
    o_d = i_b * 32 + tl.arange(0, 32)
    m_x = m_s[:, None] & (o_d[None, :] < D)
    if tl.program_id(2) % 2 == 0:
        o_src = (src_head * (D * PAGE) + src % PAGE)[:, None] + o_d[None, :] * PAGE
        o_dst = (dst_head * (D * PAGE) + dst % PAGE)[:, None] + o_d[None, :] * PAGE
        s_src = src_head * (D // 32 * PAGE) + i_b * PAGE + src % PAGE
        s_dst = dst_head * (D // 32 * PAGE) + i_b * PAGE + dst % PAGE
        _move(k_ptr, k_scale_ptr, table_ptr, 0, o_src, o_dst, m_x, s_src, s_dst, m_s)
    else:
        at_src = src_head * PAGE + src % PAGE
        at_dst = dst_head * PAGE + dst % PAGE
        o_src = (at_src * D)[:, None] + o_d[None, :]
        o_dst = (at_dst * D)[:, None] + o_d[None, :]
        s_src = at_src * (D // 32) + i_b
        s_dst = at_dst * (D // 32) + i_b
        _move(v_ptr, v_scale_ptr, table_ptr, 2, o_src, o_dst, m_x, s_src, s_dst, m_s)


@triton.jit
def _move(
    like_ptr, like_scale_ptr, table_ptr, WHICH: tl.constexpr, o_src, o_dst, m_x, s_src, s_dst, m_s
):
    x_ptr = tensor_at(table_ptr + WHICH, like_ptr.dtype.element_ty)
    b_x = tl.load(x_ptr + o_src, mask=m_x)
    if like_scale_ptr is not None:
        scale_ptr = tensor_at(table_ptr + WHICH + 1, like_scale_ptr.dtype.element_ty)
        b_scale = tl.load(scale_ptr + s_src, mask=m_s)
        tl.debug_barrier()
        tl.store(scale_ptr + s_dst, b_scale, mask=m_s)
    else:
        tl.debug_barrier()
    tl.store(x_ptr + o_dst, b_x, mask=m_x)
