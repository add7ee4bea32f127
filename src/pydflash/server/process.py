"""The server's process: load, listen, and end well.

On SIGTERM or SIGINT new requests are refused, running ones get `shutdown_s` to end and are ended with
an error event then; a second signal does not wait. When the engine fails every stream is told, and the
process exits with 1 and the reason.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from pydflash.config import EngineConfig, ServerConfig
from pydflash.errors import ConfigError, EngineError
from pydflash.server.app import create_app
from pydflash.service.build import load_apart
from pydflash.service.service import ChatService

log = logging.getLogger(__name__)

_MAX_HEADERS = 64 * 1024
_BACKLOG = 128
_LAST_S = 5  # for the error events to reach their readers


def run(path: Path, config: ServerConfig, engine: EngineConfig, say: Callable[[str], None]) -> int:
    """Serve until stopped; the exit code. `say` is told the plan and the address.

    Raises ConfigError when the address cannot be listened at, before the model is loaded.
    """
    listener = _listen(config)
    try:
        service = ChatService(load_apart(path, engine), config, engine)
        try:
            for line in service.facts.plan:
                say(line)
            return asyncio.run(_serve(service, config, listener, say))
        finally:
            service.close()
    finally:
        listener.close()


async def _serve(
    service: ChatService, config: ServerConfig, listener: socket.socket, say: Callable[[str], None]
) -> int:
    server = _Server(
        uvicorn.Config(
            create_app(service, config),
            http="h11",  # it has a limit on headers
            h11_max_incomplete_event_size=_MAX_HEADERS,
            lifespan="off",
            log_config=None if config.log_json else LOGGING_CONFIG,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(config.shutdown_s) + _LAST_S,
            ssl_certfile=config.ssl_certfile or None,
            ssl_keyfile=config.ssl_keyfile or None,
        )
    )
    failures: list[EngineError] = []

    def failed(error: EngineError) -> None:
        failures.append(error)
        service.refuse()
        server.should_exit = True

    async def end_late() -> None:
        await asyncio.sleep(config.shutdown_s)
        await asyncio.to_thread(service.close)

    late: list[asyncio.Task[None]] = []

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True
        service.refuse()
        late.append(asyncio.create_task(end_late()))

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    service.on_failure = failed
    listener.listen(_BACKLOG)  # from here on clients wait instead of being refused
    scheme = "https" if config.ssl_certfile else "http"
    host, port = listener.getsockname()[:2]
    say(f"{service.facts.name} at {scheme}://{f'[{host}]' if ':' in host else host}:{port}")
    await server.serve(sockets=[listener])
    for task in late:
        task.cancel()
    for error in failures:
        say(f"error: {error}")
    return 1 if failures else 0


class _Server(uvicorn.Server):
    """Leaves signals to us: its own handlers raise them again once it has stopped."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen at {config.host} port {config.port}: {error.strerror or error}; "
            "choose another with --host or --port"
        ) from error
    return listener
