"""What a file is, by its first bytes: GGUF, safetensors, or the thing that arrived in its place."""

from pathlib import Path
from typing import Literal

from pydflash.errors import CheckpointError, UnsupportedError

FileKind = Literal["gguf", "safetensors"]

GGUF_MAGIC = b"GGUF"
_HEAD_BYTES = 512
_OLD_MAGICS = (b"ggml", b"lmgg", b"ggjt", b"tjgg", b"ggla", b"algg", b"ggmf", b"fmgg")
_NEED = "a GGUF or safetensors model file is needed"


def file_kind(path: Path) -> FileKind:
    """Tell GGUF from safetensors by content; anything else is a CheckpointError that says what it is."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a directory; name the model file inside it")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        size = path.stat().st_size
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; check the path") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    return sniff(head, size, path.name)


def sniff(head: bytes, size: int, name: str) -> FileKind:
    """`head` is the first bytes of a file of `size` bytes called `name`."""
    if not size:
        raise CheckpointError(f"{name} is empty; download it again")
    if head.startswith(GGUF_MAGIC):
        return "gguf"
    if _is_safetensors(head, size):
        return "safetensors"
    if head.startswith(_OLD_MAGICS):
        raise UnsupportedError(
            f"{name} is in a GGML format older than GGUF; convert it with llama.cpp or fetch a GGUF file"
        )
    raise CheckpointError(f"{name} {_describe(head)}")


def _is_safetensors(head: bytes, size: int) -> bool:
    # 8 bytes of header length, then JSON. The length is checked where the header is read.
    return len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < max(size, 1)


def _describe(head: bytes) -> str:
    text = head.lstrip().lower()
    if not head.strip(b"\0"):
        return "begins with zeros: the download did not finish; download it again"
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the model itself; fetch it with `git lfs pull`"
    if head.startswith(b"PK\x03\x04"):
        return f"is a zip archive (perhaps a PyTorch checkpoint); {_NEED}"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return (
            "is a web page, not a model: the server answered with an error page; download it again"
        )
    if text.startswith((b"{", b"[")):
        return f"is JSON text, not a model; {_NEED}"
    if head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")):
        return f"is compressed; unpack it first ({_NEED})"
    if head.startswith(b"\x80"):
        return f"is a Python pickle; {_NEED}"
    return f"begins with {head[:4]!r} instead of {GGUF_MAGIC!r}: not a model file; {_NEED}"
