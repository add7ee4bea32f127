"""Tile decoders: packed words to f16 pieces of a weight, the same values on every path.

A word tile is int32 [BLOCK_N, 16]: column c of a row holds, for j = 0.., the code of input feature
`16 j + c` of the unit (see `pack`). Piece j is therefore f16 [BLOCK_N, 16] against 16 inputs in a row.

A code q is not converted: its bits, masked where they lie, are a subnormal f16 worth q 2^-24, or q 2^-20 four
bits higher up, and the scales hold the opposite power of two. So two weights cost one mask and one
w = fma(q, scale, -minimum), rounded once. With ASM, instructions handle two columns at once; without, plain
arithmetic does one.
"""

import struct

import triton
import triton.language as tl

F16 = 16
NIBBLE = 4  # 4 bits, scale and minimum for 32 inputs
NIBBLE_FINE = 3  # 4 bits, scale and minimum for 16 inputs
FIVE = 5  # 5 bits in the place of 6, scale and minimum for 32 inputs
SIX = 6  # 4 + 2 bits less 32, scale for 16 inputs
BYTE = 8  # 8 bits less 128, scale for 32 inputs

HIGH_PIECES = (2, 3, 6, 7)
"""Pieces whose codes lie four bits up in a half word, worth 2^-20 each: those of every other 32 inputs."""
LOW_POWER, HIGH_POWER = 24, 20
NIBBLE_ORDER = (0, 2, 1, 3, 4, 6, 5, 7)
"""The piece of each nibble of a word: the two of a group lie at like places of a half's two bytes."""

_FINE = tl.constexpr(NIBBLE_FINE)
_FIVE = tl.constexpr(FIVE)
_SIX = tl.constexpr(SIX)
_BYTE = tl.constexpr(BYTE)

# Minus the middle of the codes as scales are stored: of six bits in a low and in a high piece, of bytes.
_SIX_LESS = -32 * 2.0**-LOW_POWER, -32 * 2.0**-HIGH_POWER
_BYTE_LESS = -128 * 2.0**-LOW_POWER
_LOW_LESS, _HIGH_LESS = tl.constexpr(_SIX_LESS[0]), tl.constexpr(_SIX_LESS[1])
_OCTET_LESS = tl.constexpr(_BYTE_LESS)


def _twice(value: float) -> str:
    """An f16 in both halves of a word."""
    return f"{int.from_bytes(struct.pack('<e', value), 'little') * 0x10001:#x}"


