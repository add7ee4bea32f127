"""`--log-json`: every line of the process is an object, whoever wrote it, and answers come with figures."""

import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pydflash.log import JsonLines

HELLO = [{"role": "user", "content": "word " * 80}]


def command(*options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "pydflash", "serve", *options, "--log-json"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_process_writes_nothing_but_objects(tiny_llama: Path) -> None:
    process = command(str(tiny_llama), "--port", "0", "--threads", "1", "--max-ctx", "512")
    lines: list[str] = []
    try:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if " at http://" in line:
                break
        port = int(json.loads(lines[-1])["message"].rsplit(":", 1)[1])
        for body in (
            {"messages": HELLO, "max_tokens": 30, "ignore_eos": True, "session_id": "s"},
            {"messages": HELLO, "max_tokens": 2, "stream": True},
            {"messages": 3},
        ):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            connection.getresponse().read()
            connection.close()
        with socket.create_connection(("127.0.0.1", port)) as odd:  # uvicorn's own complaint
            odd.sendall(b"\x00\x01 nonsense\r\n\r\n")
            odd.recv(1000)
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert rest == ""
    found: list[dict[str, Any]] = [json.loads(line) for line in [*lines, *errors.splitlines()]]
    assert all({"time", "level", "logger", "message"} <= set(entry) for entry in found)
    assert any(entry["logger"].startswith("uvicorn") for entry in found)
    answers = [entry for entry in found if "finish_reason" in entry]
    assert [a["completion_tokens"] for a in answers][:1] == [30]
    assert [a["cache_hit"] for a in answers] == [False, True]
    assert answers[0]["session_id"] == "s"
    assert answers[0]["decode_tok_s"] > 0
    assert answers[0]["acceptance_length"] >= 1
    asked = [entry for entry in found if "status" in entry]
    assert [(e["method"], e["path"], e["status"]) for e in asked] == [
        ("POST", "/v1/chat/completions", status) for status in (200, 200, 400)
    ]


def test_so_is_the_reason_why_it_does_not_start(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    process = command(str(broken), "--port", "0")
    _, errors = process.communicate(timeout=60)
    entry = json.loads(errors)
    assert process.returncode == 1
    assert entry["level"] == "error"
    assert "broken.gguf" in entry["message"]


def test_a_trace_is_part_of_its_line() -> None:
    try:
        raise ValueError("half a \ud800 character")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "bad %s", ("luck",), sys.exc_info())
    line = JsonLines().format(record)
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line)["message"] == "bad luck"
    assert "ValueError" in json.loads(line)["trace"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--admission-coalesce-ms", "1001"], "--admission-coalesce-ms"),
        (["--degenerate-run-tokens", "1"], "--degenerate-run-tokens"),
        (["--default-max-tokens", "-1"], "--default-max-tokens"),
        (["--ddtree", "--draft-chain"], "--draft-chain"),
        (["--ddtree", "--no-speculation"], "--no-speculation"),
    ],
)
def test_options_that_cannot_be(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], options: list[str], word: str
) -> None:
    from pydflash.cli.main import main

    assert main(["serve", str(tiny_llama), "--port", "0", *options]) == 2
    assert word in capsys.readouterr().err
