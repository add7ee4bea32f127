"""Tile decoders: packed words to f16 pieces of a weight, the same values on every path.

A word tile is int32 [BLOCK_N, 16]: column c of a row holds, for j = 0.., the code of input feature
`16 j + c` of the unit (see `pack`). Piece j is therefore f16 [BLOCK_N, 16] against 16 inputs in a row.
With ASM the bits are moved by instructions that handle two columns at once; without, by plain arithmetic.
Both are exact until the scale, which is applied in f16: w = fma(code, scale, -minimum).
"""

import triton
import triton.language as tl

F16 = 16
NIBBLE = 4  # 4 bits, scale and minimum for 32 inputs
NIBBLE_FINE = 3  # 4 bits, scale and minimum for 16 inputs
FIVE = 5  # 5 bits in the place of 6, scale and minimum for 32 inputs
SIX = 6  # 4 + 2 bits less 32, scale for 16 inputs
BYTE = 8  # 8 bits less 128, scale for 32 inputs

_FINE = tl.constexpr(NIBBLE_FINE)
_FIVE = tl.constexpr(FIVE)
_SIX = tl.constexpr(SIX)
_BYTE = tl.constexpr(BYTE)


@triton.jit
def pair(words):
    """int32 [n] of two packed f16 -> (low, high) f16 [n, 1]."""
    low = (words & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    high = (words >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return low[:, None], high[:, None]


@triton.jit
def _whole(bits, OFFSET: tl.constexpr):
    """Small whole numbers in int32 to f16, less OFFSET."""
    return ((bits | 0x6400).to(tl.int16).to(tl.float16, bitcast=True)) - (1024.0 + OFFSET)


@triton.jit
def nibbles(w, ASM: tl.constexpr):
    """int32 [n, 16] -> eight f16 [n, 16] of codes -8..7, each stored plus 8."""
    if ASM:
        v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 p, q, low, high, base, more, down, less;
            mov.b32 low, 0x000F000F;
            mov.b32 high, 0x00F000F0;
            mov.b32 base, 0x64006400;
            mov.b32 more, 0x64086408;
            mov.b32 down, 0x2C002C00;
            mov.b32 less, 0xD480D480;
            prmt.b32 p, $8, $9, 0x5410;
            prmt.b32 q, $8, $9, 0x7632;
            lop3.b32 $0, p, low, base, 0xEA;
            lop3.b32 $1, p, high, base, 0xEA;
            lop3.b32 $4, q, low, base, 0xEA;
            lop3.b32 $5, q, high, base, 0xEA;
            shr.b32 p, p, 8;
            shr.b32 q, q, 8;
            lop3.b32 $2, p, low, base, 0xEA;
            lop3.b32 $3, p, high, base, 0xEA;
            lop3.b32 $6, q, low, base, 0xEA;
            lop3.b32 $7, q, high, base, 0xEA;
            sub.rn.f16x2 $0, $0, more;
            sub.rn.f16x2 $2, $2, more;
            sub.rn.f16x2 $4, $4, more;
            sub.rn.f16x2 $6, $6, more;
            fma.rn.f16x2 $1, $1, down, less;
            fma.rn.f16x2 $3, $3, down, less;
            fma.rn.f16x2 $5, $5, down, less;
            fma.rn.f16x2 $7, $7, down, less;
            }
            """,
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r",
            [w],
            dtype=(tl.float16,) * 8,
            is_pure=True,
            pack=2,
        )
        return v0, v1, v2, v3, v4, v5, v6, v7
    return (
        _whole(w & 15, 8),
        _whole((w >> 4) & 15, 8),
        _whole((w >> 8) & 15, 8),
        _whole((w >> 12) & 15, 8),
        _whole((w >> 16) & 15, 8),
        _whole((w >> 20) & 15, 8),
        _whole((w >> 24) & 15, 8),
        _whole((w >> 28) & 15, 8),
    )


@triton.jit
def sixes(w, h, ASM: tl.constexpr):
    """int32 [n, 16] and high bits int16 [n, 16], bits 2j and 2j + 1 for piece j, -> eight f16 of codes
    -32..31."""
    if ASM:
        v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 p, q, t, u, h, low, high, one, two, base, more, down, less;
            mov.b32 low, 0x000F000F;
            mov.b32 high, 0x00F000F0;
            mov.b32 one, 0x00300030;
            mov.b32 two, 0x03000300;
            mov.b32 base, 0x64006400;
            mov.b32 more, 0x64206420;
            mov.b32 down, 0x2C002C00;
            mov.b32 less, 0xD600D600;
            mov.b32 h, $10;
            prmt.b32 p, $8, $9, 0x5410;
            prmt.b32 q, $8, $9, 0x7632;
            shl.b32 t, h, 4;
            lop3.b32 u, t, one, base, 0xEA;
            lop3.b32 $0, p, low, u, 0xEA;
            shl.b32 t, h, 6;
            lop3.b32 u, t, two, base, 0xEA;
            lop3.b32 $1, p, high, u, 0xEA;
            shr.b32 t, h, 4;
            lop3.b32 u, t, one, base, 0xEA;
            lop3.b32 $4, q, low, u, 0xEA;
            shr.b32 t, h, 2;
            lop3.b32 u, t, two, base, 0xEA;
            lop3.b32 $5, q, high, u, 0xEA;
            shr.b32 p, p, 8;
            shr.b32 q, q, 8;
            lop3.b32 u, h, one, base, 0xEA;
            lop3.b32 $2, p, low, u, 0xEA;
            shl.b32 t, h, 2;
            lop3.b32 u, t, two, base, 0xEA;
            lop3.b32 $3, p, high, u, 0xEA;
            shr.b32 t, h, 8;
            lop3.b32 u, t, one, base, 0xEA;
            lop3.b32 $6, q, low, u, 0xEA;
            shr.b32 t, h, 6;
            lop3.b32 u, t, two, base, 0xEA;
            lop3.b32 $7, q, high, u, 0xEA;
            sub.rn.f16x2 $0, $0, more;
            sub.rn.f16x2 $2, $2, more;
            sub.rn.f16x2 $4, $4, more;
            sub.rn.f16x2 $6, $6, more;
            fma.rn.f16x2 $1, $1, down, less;
            fma.rn.f16x2 $3, $3, down, less;
            fma.rn.f16x2 $5, $5, down, less;
            fma.rn.f16x2 $7, $7, down, less;
            }
            """,
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r",
            [w, h],
            dtype=(tl.float16,) * 8,
            is_pure=True,
            pack=2,
        )
        return v0, v1, v2, v3, v4, v5, v6, v7
    b = h.to(tl.int32)
    return (
        _whole((w & 15) | ((b & 3) << 4), 32),
        _whole(((w >> 4) & 15) | (((b >> 2) & 3) << 4), 32),
        _whole(((w >> 8) & 15) | (((b >> 4) & 3) << 4), 32),
        _whole(((w >> 12) & 15) | (((b >> 6) & 3) << 4), 32),
        _whole(((w >> 16) & 15) | (((b >> 8) & 3) << 4), 32),
        _whole(((w >> 20) & 15) | (((b >> 10) & 3) << 4), 32),
        _whole(((w >> 24) & 15) | (((b >> 12) & 3) << 4), 32),
        _whole(((w >> 28) & 15) | (((b >> 14) & 3) << 4), 32),
    )


