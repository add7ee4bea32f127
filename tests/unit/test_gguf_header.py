"""read_header: what is sound is read, what is not is refused in one sentence."""

import time
from collections.abc import Sequence
from pathlib import Path
from struct import pack

import pytest

from pydflash.checkpoint.files import open_checkpoint
from pydflash.checkpoint.gguf_header import read_header
from pydflash.checkpoint.gguf_values import decode_value
from pydflash.errors import CheckpointError, UnsupportedError
from tests.tiny.raw import SOUND_KEYS, SOUND_TENSORS, array, raw_gguf, text

HUGE = (1 << 64) - 1
U32, STRING, ARRAY, U8, BOOL = 4, 8, 9, 0, 7


def key(value: bytes, kind: int = ARRAY, name: str | bytes = "x.y") -> bytes:
    return raw_gguf([*SOUND_KEYS, (name, kind, value)])


def tensor(
    *tensors: tuple[str, Sequence[int], int, int], data: int = 160, keys: Sequence = SOUND_KEYS
) -> bytes:
    return raw_gguf(keys, tensors, data=data)


def aligned(value: int) -> list:
    return [*SOUND_KEYS, ("general.alignment", U32, pack("<I", value))]


@pytest.mark.parametrize("version", [2, 3])
def test_read_header(version: int) -> None:
    header = read_header(raw_gguf(version=version), "m.gguf")
    assert header.version == version
    assert list(header.entries) == ["general.architecture", "llama.block_count"]
    a, b = header.tensors.values()
    assert (a.name, a.shape, a.format.name, a.nbytes) == ("a", (4, 8), "F32", 128)
    assert (b.name, b.shape, b.format.name, b.nbytes) == ("b", (32,), "Q4_0", 18)
    assert a.offset == header.data_start
    assert b.offset == header.data_start + 128


def test_read_header_honours_alignment() -> None:
    raw = raw_gguf(aligned(256), [("a", (8,), 0, 0), ("b", (8,), 0, 256)], data=512, alignment=256)
    header = read_header(raw, "m.gguf")
    assert header.data_start % 256 == 0
    assert header.tensors["b"].offset == header.data_start + 256


