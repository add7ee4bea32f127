"""`pydflash serve`: a model behind the HTTP APIs that people's tools already speak."""

import logging
import ssl
import sys
from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from pydflash import catalog
from pydflash.cli.options import configured
from pydflash.cli.run import PullFlag, locate
from pydflash.config import ServeEngineConfig, ServerConfig
from pydflash.errors import ConfigError, PydflashError
from pydflash.log import set_up_json

log = logging.getLogger(__name__)


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
    if not server.log_json:
        return _run(
            model, server, engine, lambda line: print(line, file=sys.stderr, flush=True), pull
        )
    set_up_json()
    try:
        return _run(model, server, engine, log.info, pull)
    except PydflashError as error:  # in the form of all other lines, not as `main` would say it
        log.error("%s", error)
        return 2 if isinstance(error, ConfigError) else 1


def _run(
    model: str | None,
    server: ServerConfig,
    engine: ServeEngineConfig,
    say: Callable[[str], None],
    pull: bool,
) -> int:
    path = locate(model or catalog.DEFAULT_MODEL, may_pull=pull)
    try:
        from pydflash.server.process import run
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the server needs {error.name}: install it with `pip install 'pydflash[server]'`"
        ) from error
    return run(path, server, engine, say)


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
    if min(server.default_max_tokens, server.max_tokens) < 0:
        raise ConfigError("--default-max-tokens and --max-tokens must be 0 or more")
    if not 0 <= server.shutdown_s < 86400:
        raise ConfigError("--shutdown-s must be from 0 to 86400")
    if not 0 <= server.admission_coalesce_ms <= 1000:
        raise ConfigError("--admission-coalesce-ms must be from 0 to 1000")
    if server.degenerate_run_tokens < 0 or server.degenerate_run_tokens == 1:
        raise ConfigError("--degenerate-run-tokens must be 0 (never) or 2 and more")
    if server.max_queue < 1:
        raise ConfigError(f"--max-queue {server.max_queue}: give 1 or more")