@triton.jit
def octets(w, ASM: tl.constexpr):
    """int32 [n, 16] -> four f16 [n, 16] of codes -128..127, each stored plus 128."""
    if ASM:
        v0, v1, v2, v3 = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 t, low, base, more;
            mov.b32 low, 0x00FF00FF;
            mov.b32 base, 0x64006400;
            mov.b32 more, 0x64806480;
            prmt.b32 t, $4, $5, 0x0400;
            lop3.b32 $0, t, low, base, 0xEA;
            prmt.b32 t, $4, $5, 0x0501;
            lop3.b32 $1, t, low, base, 0xEA;
            prmt.b32 t, $4, $5, 0x0602;
            lop3.b32 $2, t, low, base, 0xEA;
            prmt.b32 t, $4, $5, 0x0703;
            lop3.b32 $3, t, low, base, 0xEA;
            sub.rn.f16x2 $0, $0, more;
            sub.rn.f16x2 $1, $1, more;
            sub.rn.f16x2 $2, $2, more;
            sub.rn.f16x2 $3, $3, more;
            }
            """,
            "=&r,=&r,=&r,=&r,r,r",
            [w],
            dtype=(tl.float16,) * 4,
            is_pure=True,
            pack=2,
        )
        return v0, v1, v2, v3
    return (
        _whole(w & 255, 128),
        _whole((w >> 8) & 255, 128),
        _whole((w >> 16) & 255, 128),
        _whole((w >> 24) & 255, 128),
    )


@triton.jit
def codes(w, h, KIND: tl.constexpr, ASM: tl.constexpr):
    """A unit's eight pieces of codes f16 [n, 16], of the words [n, 16] at w and the further bits at h."""
    if KIND == _BYTE:
        v0, v1, v2, v3 = octets(tl.load(w), ASM)
        v4, v5, v6, v7 = octets(tl.load(w + 1024), ASM)
    elif KIND == _SIX or KIND == _FIVE:
        v0, v1, v2, v3, v4, v5, v6, v7 = sixes(tl.load(w), tl.load(h), ASM)
    else:
        v0, v1, v2, v3, v4, v5, v6, v7 = nibbles(tl.load(w), ASM)
    return v0, v1, v2, v3, v4, v5, v6, v7


