"""Stored positions that move: compaction after a tree, copy on write."""

import torch
import triton
import triton.language as tl

from pydflash.kernels.ops import PAGE_SIZE, PagedKV
from pydflash.kernels.ref import attention as ref

Tensor = torch.Tensor

MOST = 512
"""Positions that one program holds; more of them move through torch."""


def copy_slots(kv: PagedKV, src: Tensor, dst: Tensor) -> None:
    """Move stored positions src -> dst, int32 [n] each; every source is read before any place is written."""
    count = src.shape[0]
    if count > MOST:
        ref.copy_slots(kv, src, dst)
        return
    if count == 0:
        return
    G, D = kv.k.shape[1], kv.k.shape[2]
    copy_slots_kernel[(triton.cdiv(D, 32), G, 2)](
        kv.k,
        kv.k_scale,
        kv.v,
        kv.v_scale,
        src.contiguous(),
        dst.contiguous(),
        count,
        KV_HEADS=G,
        D=D,
        BLOCK_S=max(16, triton.next_power_of_2(count)),
        PAGE=PAGE_SIZE,
    )


@triton.jit(do_not_specialize=["count"])
def copy_slots_kernel(
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
    """Grid (D / 32, KV_HEADS, K or V). A program holds its dimensions of all places at once; between its
    reads and its writes stands a barrier, and no other program touches those dimensions."""
    i_b, i_g = tl.program_id(0), tl.program_id(1)
    o_s = tl.arange(0, BLOCK_S)
    m_s = o_s < count
    src = tl.load(src_ptr + o_s, mask=m_s, other=0)
    dst = tl.load(dst_ptr + o_s, mask=m_s, other=0)
    src_head = (src // PAGE).to(tl.int64) * KV_HEADS + i_g
    dst_head = (dst // PAGE).to(tl.int64) * KV_HEADS + i_g
    o_d = i_b * 32 + tl.arange(0, 32)
    m_x = m_s[:, None] & (o_d[None, :] < D)
    if tl.program_id(2) == 0:
        o_src = (src_head * (D * PAGE) + src % PAGE)[:, None] + o_d[None, :] * PAGE
        o_dst = (dst_head * (D * PAGE) + dst % PAGE)[:, None] + o_d[None, :] * PAGE
        s_src = src_head * (D // 32 * PAGE) + i_b * PAGE + src % PAGE
        s_dst = dst_head * (D // 32 * PAGE) + i_b * PAGE + dst % PAGE
        _move(k_ptr, k_scale_ptr, o_src, o_dst, m_x, s_src, s_dst, m_s)
    else:
        at_src = src_head * PAGE + src % PAGE
        at_dst = dst_head * PAGE + dst % PAGE
        o_src = (at_src * D)[:, None] + o_d[None, :]
        o_dst = (at_dst * D)[:, None] + o_d[None, :]
        s_src = at_src * (D // 32) + i_b
        s_dst = at_dst * (D // 32) + i_b
        _move(v_ptr, v_scale_ptr, o_src, o_dst, m_x, s_src, s_dst, m_s)


@triton.jit
def _move(x_ptr, scale_ptr, o_src, o_dst, m_x, s_src, s_dst, m_s):
    b_x = tl.load(x_ptr + o_src, mask=m_x)
    if scale_ptr is not None:
        b_scale = tl.load(scale_ptr + s_src, mask=m_s)
        tl.debug_barrier()
        tl.store(scale_ptr + s_dst, b_scale, mask=m_s)
    else:
        tl.debug_barrier()
    tl.store(x_ptr + o_dst, b_x, mask=m_x)
