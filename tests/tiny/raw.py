"""raw_gguf: a GGUF file byte by byte, so that tests can lie in any field of it."""

from collections.abc import Sequence
from struct import pack

RawKey = tuple[str | bytes, int, bytes]  # name, value type, value
RawTensor = tuple[str, Sequence[int], int, int]  # name, ggml dimensions, ggml type, offset

SOUND_KEYS: tuple[RawKey, ...] = (
    ("general.architecture", 8, pack("<Q", 5) + b"llama"),
    ("llama.block_count", 4, pack("<I", 2)),
)
SOUND_TENSORS: tuple[RawTensor, ...] = (("a", (8, 4), 0, 0), ("b", (32,), 2, 128))


def text(value: str | bytes) -> bytes:
    """A GGUF string."""
    raw = value.encode() if isinstance(value, str) else value
    return pack("<Q", len(raw)) + raw


def array(item: int, count: int, body: bytes = b"") -> bytes:
    """A GGUF array value with any count one likes."""
    return pack("<IQ", item, count) + body


def raw_gguf(
    keys: Sequence[RawKey] = SOUND_KEYS,
    tensors: Sequence[RawTensor] = SOUND_TENSORS,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_keys: int | None = None,
    data: int = 160,
    alignment: int = 32,
) -> bytes:
    """The file; `data` zero bytes follow the aligned header."""
    out = magic + pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(keys) if num_keys is None else num_keys,
    )
    for name, kind, value in keys:
        out += text(name) + pack("<I", kind) + value
    for name, dims, kind, offset in tensors:
        out += text(name) + pack(f"<I{len(dims)}Q", len(dims), *dims) + pack("<IQ", kind, offset)
    return out + bytes(-len(out) % alignment) + bytes(data)
