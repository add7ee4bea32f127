"""Damaged copies of a small GGUF file, from a seed: flips, cuts, forged lengths, runs, shuffled pieces."""

import random
from collections.abc import Iterator
from struct import pack

_LENGTHS = (0, 1, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, 1 << 62, (1 << 64) - 1)


def mutants(raw: bytes, count: int, *, header_bytes: int, seed: int = 0) -> Iterator[bytes]:
    """`count` variants of `raw`; damage falls within the first `header_bytes`."""
    rng = random.Random(seed)
    kinds = (_flip, _cut, _forge, _forge_short, _fill, _move)
    for index in range(count):
        data = bytearray(raw)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            data = kinds[index % len(kinds)](data, min(header_bytes, len(data)), rng)
        yield bytes(data)


def _flip(data: bytearray, limit: int, rng: random.Random) -> bytearray:
    if limit:
        data[rng.randrange(limit)] ^= 1 << rng.randrange(8)
    return data


def _cut(data: bytearray, limit: int, rng: random.Random) -> bytearray:
    return data[: rng.randrange(limit + 1)]


def _forge(data: bytearray, limit: int, rng: random.Random) -> bytearray:
    at = rng.randrange(4, max(limit - 8, 5))
    data[at : at + 8] = pack("<Q", rng.choice(_LENGTHS))
    return data


def _forge_short(data: bytearray, limit: int, rng: random.Random) -> bytearray:
    at = rng.randrange(4, max(limit - 4, 5))
    data[at : at + 4] = pack("<I", rng.choice(_LENGTHS) & 0xFFFFFFFF)
    return data


def _fill(data: bytearray, limit: int, rng: random.Random) -> bytearray:
    at, size = rng.randrange(max(limit, 1)), rng.randrange(1, 64)
    data[at : at + size] = bytes([rng.choice((0, 255))]) * len(data[at : at + size])
    return data


def _move(data: bytearray, limit: int, rng: random.Random) -> bytearray:
    start, size, to = (rng.randrange(max(limit, 1)) for _ in range(3))
    piece = data[start : start + size % 128]
    data[to : to + len(piece)] = piece
    return data
