"""A service behind a real HTTP server, for clients that bring their own HTTP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from pydflash.server.app import create_app
from pydflash.service.chat import Chat


@contextmanager
def serving(service: Chat) -> Iterator[str]:
    """The server's address, `http://127.0.0.1:PORT`."""
    config = uvicorn.Config(create_app(service), port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
