"""`pydflash serve`: a model behind the HTTP APIs that people's tools already speak."""

import json
import logging
import ssl
import sys
from typing import Annotated

from cyclopts import Parameter

from pydflash import catalog
from pydflash.cli.options import configured
from pydflash.cli.run import PullFlag, locate
from pydflash.config import ServeEngineConfig, ServerConfig
from pydflash.errors import ConfigError


@configured(server=ServerConfig, engine=ServeEngineConfig)
def serve(
    model: Annotated[
        str | None, Parameter(help="catalogue name, path, or hf:owner/repo/file")
    ] = None,
    /,
    *,
    pull: PullFlag = False,
    server: ServerConfig,
    engine: ServeEngineConfig,
) -> int:
    """Serve a model over HTTP: OpenAI's and Anthropic's APIs (default: smollm2-135m)."""
    _check(server)
    if server.log_json:
        _log_json()
    path = locate(model or catalog.DEFAULT_MODEL, may_pull=pull)
    try:
        from pydflash.server.process import run
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the server needs {error.name}: install it with `pip install 'pydflash[server]'`"
        ) from error
    return run(path, server, engine, lambda line: print(line, file=sys.stderr, flush=True))


def _check(server: ServerConfig) -> None:
    if not 0 <= server.port <= 65535:
        raise ConfigError(f"--port {server.port}: give 0 to 65535")
    if bool(server.ssl_certfile) != bool(server.ssl_keyfile):
        raise ConfigError("--ssl-certfile and --ssl-keyfile go together: give both or none")
    if server.ssl_certfile:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(server.ssl_certfile, server.ssl_keyfile)
        except OSError as error:
            raise ConfigError(f"--ssl-certfile, --ssl-keyfile: {error}") from error
    if server.default_max_tokens < 0 or not 0 <= server.shutdown_s < 86400:
        raise ConfigError("--max-tokens must be 0 or more, --shutdown-s from 0 to 86400")
    if server.max_queue < 1:
        raise ConfigError(f"--max-queue {server.max_queue}: give 1 or more")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _log_json() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    root = logging.getLogger("pydflash")
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
