"""LiveServer: `pydflash serve` in a process of its own, to be asked over HTTP and watched from outside."""

import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from pydflash.bench.http import Address
from pydflash.errors import EngineError

_START_S = 300.0
_EXIT_S = 60.0


class LiveServer:
    """A server of a model on a free port of this machine. Use as a context manager.

    Raises EngineError, with its last lines, if it does not start.
    """

    def __init__(self, model: Path, options: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "pydflash", "serve", str(model), "--port", "0", *options]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._lines: deque[str] = deque(maxlen=40)
        self._told = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._told.wait(_START_S) or not self.url:
            self.close()
            raise EngineError("pydflash serve did not start: " + " | ".join(self._lines))
        parts = urlsplit(self.url)
        self.address = Address(parts.hostname or "127.0.0.1", parts.port or 80)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def last_lines(self) -> list[str]:
        """What it said last."""
        return list(self._lines)

    def resident_bytes(self) -> int | None:
        """Memory it has resident; None where the system does not tell."""
        try:
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        except OSError:
            return None
        sizes = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
        return int(sizes[0]) * 1024 if sizes else None

    def ask(self, path: str, body: object = None, *, timeout_s: float = 60.0) -> Any:
        """The JSON of a GET, or of a POST with a body. EngineError if it is refused."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(300).decode("utf-8", "replace")
            raise EngineError(f"{path} answered {error.code}: {said}") from None
        except OSError as error:
            raise EngineError(f"{path} did not answer: {error}") from None

    def close(self) -> None:
        """Stop it; its exit code is in what `stopped` gives."""
        if self.is_alive:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def __enter__(self) -> "LiveServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        """Never let its pipe fill; find the address in what it says."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line.rstrip())
            if not self.url and " at http" in line:
                self.url = line[line.index("http") :].strip()
                self._told.set()
        self._told.set()