@triton.jit
def scaled(v0, v1, v2, v3, v4, v5, v6, v7, s, KIND: tl.constexpr):
    """Eight pieces of codes f16 [n, 16] times their scales. At s stand these, int32 [n] 64 apart."""
    if KIND == _FINE:
        a, b = pair(tl.load(s))
        v0 = v0 * a - b
        a, b = pair(tl.load(s + 64))
        v1 = v1 * a - b
        a, b = pair(tl.load(s + 128))
        v2 = v2 * a - b
        a, b = pair(tl.load(s + 192))
        v3 = v3 * a - b
        a, b = pair(tl.load(s + 256))
        v4 = v4 * a - b
        a, b = pair(tl.load(s + 320))
        v5 = v5 * a - b
        a, b = pair(tl.load(s + 384))
        v6 = v6 * a - b
        a, b = pair(tl.load(s + 448))
        v7 = v7 * a - b
    elif KIND == _BYTE:
        a, b = pair(tl.load(s))
        v0, v1, v2, v3 = v0 * a, v1 * a, v2 * b, v3 * b
        a, b = pair(tl.load(s + 64))
        v4, v5, v6, v7 = v4 * a, v5 * a, v6 * b, v7 * b
    elif KIND == _SIX:
        a, b = pair(tl.load(s))
        v0, v1 = v0 * a, v1 * b
        a, b = pair(tl.load(s + 64))
        v2, v3 = v2 * a, v3 * b
        a, b = pair(tl.load(s + 128))
        v4, v5 = v4 * a, v5 * b
        a, b = pair(tl.load(s + 192))
        v6, v7 = v6 * a, v7 * b
    else:
        a, b = pair(tl.load(s))
        v0, v1 = v0 * a - b, v1 * a - b
        a, b = pair(tl.load(s + 64))
        v2, v3 = v2 * a - b, v3 * a - b
        a, b = pair(tl.load(s + 128))
        v4, v5 = v4 * a - b, v5 * a - b
        a, b = pair(tl.load(s + 192))
        v6, v7 = v6 * a - b, v7 * a - b
    return v0, v1, v2, v3, v4, v5, v6, v7
