"""The whole of it: SmolLM2 behind a real socket, asked by the official SDK; and the process by itself."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import uvicorn

from pydflash.config import EngineConfig, ServerConfig, StateConfig
from pydflash.server.app import create_app
from pydflash.service.build import load
from pydflash.service.service import ChatService

CAPITAL = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


@pytest.fixture(scope="module")
def client(smollm2: Path) -> Iterator[openai.OpenAI]:
    engine = EngineConfig(state=StateConfig(max_concurrency=4, max_ctx=2048))
    service = ChatService(load(smollm2, engine), ServerConfig(), engine)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(create_app(service), lifespan="off", log_level="warning")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    yield openai.OpenAI(api_key="none", base_url=url, max_retries=0)
    server.should_exit = True
    thread.join()
    service.close()
    listener.close()


@pytest.mark.model
def test_smollm2_answers(client: openai.OpenAI) -> None:
    asked = {"model": "x", "messages": CAPITAL, "temperature": 0, "max_tokens": 24}
    reply = client.chat.completions.create(**asked)
    text = reply.choices[0].message.content
    assert text is not None
    assert "Paris" in text
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.completion_tokens > 0
    streamed = ""
    for chunk in client.chat.completions.create(**asked, stream=True):
        streamed += chunk.choices[0].delta.content or ""
    assert streamed == text
    again = client.chat.completions.create(**asked, extra_body={"speculate": False})
    assert again.choices[0].message.content == text


@pytest.mark.model
def test_smollm2_logprobs_and_choices(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="x",
        messages=CAPITAL,
        temperature=1.5,
        n=3,
        seed=5,
        max_tokens=16,
        logprobs=True,
        top_logprobs=2,
    )
    texts = [choice.message.content for choice in reply.choices]
    assert len(set(texts)) > 1
    for choice in reply.choices:
        assert choice.logprobs is not None
        tokens = choice.logprobs.content or []
        assert "".join(t.token for t in tokens) == choice.message.content
        assert all(t.logprob <= 0 and len(t.top_logprobs) == 2 for t in tokens)


@pytest.mark.model
def test_smollm2_completes_and_refuses(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model="x", prompt="The quick brown fox", max_tokens=8, temperature=0
    )
    assert reply.choices[0].text
    with pytest.raises(openai.BadRequestError, match="2048") as caught:
        client.chat.completions.create(
            model="x", messages=[{"role": "user", "content": "word " * 3000}]
        )
    assert caught.value.code == "context_length_exceeded"


def test_the_process_serves_and_stops(tiny_llama: Path, tmp_path: Path) -> None:
    """A stream that is running when SIGTERM comes is told to its end."""
    command = [sys.executable, "-m", "pydflash", "serve", str(tiny_llama), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--threads", "1", "--shutdown-s", "30"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "http://" in line:
                break
        assert "http://" in lines[-1], lines
        url = lines[-1][lines[-1].index("http://") :].strip()
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "max_tokens": 100,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            f"{url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            first = reply.readline()
            process.send_signal(signal.SIGTERM)
            rest = reply.read().decode()
        assert b"assistant" in first
        assert '"finish_reason":"length"' in rest
        assert rest.endswith("data: [DONE]\n\n")
        started = time.monotonic()
        assert process.wait(30) == 0
        assert time.monotonic() - started < 10
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_port_that_is_taken(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pydflash.cli.main import main

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(tiny_llama), "--port", port]) == 2
    assert f"port {port}" in capsys.readouterr().err


def test_options_that_are_not_built_are_refused_by_name(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pydflash.cli.main import main

    assert main(["serve", str(tiny_llama), "--kv-cache-dir", "x"]) == 2
    assert "--kv-cache-dir" in capsys.readouterr().err
    assert main(["serve", str(tiny_llama), "--ssl-keyfile", "x"]) == 2
    assert "--ssl-certfile" in capsys.readouterr().err