def _nibble_lines(j: int, high: str = "") -> str:
    """Piece j's codes of two columns, into t. `high`: their further bits, already in place."""
    half, is_high = "pq"[j // 4], j in HIGH_PIECES
    source = f"{half}8" if j % 2 else half
    mask = "0x00F000F0" if is_high else "0x000F000F"
    if not high:
        return f"and.b32 t, {source}, {mask};"
    further = "0x03000300" if is_high else "0x00300030"
    return f"and.b32 u, {high}, {further}; lop3.b32 t, {source}, {mask}, u, 0xEA;"


def _nibble_asm(scales: int, is_six: bool = False, has_high: bool = False) -> str:
    """Eight pieces from a word, its further bits, and so many words of scales."""
    lines = [
        ".reg .b16 l, h; .reg .b32 p, q, p8, q8, a, b, t, u, h0, h1, h2, h3;",
        "prmt.b32 p, $8, $9, 0x5410; prmt.b32 q, $8, $9, 0x7632;",
        "shr.b32 p8, p, 8; shr.b32 q8, q, 8;",
    ]
    first = 10
    if has_high:
        lines.append(
            "shl.b32 h0, $10, 4; shl.b32 h1, $10, 2; shr.b32 h2, $10, 4; shr.b32 h3, $10, 6;"
        )
        first = 11
    for j in range(8):
        word = f"${first + 2 * (j * scales // 8)}"
        if is_six:
            side = "lh"[j % 2]
            if j % 2 == 0:
                lines.append(f"mov.b32 u, {_twice(_SIX_LESS[j in HIGH_PIECES])};")
                lines.append(f"mul.rn.f16x2 u, {word}, u; mov.b32 {{l, h}}, u;")
                lines.append("mov.b32 b, {l, l}; mov.b32 q9, {h, h};")
            lines.append(f"mov.b32 {{l, h}}, {word}; mov.b32 a, {{{side}, {side}}};")
            less = "q9" if j % 2 else "b"
        else:
            lines.append(f"mov.b32 {{l, h}}, {word}; mov.b32 a, {{l, l}}; mov.b32 b, {{h, h}};")
            less = "b"
        lines.append(_nibble_lines(j, f"h{j // 4 * 2 + j % 2}" if has_high else ""))
        lines.append(f"fma.rn.f16x2 ${j}, t, a, {less};")
    lines[0] += " .reg .b32 q9;"
    return "{\n" + "\n".join(lines) + "\n}"


def _byte_asm() -> str:
    """Four pieces from a word of bytes and a word of two scales."""
    lines = [
        ".reg .b16 l, h; .reg .b32 a0, a1, b0, b1, t, u;",
        f"mov.b32 u, {_twice(_BYTE_LESS)}; mul.rn.f16x2 u, $6, u;",
        "mov.b32 {l, h}, u; mov.b32 b0, {l, l}; mov.b32 b1, {h, h};",
        "mov.b32 {l, h}, $6; mov.b32 a0, {l, l}; mov.b32 a1, {h, h};",
    ]
    for j, bytes_ in enumerate(("0x0400", "0x0501", "0x0602", "0x0703")):
        lines.append(f"prmt.b32 t, $4, $5, {bytes_}; and.b32 t, t, 0x00FF00FF;")
        lines.append(f"fma.rn.f16x2 ${j}, t, a{j // 2}, b{j // 2};")
    return "{\n" + "\n".join(lines) + "\n}"


def _registers(outputs: int, inputs: int) -> str:
    return ",".join(["=&r"] * outputs + ["r"] * inputs)


_COARSE_ASM = tl.constexpr(_nibble_asm(4))
_COARSE_REGISTERS = tl.constexpr(_registers(8, 10))
_FINE_ASM = tl.constexpr(_nibble_asm(8))
_FINE_REGISTERS = tl.constexpr(_registers(8, 18))
_FIVE_ASM = tl.constexpr(_nibble_asm(4, has_high=True))
_SIX_ASM = tl.constexpr(_nibble_asm(4, is_six=True, has_high=True))
_HIGH_REGISTERS = tl.constexpr(_registers(8, 11))
_BYTE_ASM = tl.constexpr(_byte_asm())
_BYTE_REGISTERS = tl.constexpr(_registers(4, 4))


@triton.constexpr_function
def scale_words(kind):
    """Words of scales of a row in a unit."""
    return 2 if kind == BYTE else 8 if kind == NIBBLE_FINE else 4


@triton.constexpr_function
def tile_words(kind):
    """Elements of a tile's words in a unit."""
    return 8192 if kind == F16 else 2048 if kind == BYTE else 1024


@triton.constexpr_function
def nibble_at(piece):
    """The bit of a word where a piece's nibble begins: see NIBBLE_ORDER."""
    return piece // 4 * 16 + piece % 2 * 8 + piece // 2 % 2 * 4


@triton.jit
def _pair(word):
    """int32 of two packed f16 -> (low, high)."""
    low = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    high = (word >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return low, high


@triton.jit
def _columns(words):
    """[n, 2 m] -> the even and the odd columns."""
    rows: tl.constexpr = words.shape[0]
    half: tl.constexpr = words.shape[1] // 2
    return tl.split(tl.reshape(words, (rows, half, 2)))


@triton.jit
def _column_pair(words):
    """[n, 2] -> two columns [n, 1]."""
    first, second = tl.split(words)
    return first[:, None], second[:, None]


@triton.jit
def _four_columns(words):
    """[n, 4] -> its columns [n, 1]."""
    even, odd = _columns(words)
    s0, s2 = _column_pair(even)
    s1, s3 = _column_pair(odd)
    return s0, s1, s2, s3


@triton.jit
def _subnormal(bits):
    """Bits int32 below 1024 as the f16 that they are."""
    return bits.to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def _plain_code(w, h, J: tl.constexpr, HAS_HIGH: tl.constexpr):
    """Piece J's codes, as subnormal f16."""
    bits = (w >> nibble_at(J)) & 15
    if HAS_HIGH:
        bits |= ((h.to(tl.int32) >> (2 * J)) & 3) << 4
    return _subnormal(bits << (J // 2 % 2 * 4))


@triton.jit
def _plain_piece(w, h, s, J: tl.constexpr, KIND: tl.constexpr):
    """Piece J of a unit of nibbles, and the word of its scale [n, 1]."""
    code = _plain_code(w, h, J, KIND == _FIVE or KIND == _SIX)
    first, second = _pair(s)
    if KIND == _SIX:
        scale = second if J % 2 else first
        less = scale * (_HIGH_LESS if J // 2 % 2 else _LOW_LESS)
    else:
        scale, less = first, second
    return tl.fma(code, scale, less.to(tl.float16))


@triton.jit
def _plain_byte(w, s, J: tl.constexpr):
    """Piece J of half a unit of bytes."""
    first, second = _pair(s)
    scale = second if J // 2 else first
    less = (scale * _OCTET_LESS).to(tl.float16)
    return tl.fma(_subnormal((w >> (8 * J)) & 255), scale, less)


@triton.jit
def _bytes(w, s, ASM: tl.constexpr):
    """int32 [n, 16] and scales int32 [n, 1] -> four f16 [n, 16]."""
    if ASM:
        v0, v1, v2, v3 = tl.inline_asm_elementwise(
            _BYTE_ASM, _BYTE_REGISTERS, [w, s], dtype=(tl.float16,) * 4, is_pure=True, pack=2
        )
        return v0, v1, v2, v3
    return _plain_byte(w, s, 0), _plain_byte(w, s, 1), _plain_byte(w, s, 2), _plain_byte(w, s, 3)


@triton.jit
def weights(w, h, s, KIND: tl.constexpr, ASM: tl.constexpr):
    """A unit's eight pieces f16 [n, 16], of words [n, 16] at w, further bits at h, and scales int32 [n, g] at
    s."""
    if KIND == _BYTE:
        s0, s1 = _column_pair(tl.load(s))
        v0, v1, v2, v3 = _bytes(tl.load(w), s0, ASM)
        v4, v5, v6, v7 = _bytes(tl.load(w + 1024), s1, ASM)
    elif KIND == _FINE:
        even, odd = _columns(tl.load(s))
        s0, s2, s4, s6 = _four_columns(even)
        s1, s3, s5, s7 = _four_columns(odd)
        words = tl.load(w)
        if ASM:
            v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
                _FINE_ASM, _FINE_REGISTERS, [words, s0, s1, s2, s3, s4, s5, s6, s7],
                dtype=(tl.float16,) * 8, is_pure=True, pack=2,
            )  # fmt: skip
        else:
            v0, v1 = (
                _plain_piece(words, words, s0, 0, KIND),
                _plain_piece(words, words, s1, 1, KIND),
            )
            v2, v3 = (
                _plain_piece(words, words, s2, 2, KIND),
                _plain_piece(words, words, s3, 3, KIND),
            )
            v4, v5 = (
                _plain_piece(words, words, s4, 4, KIND),
                _plain_piece(words, words, s5, 5, KIND),
            )
            v6, v7 = (
                _plain_piece(words, words, s6, 6, KIND),
                _plain_piece(words, words, s7, 7, KIND),
            )
    else:
        s0, s1, s2, s3 = _four_columns(tl.load(s))
        words = tl.load(w)
        if KIND == _SIX or KIND == _FIVE:
            high = tl.load(h)
        else:
            high = words
        if not ASM:
            v0, v1 = _plain_piece(words, high, s0, 0, KIND), _plain_piece(words, high, s0, 1, KIND)
            v2, v3 = _plain_piece(words, high, s1, 2, KIND), _plain_piece(words, high, s1, 3, KIND)
            v4, v5 = _plain_piece(words, high, s2, 4, KIND), _plain_piece(words, high, s2, 5, KIND)
            v6, v7 = _plain_piece(words, high, s3, 6, KIND), _plain_piece(words, high, s3, 7, KIND)
        elif KIND == _SIX or KIND == _FIVE:
            v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
                _SIX_ASM if KIND == _SIX else _FIVE_ASM, _HIGH_REGISTERS,
                [words, high, s0, s1, s2, s3], dtype=(tl.float16,) * 8, is_pure=True, pack=2,
            )  # fmt: skip
        else:
            v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
                _COARSE_ASM, _COARSE_REGISTERS, [words, s0, s1, s2, s3],
                dtype=(tl.float16,) * 8, is_pure=True, pack=2,
            )  # fmt: skip
    return v0, v1, v2, v3, v4, v5, v6, v7
