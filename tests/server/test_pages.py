"""The pages' router: what each client gets, and with which headers."""

import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from pydflash.server.pages import assets, router, wants_json

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI(docs_url=None)  # as `create_app` does: ours stands there
    app.include_router(router)
    return TestClient(app)


@pytest.mark.parametrize("accept", [BROWSER, "*/*", "text/html;q=0.5, */*", ""])
def test_root_gives_the_page(client: TestClient, accept: str) -> None:
    reply = client.get("/", headers={"Accept": accept})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["vary"] == "Accept"
    assert "<title>pydflash</title>" in reply.text


@pytest.mark.parametrize(
    "accept",
    ["application/json", "application/json, text/plain, */*", "text/html;q=0.5, application/json"],
)
def test_root_gives_json_to_those_who_ask(client: TestClient, accept: str) -> None:
    reply = client.get("/", headers={"Accept": accept})
    assert reply.json() == {"status": "ok"}
    assert reply.headers["vary"] == "Accept"


def test_accept_weights() -> None:
    assert not wants_json("application/json;q=0.2, text/html;q=0.9")
    assert not wants_json("application/json, text/html")
    assert not wants_json("application/json;q=0")
    assert not wants_json("application/json;q=much")
    assert wants_json("Application/JSON; charset=utf-8; q=0.4")


def test_head_has_the_headers_and_no_body(client: TestClient) -> None:
    whole, head = client.get("/"), client.head("/")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == str(len(whole.content))
    assert client.head("/", headers={"Accept": "application/json"}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/status", "/docs", "/static/chat.js", "/static/style.css"])
def test_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert not re.search(r"https?:|\*", policy), "no other host may be asked for anything"
    assert headers["x-content-type-options"] == "nosniff"


def test_types(client: TestClient) -> None:
    for name, kind in [
        ("chat.js", "text/javascript; charset=utf-8"),
        ("style.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    ]:
        assert client.get(f"/static/{name}").headers["content-type"] == kind


def test_entity_tag_saves_the_transfer(client: TestClient) -> None:
    first = client.get("/static/chat.js")
    again = client.get("/static/chat.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get("/static/chat.js", headers={"If-None-Match": '"other"'})
    assert (other.status_code, other.content) == (200, first.content)


@pytest.mark.parametrize("name", ["none.js", "..%2Fpages.py", "%2e%2e%2fpages.py", "pages.py", ""])
def test_only_what_is_listed_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


def test_every_file_a_page_names_is_there(client: TestClient) -> None:
    found = 0
    for name, asset in assets().items():
        text = asset.body.decode()
        names = re.findall(r'(?:href|src)="static/([^"]+)"', text)
        names += re.findall(r'^(?:import|export) .*from "\./([^"]+)";', text, re.MULTILINE)
        for other in names:
            assert client.get(f"/static/{other}").status_code == 200, f"{name} names {other}"
        found += len(names)
    assert found > 10


def test_no_file_names_another_host() -> None:
    for name, asset in assets().items():
        hosts = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"']*", asset.body.decode())
        assert set(hosts) <= {"http://www.w3.org/2000/svg"}, name
