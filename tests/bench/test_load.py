"""What a load run takes for right and for wrong, against servers that say what they are told to."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from pydflash.bench.http import Address, BadReply, Reply, ask, send
from pydflash.bench.load import LoadFigures, Sample, _count, _outcome, sparse
from pydflash.bench.visits import CHAT, MESSAGES, RESPONSES, Told, Visitor, Wrong, read_stream

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[Address]:
    """A server that says this to whatever it is asked, byte by byte."""

    async def told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        with suppress(ConnectionError):
            for i in range(len(answer)):
                writer.write(answer[i : i + 1])
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(told, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        yield Address(host, port)


def chunked(*pieces: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces)
    return OK + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


async def test_a_body_is_read_however_it_comes() -> None:
    for answer in (
        OK + b"Content-Length: 5\r\n\r\nhello",
        OK + b"\r\nhello",
        chunked(b"he", b"llo"),
    ):
        async with answering(answer) as address, ask(address, "/", {}) as reply:
            assert (reply.status, await reply.body()) == (200, b"hello")


async def test_events_are_put_together() -> None:
    answer = chunked(b": keep-alive\n\nevent: a\nda", b"ta: 1\n", b"\ndata: [DONE]\n\n")
    async with answering(answer) as address, ask(address, "/") as reply:
        assert [event async for event in reply.events()] == [("a", "1"), ("", "[DONE]")]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        OK + b"Content-Length: 9\r\n\r\nhello",
        chunked(b"data: 1\n\n", b"data: 2")[:-9],
        chunked(b"data: 1\n\n", b"data: 2"),
    ],
)
async def test_what_breaks_off_is_noticed(answer: bytes) -> None:
    async def read(address: Address) -> None:
        async with send(address, b"GET / HTTP/1.1\r\n\r\n") as reply:
            async for _ in reply.events():
                pass

    async with answering(answer) as address:
        with pytest.raises(BadReply):
            await read(address)


def stream(path: str, *events: tuple[str, object]) -> Told:
    """What `read_stream` makes of a stream of these events."""

    class Events(Reply):
        async def events(self) -> AsyncIterator[tuple[str, str]]:
            for name, data in events:
                yield name, data if isinstance(data, str) else json.dumps(data)

    return asyncio.run(read_stream(path, Events(200, {}, None), 0.0))


CHUNK = {"choices": [{"delta": {"content": "a"}}]}
USAGE = {"choices": [], "usage": {"completion_tokens": 3}}


def test_each_vendors_end_is_known() -> None:
    told = stream(CHAT, ("", CHUNK), ("", USAGE), ("", "[DONE]"))
    assert (told.result, told.tokens, told.first_s is not None) == ("answered", 3, True)
    delta = ("message_delta", {"usage": {"output_tokens": 0}})
    told = stream(MESSAGES, delta, ("message_stop", {}))
    assert (told.result, told.tokens, told.first_s) == ("answered", 0, None)
    last = {"response": {"usage": {"output_tokens": 4}, "error": None}}
    assert stream(RESPONSES, ("response.incomplete", last)).tokens == 4


def test_an_error_event_is_an_answer_with_its_code() -> None:
    error = {"error": {"message": "it broke", "code": "engine_failed"}}
    assert stream(CHAT, ("", CHUNK), ("", error), ("", "[DONE]")).result == "error engine_failed"
    failed = {"response": {"error": {"code": "server_error"}}}
    assert stream(RESPONSES, ("response.failed", failed)).result == "error server_error"


@pytest.mark.parametrize(
    ("path", "events"),
    [
        (CHAT, [("", CHUNK), ("", USAGE)]),
        (CHAT, [("", CHUNK), ("", "[DONE]")]),
        (MESSAGES, [("message_delta", {"usage": {"output_tokens": 3}})]),
        (RESPONSES, [("response.created", {})]),
    ],
)
def test_a_stream_without_its_end_is_wrong(path: str, events: list[tuple[str, object]]) -> None:
    with pytest.raises(Wrong):
        stream(path, *events)


async def test_a_server_that_refuses_what_is_good_is_found_out() -> None:
    answer = b'HTTP/1.1 500 Oh\r\nContent-Length: 26\r\n\r\n{"error":{"message":"oh"}}'
    figures = LoadFigures(clients=1, seconds=1)
    async with answering(answer) as address:
        visitor = Visitor(address, Random(1), 512)
        for _ in range(60):
            kind, visit = visitor.choose()
            _count(figures, kind, await _outcome(visit))
    assert figures.num_wrong == sum(
        sum(results.values()) - results["left"] for results in figures.visits.values()
    )
    assert figures.num_wrong > 40
    assert "status 500 in place of 200" in str(figures.wrong)
    assert "visits went wrong" in figures.findings[0]


def sample(at_s: float, resident: int, *, used: int = 0, free: int = 5) -> Sample:
    return Sample(
        at_s=at_s, resident=resident, live=0, free_pages=free, cached_pages=5, used_pages=used
    )


def run(*residents: int, last: Sample | None) -> LoadFigures:
    """A good run of five minutes, one of these sizes in each."""
    figures = LoadFigures(clients=1, seconds=300, answers=9, total_pages=10, last=last)
    figures.samples += [sample(60 * i + s, r) for i, r in enumerate(residents) for s in range(60)]
    return figures


def test_memory_is_compared_between_minutes() -> None:
    done = sample(301, 0)
    assert run(50, 100, 120, 90, 104, last=done).findings == []
    assert run(50, 100, 120, 90, 104, last=done).growth == pytest.approx(0.04)
    assert "+6.0%" in run(50, 100, 100, 100, 106, last=done).findings[0]
    assert "-6.0%" in run(50, 100, 100, 100, 94, last=done).findings[0]


def test_pages_must_all_come_back() -> None:
    assert "not returned" in run(1, 1, 1, 1, 1, last=sample(301, 0, used=2)).findings[0]
    assert "10 pages at the start" in run(1, 1, 1, 1, 1, last=sample(301, 0, free=4)).findings[0]
    assert run(1, 1, 1, 1, 1, last=None).findings


def test_figures_of_answers() -> None:
    figures = LoadFigures(clients=1, seconds=2)
    for first in range(100):
        _count(figures, "chat", Told(result="answered", tokens=2, first_s=float(first)))
    _count(figures, "chat", Told(result="refused 400 x"))
    assert (figures.tok_s, figures.first_s(0.5), figures.first_s(0.95)) == (100, 50, 95)
    assert figures.errors == Counter({"refused 400 x": 1})
    assert LoadFigures(clients=1, seconds=2).first_s(0.5) is None
    assert [s.at_s for s in sparse([sample(t, 0) for t in (0, 4, 11, 12, 29)], 10)] == [0, 11, 29]