BROKEN: dict[str, tuple[bytes, type[Exception], str]] = {
    # what the file is
    "empty": (b"", CheckpointError, "is empty; download it again"),
    "zeros": (bytes(4096), CheckpointError, "begins with zeros"),
    "other magic": (
        b"MAGI" + bytes(60),
        CheckpointError,
        r"begins with b'MAGI' instead of b'GGUF'",
    ),
    "zip": (b"PK\x03\x04" + bytes(60), CheckpointError, "is a zip archive"),
    "pickle": (b"\x80\x02}q\x00" + bytes(60), CheckpointError, "is a Python pickle"),
    "web page": (b"\n<!DOCTYPE html><html>", CheckpointError, "is a web page, not a model"),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid",
        CheckpointError,
        "is a Git LFS pointer",
    ),
    "json": (b'{"error": "no"}', CheckpointError, "is JSON text"),
    "gzip": (b"\x1f\x8b\x08" + bytes(60), CheckpointError, "is compressed"),
    "ggml": (b"tjgg" + bytes(60), UnsupportedError, "older than GGUF"),
    "safetensors": (
        pack("<Q", 2) + b"{}" + bytes(60),
        CheckpointError,
        "is a safetensors file, not GGUF",
    ),
    # version
    "magic alone": (
        b"GGUF",
        CheckpointError,
        "truncated or damaged: its header .*download it again",
    ),
    "version 1": (raw_gguf(version=1), UnsupportedError, "is GGUF version 1"),
    "version 99": (raw_gguf(version=99), UnsupportedError, "is GGUF version 99"),
    "big endian": (raw_gguf(version=3 << 24), UnsupportedError, "is a big-endian GGUF file"),
    # counts
    "keys": (raw_gguf(num_keys=HUGE), CheckpointError, "claims 18446744073709551615 metadata keys"),
    "few keys": (
        raw_gguf(num_keys=60000),
        CheckpointError,
        "60000 metadata keys runs past the end",
    ),
    "tensors": (raw_gguf(num_tensors=HUGE), CheckpointError, "claims 18446744073709551615 tensors"),
    "few tensors": (raw_gguf(num_tensors=9999), CheckpointError, "9999 tensors runs past the end"),
    # metadata
    "key length": (
        raw_gguf()[:24] + pack("<Q", HUGE) + raw_gguf()[32:],
        CheckpointError,
        "metadata key 0 runs past the end",
    ),
    "key empty": (key(b"", name=""), CheckpointError, "metadata key 2 is 0 bytes long"),
    "key not text": (key(pack("<I", 1), U32, b"\xff\xfe"), CheckpointError, "is not UTF-8"),
    "key twice": (key(pack("<I", 1), U32, "llama.block_count"), CheckpointError, "appears twice"),
    "value type": (key(bytes(16), 13), CheckpointError, "x.y has unknown value type 13"),
    "string length": (key(pack("<Q", HUGE), STRING), CheckpointError, "x.y runs past the end"),
    "string length, signed": (key(pack("<Q", 1 << 63), STRING), CheckpointError, "x.y runs past"),
    "array length": (key(array(U8, HUGE)), CheckpointError, "x.y runs past the end"),
    "array of strings": (key(array(STRING, HUGE)), CheckpointError, "x.y runs past the end"),
    "array of arrays": (key(array(ARRAY, HUGE)), CheckpointError, "x.y runs past the end"),
    "array item type": (key(array(77, 1, b"x")), CheckpointError, "x.y has unknown value type 77"),
    "array inner string": (
        key(array(STRING, 2, text("ab") + pack("<Q", 1 << 40))),
        CheckpointError,
        "x.y runs past the end",
    ),
    "array nesting": (
        key(array(ARRAY, 1) * 9 + array(U8, 1, b"x")),
        CheckpointError,
        "nests arrays more than 4 deep",
    ),
    "alignment zero": (raw_gguf(aligned(0)), CheckpointError, "general.alignment is 0"),
    "alignment odd": (raw_gguf(aligned(24)), CheckpointError, "general.alignment is 24"),
    "alignment huge": (
        raw_gguf(aligned(1 << 31)),
        CheckpointError,
        "general.alignment is 2147483648",
    ),
    "alignment type": (
        raw_gguf([*SOUND_KEYS, ("general.alignment", STRING, text("32"))]),
        CheckpointError,
        "general.alignment is STRING, not UINT32",
    ),
    # tensors
    "tensor twice": (
        tensor(("a", (8,), 0, 0), ("a", (8,), 0, 32)),
        CheckpointError,
        "a appears twice",
    ),
    "no dimension": (tensor(("a", (), 0, 0)), CheckpointError, "a has 0 dimensions"),
    "five dimensions": (tensor(("a", (1,) * 5, 0, 0)), CheckpointError, "a has 5 dimensions"),
    "dimension zero": (tensor(("a", (8, 0), 0, 0)), CheckpointError, "a has a dimension of size 0"),
    "dimensions huge": (
        tensor(("a", (HUGE, HUGE, HUGE, HUGE), 0, 0)),
        CheckpointError,
        "a .F32 .*runs past the end",
    ),
    "dimensions wrap": (
        tensor(("a", (1 << 32, 1 << 32), 0, 0)),
        CheckpointError,
        "a .F32 .*runs past the end",
    ),
    "type": (tensor(("w", (8,), 99, 0)), UnsupportedError, "m.gguf: w has ggml type 99"),
    "type removed": (tensor(("w", (32,), 4, 0)), UnsupportedError, "w has ggml type 4"),
    "half a block": (
        tensor(("a", (48,), 2, 0)),
        CheckpointError,
        "a has rows of 48 elements, not whole Q4_0 blocks",
    ),
    "offset beyond": (
        tensor(("a", (8,), 0, 1 << 20)),
        CheckpointError,
        "a .F32 .*runs past the end",
    ),
    "offset wraps": (
        tensor(("a", (8,), 0, HUGE - 31)),
        CheckpointError,
        "a .F32 .*runs past the end",
    ),
    "offset odd": (
        tensor(("a", (8,), 0, 4)),
        CheckpointError,
        "a starts at 4, not at a multiple of 32",
    ),
    "overlap": (tensor(("a", (16,), 0, 0), ("b", (8,), 0, 32)), CheckpointError, "b overlaps a"),
    "data missing": (
        tensor(*SOUND_TENSORS, data=100),
        CheckpointError,
        "a .F32 .*download it again",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_read_header_refuses(case: str) -> None:
    raw, error, message = BROKEN[case]
    start = time.perf_counter()
    with pytest.raises(error, match=message) as caught:
        read_header(raw, "m.gguf")
    assert time.perf_counter() - start < 1
    assert type(caught.value) is error
    assert str(caught.value).startswith("m.gguf")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", [case for case in BROKEN if case != "safetensors"])
def test_open_checkpoint_refuses(case: str, tmp_path: Path) -> None:
    raw, error, message = BROKEN[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(error, match=message):
        open_checkpoint(path)


def test_read_header_refuses_every_truncation() -> None:
    raw = raw_gguf()
    for length in range(1, len(raw) - 14):  # the last 14 bytes are padding after the data
        with pytest.raises(CheckpointError):
            read_header(raw[:length], "m.gguf")


def test_open_checkpoint_refuses_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"does not exist; check the path"):
        open_checkpoint(tmp_path / "none.gguf")
    with pytest.raises(CheckpointError, match=r"is a directory .*name the model file"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("item", [STRING, ARRAY])
def test_read_header_bounds_loops_over_large_files(item: int, tmp_path: Path) -> None:
    # Zeros read as empty strings, so that the size of the file alone would not stop the loop.
    raw = raw_gguf([("x.y", ARRAY, array(item, 100_000_000))], [])
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.write(raw)
        file.truncate(2_000_000_000)
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match=r"x\.y .*more than 4194304"):
        open_checkpoint(path)
    assert time.perf_counter() - start < 1


def test_read_header_reads_a_large_vocabulary_quickly() -> None:
    words = b"".join(text(f"token{i}") for i in range(250_000))
    merges = b"".join(text(f"to ken{i}") for i in range(250_000))
    raw = key(array(STRING, 250_000, words))
    raw = raw_gguf(
        [
            *SOUND_KEYS,
            ("tokens", ARRAY, array(STRING, 250_000, words)),
            ("merges", ARRAY, array(STRING, 250_000, merges)),
        ]
    )
    start = time.perf_counter()
    header = read_header(raw, "m.gguf")
    # 0.12 s on an idle machine; the bound leaves room for a busy one and none for a quadratic loop.
    assert time.perf_counter() - start < 2
    assert decode_value(raw, header.entries["tokens"], "m")[-1] == "token249999"


def test_decode_value_refuses_odd_booleans() -> None:
    raw = key(b"\x02", BOOL)
    entry = read_header(raw, "m.gguf").entries["x.y"]
    with pytest.raises(CheckpointError, match=r"m\.gguf: x\.y is a boolean other than 0 and 1"):
        decode_value(raw, entry, "m.gguf")


def test_decode_value_replaces_what_is_not_utf8() -> None:
    raw = key(text(b"ab\xff"), STRING)
    assert decode_value(raw, read_header(raw, "m").entries["x.y"], "m") == "ab\ufffd"


def test_decode_value_nested() -> None:
    body = array(ARRAY, 2, array(U8, 2, b"\x01\x02") + array(STRING, 1, text("z")))
    raw = key(body)
    assert decode_value(raw, read_header(raw, "m").entries["x.y"], "m") == [[1, 2], ["z"]]
