"""A small server on 127.0.0.1 that behaves like the Hugging Face hub, for the catalogue's tests."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "c" * 40


@dataclass
class FakeHub:
    """Repositories by name, each with its files. `gated` ones want `token`; `broken` misbehave."""

    url: str = ""
    cdn_url: str = ""  # another origin: large files are redirected there, without the token
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_good"
    truncate: bool = False  # send fewer bytes than declared
    corrupt: bool = False  # send other bytes than the checksum says
    status: int | None = None  # answer everything with this
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(_Handler):
        state = hub

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in servers]
    for thread in threads:
        thread.start()
    hub.url, hub.cdn_url = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    state: FakeHub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        hub, path = self.state, unquote(self.path.partition("?")[0]).lstrip("/")
        hub.requests.append((self.command, path, self.headers.get("Authorization")))
        if hub.status is not None:
            return self._send(hub.status, {}, b"", with_body)
        if path.startswith("cdn/"):  # where large files really are
            _, owner, name, file = path.split("/", 3)
            return self._send_file(hub.repos[f"{owner}/{name}"][file], with_body)
        if path.startswith("api/models/"):
            repo = "/".join(path.split("/")[2:4])
            if self._refused(repo, with_body):
                return None
            siblings = [{"rfilename": file} for file in hub.repos[repo]]
            body = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
            return self._send(200, {"Content-Type": "application/json"}, body, with_body)
        owner, name, _, _revision, file = path.split("/", 4)
        repo = f"{owner}/{name}"
        if self._refused(repo, with_body):
            return None
        content = hub.repos[repo].get(file)
        if content is None:
            return self._send(404, {"X-Error-Code": "EntryNotFound"}, b"", with_body)
        headers = {
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(content)),
            "X-Linked-ETag": f'"{sha256(content).hexdigest()}"',
            "ETag": '"pointer"',
            "Location": f"{hub.cdn_url}/cdn/{repo}/{file}",
        }
        return self._send(302, headers, b"", with_body)

    def _refused(self, repo: str, with_body: bool) -> bool:
        hub = self.state
        if repo not in hub.repos:
            self._send(404, {"X-Error-Code": "RepoNotFound"}, b"", with_body)
        elif repo in hub.gated and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._send(401, {"X-Error-Code": "GatedRepo"}, b"", with_body)
        else:
            return False
        return True

    def _send_file(self, content: bytes, with_body: bool) -> None:
        if self.state.corrupt:
            content = bytes(reversed(content))
        if self.state.truncate:
            content = content[:-7]
        headers = {"ETag": '"cdn"', "Content-Type": "application/octet-stream"}
        self._send(200, headers, content, with_body)

    def _send(self, status: int, headers: dict[str, str], body: bytes, with_body: bool) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)
