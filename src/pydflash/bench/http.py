"""A small HTTP/1.1 client on asyncio streams, to measure a server: it leaves early, and sends what is wrong.

One request a connection. Nothing here knows what is asked.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

_LINE = 2**22  # bytes that a line of a reply may have


class BadReply(Exception):
    """What came back is not HTTP, or broke off."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int


class Reply:
    """A reply whose status line and headers have come. Read it once, by pieces, events or whole."""

    def __init__(self, status: int, headers: dict[str, str], reader: asyncio.StreamReader) -> None:
        self.status = status
        self.headers = headers
        self._reader = reader

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives, unchunked. Raises BadReply when it ends too soon."""
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int((await _line(self._reader)).split(b";")[0], 16):
                yield (await _exactly(self._reader, size + 2))[:-2]
            await _line(self._reader)
        elif "content-length" in self.headers:
            yield await _exactly(self._reader, int(self.headers["content-length"]))
        else:
            while piece := await self._reader.read(65536):
                yield piece

    async def events(self) -> AsyncIterator[tuple[str, str]]:
        """Server-sent events: name (may be "") and data; comments are left out."""
        rest = b""
        async for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n\n")
            for block in whole:
                lines = [line.partition(": ") for line in block.decode().splitlines()]
                fields = {key: value for key, _, value in lines if key}
                if "data" in fields:
                    yield fields.get("event", ""), fields["data"]
        if rest.strip():
            raise BadReply("the stream ended within an event")

    async def body(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])

    async def json(self) -> Any:
        """The body's JSON; BadReply if it is none."""
        text = await self.body()
        try:
            return json.loads(text)
        except ValueError:
            raise BadReply(f"a reply that is no JSON: {text[:100]!r}") from None


@asynccontextmanager
async def ask(
    address: Address,
    path: str,
    body: object = None,
    *,
    headers: dict[str, str] | None = None,
) -> AsyncIterator[Reply]:
    """GET, or POST with a body: JSON, or bytes as they stand. Leaving the block hangs up."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    fields = {
        "host": f"{address.host}:{address.port}",
        "connection": "close",
        "content-type": "application/json",
        "content-length": str(len(data)),
    } | (headers or {})
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\n"
    head += "".join(f"{key}: {value}\r\n" for key, value in fields.items()) + "\r\n"
    async with send(address, head.encode() + data) as reply:
        yield reply


@asynccontextmanager
async def send(address: Address, request: bytes) -> AsyncIterator[Reply]:
    """The reply to these bytes, whatever they are."""
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=_LINE)
    try:
        writer.write(request)
        with suppress(ConnectionError):  # a server may answer before it has read it all
            await writer.drain()
        yield await _head(reader)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def hang_up(address: Address, request: bytes) -> None:
    """Send the beginning of a request, and go."""
    _, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(request)
    writer.transport.abort()


async def _head(reader: asyncio.StreamReader) -> Reply:
    words = (await _line(reader)).split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise BadReply(f"not HTTP: {b' '.join(words)[:100]!r}")
    headers: dict[str, str] = {}
    while line := await _line(reader):
        key, _, value = line.decode("latin-1").partition(":")
        headers[key.strip().lower()] = value.strip()
    return Reply(int(words[1]), headers, reader)


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise BadReply("the connection was closed")
    return line.rstrip(b"\r\n")


async def _exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise BadReply("the connection was closed within the body") from None
