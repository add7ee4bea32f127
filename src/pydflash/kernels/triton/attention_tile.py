"""What attention does with one tile of keys: find it in the pages, read it, and fold it into the softmax.

The pieces that exact and prefill rows share. A tile is BLOCK_N positions from a multiple of BLOCK_N, so a
query's sums depend on absolute positions alone. Softmax is in powers of two: a query came multiplied by
`rope_store.query_scale`.
"""

import triton
import triton.language as tl


@triton.jit
def paged_slots(table_ptr, o_n, low, high, PAGE: tl.constexpr):
    """Pages int64 and lanes of the positions o_n [N], a whole tile. A page with nothing of low..high - 1
    is not looked up."""
    first = o_n // PAGE * PAGE
    page = tl.load(table_ptr + o_n // PAGE, mask=(first < high) & (first + PAGE > low), other=0)
    return page.to(tl.int64), o_n % PAGE


@triton.jit
def half_of(b_x, ASM: tl.constexpr):
    """Stored keys or values as f16; f32 stay. Codes take two instructions for two of them: with the bias of
    128 a code is the low byte of a number in 1024..1279."""
    if b_x.dtype == tl.int8:
        if ASM:
            b_h = tl.inline_asm_elementwise(
                """
                {
                .reg .b32 t, more;
                mov.b32 more, 0x64806480;
                xor.b32 t, $2, 0x80808080;
                prmt.b32 $0, t, 0x64646464, 0x4140;
                prmt.b32 $1, t, 0x64646464, 0x4342;
                sub.rn.f16x2 $0, $0, more;
                sub.rn.f16x2 $1, $1, more;
                }
                """,
                "=&r,=&r,r",
                [b_x],
                dtype=tl.float16,
                is_pure=True,
                pack=4,
            )
        else:
            b_h = b_x.to(tl.float16)
    elif b_x.dtype == tl.float32:
        b_h = b_x
    else:
        b_h = b_x.to(tl.float16)
    return b_h


@triton.jit
def load_keys(
    k_ptr, scale_ptr, page, lane, i_g,
    PAGED: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, PAGE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Keys [BLOCK_D, BLOCK_N], f32 if the pages have f32, else f16. Lanes nobody wrote come as they lie.

    PAGED: runs of PAGE positions lie side by side, which the loads are told. Else keys may lie anywhere, and
    a thread takes one key's: the tile is turned, for of equal strides Triton puts threads along the first.
    """
    o_d = tl.arange(0, BLOCK_D)
    o_b = tl.arange(0, BLOCK_D // 32)
    o_n = (page * KV_HEADS + i_g) * (D * PAGE) + lane
    if PAGED:
        o_n = tl.max_contiguous(tl.multiple_of(o_n, PAGE), PAGE)
        o_k = o_n[None, :] + o_d[:, None] * PAGE
        b_k = half_of(tl.load(k_ptr + o_k, mask=o_d[:, None] < D, other=0), ASM)
    else:
        o_k = (k_ptr + o_n)[:, None] + (o_d * PAGE)[None, :]
        b_k = half_of(tl.load(o_k, mask=o_d[None, :] < D, other=0), ASM)
    if scale_ptr is not None:
        o_n = (page * KV_HEADS + i_g) * (D // 32 * PAGE) + lane
        if PAGED:
            o_n = tl.max_contiguous(tl.multiple_of(o_n, PAGE), PAGE)
            o_s = o_n[None, :] + o_b[:, None] * PAGE
            b_s = tl.load(scale_ptr + o_s, mask=o_b[:, None] < D // 32, other=0)
            b_k = tl.reshape(b_k, (BLOCK_D // 32, 32, BLOCK_N)) * b_s[:, None, :]
            b_k = tl.reshape(b_k, (BLOCK_D, BLOCK_N))
        else:
            o_s = (scale_ptr + o_n)[:, None] + (o_b * PAGE)[None, :]
            b_s = tl.load(o_s, mask=o_b[None, :] < D // 32, other=0)
            b_k = tl.reshape(b_k, (BLOCK_N, BLOCK_D // 32, 32)) * b_s[:, :, None]
            b_k = tl.reshape(b_k, (BLOCK_N, BLOCK_D))
    if not PAGED:
        b_k = tl.trans(b_k)
    return b_k


@triton.jit
def load_values(
    v_ptr, scale_ptr, page, lane, m_n, i_g,
    KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, PAGE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Values [BLOCK_N, BLOCK_D], f32 if the pages have f32, else f16: zeros where m_n is false, for a weight
    of zero does not silence a NaN."""
    o_d = tl.arange(0, BLOCK_D)
    o_n = (page * KV_HEADS + i_g) * PAGE + lane
    o_v = (o_n * D)[:, None] + o_d[None, :]
    b_v = half_of(tl.load(v_ptr + o_v, mask=m_n[:, None] & (o_d[None, :] < D), other=0), ASM)
    if scale_ptr is not None:
        o_b = tl.arange(0, BLOCK_D // 32)
        o_s = (o_n * (D // 32))[:, None] + o_b[None, :]
        b_s = tl.load(scale_ptr + o_s, mask=m_n[:, None] & (o_b[None, :] < D // 32), other=0)
        b_v = tl.reshape(b_v, (BLOCK_N, BLOCK_D // 32, 32)) * b_s[:, :, None]
        b_v = tl.reshape(b_v, (BLOCK_N, BLOCK_D))
    return b_v


@triton.jit
def _product(b_a, b_b, b_acc):
    """b_a b_b, plus b_acc unless it is None. Operands of f32 keep their bits: by the plain units while these
    have the registers for it, else as three products of TF32, good to some 2^-21."""
    if b_b.dtype == tl.float32 and b_b.shape[0] * b_b.shape[1] > 4096:
        b_c = tl.dot(b_a, b_b, b_acc, input_precision="tf32x3")
    else:
        b_c = tl.dot(b_a, b_b, b_acc, input_precision="ieee")
    return b_c


@triton.jit
def fold(b_q, b_k, b_v, seen, b_max, b_sum, b_acc, SOFTCAP: tl.constexpr):
    """The running softmax of queries b_q [M, D] over one more tile: new (max [M], sum [M], acc [M, D]).

    A tile of which a query has seen nothing leaves that query's three as they were, to the bit. SOFTCAP is
    in powers of two, 0 for none.
    """
    b_s = _product(b_q, b_k, None)
    if SOFTCAP > 0:
        b_s = SOFTCAP - (2 * SOFTCAP) / (tl.exp2(b_s * 2.8853900817779268) + 1)  # SOFTCAP * tanh
    b_s = tl.where(seen, b_s, float("-inf"))
    b_new = tl.maximum(b_max, tl.max(b_s, 1))
    b_ref = tl.where(b_new == float("-inf"), 0.0, b_new)
    b_old = tl.exp2(b_max - b_ref)
    b_p = tl.exp2(b_s - b_ref[:, None])
    b_sum = b_sum * b_old + tl.sum(b_p, 1)
    b_acc = _product(b_p.to(b_v.dtype), b_v, b_acc * b_old[:, None])
    return b_new, b_sum, b_acc
