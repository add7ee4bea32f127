"""catalog.pull from a server that behaves like the Hugging Face hub."""

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import huggingface_hub.errors
import pytest

from pydflash import catalog
from pydflash.catalog import cache, entry, hub, store
from pydflash.errors import CapacityError, CatalogError
from tests.unit.hub_server import COMMIT, FakeHub, fake_hub

MODEL = bytes(range(256)) * 300


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    monkeypatch.setenv("PYDFLASH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with fake_hub() as state:
        state.repos["acme/tiny"] = {"tiny.gguf": MODEL, "sub/deep.gguf": MODEL[::-1]}
        monkeypatch.setenv("HF_ENDPOINT", state.url)
        yield state


def leftovers() -> list[Path]:
    partial = cache.models_dir() / ".partial"
    return list(partial.iterdir()) if partial.exists() else []


def test_pull_fetches_verifies_and_notes(server: FakeHub) -> None:
    seen: list[catalog.Progress] = []
    path = catalog.pull("hf:acme/tiny/tiny.gguf", progress=seen.append)
    assert path.read_bytes() == MODEL
    assert catalog.resolve("hf:acme/tiny/tiny.gguf") == path
    (model,) = catalog.installed()
    assert (model.source, model.bytes) == ("hf:acme/tiny/tiny.gguf", len(MODEL))
    assert cache.sha256_of(path) == model.files[0].sha256
    assert {p.phase for p in seen} == {"download", "verify"}
    assert seen[-1].done_bytes == seen[-1].total_bytes == len(MODEL)
    assert sorted(f.name for f in path.parent.iterdir()) == ["source.json", "tiny.gguf"]
    assert not leftovers()
    # The file is asked for by commit, so a change of the branch in between cannot mix versions.
    assert any(f"resolve/{COMMIT}/" in p for _, p, _ in server.requests)


def test_pull_twice_asks_the_server_once(server: FakeHub) -> None:
    catalog.pull("hf:acme/tiny/tiny.gguf")
    server.requests.clear()
    catalog.pull("hf:acme/tiny/tiny.gguf")
    assert not server.requests
    catalog.pull("hf:acme/tiny/tiny.gguf", force=True)
    assert server.requests


def test_pull_flattens_folders(server: FakeHub) -> None:
    path = catalog.pull("hf:acme/tiny/sub/deep.gguf")
    assert path.name == "deep.gguf"
    assert path.read_bytes() == MODEL[::-1]
    assert sorted(f.name for f in path.parent.iterdir() if f.is_file()) == [
        "deep.gguf",
        "source.json",
    ]


def test_pull_fetches_every_part_of_a_split_model(server: FakeHub) -> None:
    parts = {f"big-0000{i}-of-00003.gguf": MODEL[i:] for i in (1, 2, 3)}
    server.repos["acme/big"] = dict(parts)
    seen: list[catalog.Progress] = []
    path = catalog.pull("hf:acme/big/big-00001-of-00003.gguf", progress=seen.append)
    assert path.name == "big-00001-of-00003.gguf"
    for name, content in parts.items():
        assert (path.parent / name).read_bytes() == content
    assert seen[-1].done_bytes == sum(map(len, parts.values()))
    with pytest.raises(CatalogError, match="name its first part"):
        catalog.pull("hf:acme/big/big-00002-of-00003.gguf")


def test_pull_sends_the_token(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.gated.add("acme/tiny")
    with pytest.raises(CatalogError, match=r"acme/tiny is gated: accept its licence .* HF_TOKEN"):
        catalog.pull("hf:acme/tiny/tiny.gguf")
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert catalog.pull("hf:acme/tiny/tiny.gguf").read_bytes() == MODEL
    sent = {path.startswith("cdn/"): auth for _, path, auth in server.requests}
    assert sent == {False: "Bearer hf_good", True: None}  # it must not leave the hub


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("hf:acme/none/x.gguf", "no repository acme/none, or it is private"),
        ("hf:acme/tiny/x.gguf", r"acme/tiny has no file x.gguf: `pydflash pull hf:acme/tiny`"),
        ("hf:acme", "not of the form hf:owner/repo/file"),
        ("hf:acme/tiny/../../x.gguf", "not of the form hf:owner/repo/file"),
    ],
)
def test_pull_says_what_is_missing(server: FakeHub, spec: str, says: str) -> None:
    with pytest.raises(CatalogError, match=says):
        catalog.pull(spec)
    assert not leftovers()
    assert catalog.installed() == ()


def test_pull_refuses_other_bytes_than_declared(server: FakeHub) -> None:
    server.corrupt = True
    with pytest.raises(CatalogError, match="does not have the expected checksum"):
        catalog.pull("hf:acme/tiny/tiny.gguf")
    assert not leftovers()
    assert catalog.installed() == ()


def test_pull_refuses_a_truncated_file(server: FakeHub) -> None:
    server.truncate = True
    with pytest.raises(CatalogError, match="stopped early: pull again"):
        catalog.pull("hf:acme/tiny/tiny.gguf")
    assert not leftovers()


def test_pull_checks_the_catalogues_own_checksum(
    server: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = entry.HubSource(repo="acme/tiny", file="tiny.gguf", sha256="0" * 64)
    known = (entry.Entry(name="tiny", source=source),)
    monkeypatch.setattr(entry, "entries", lambda: known)
    with pytest.raises(CatalogError, match="instead of 0000"):
        catalog.pull("tiny")


def test_pull_when_the_server_is_broken(server: FakeHub) -> None:
    server.status = 403
    with pytest.raises(CatalogError, match="answered 403"):
        catalog.pull("hf:acme/tiny/tiny.gguf")


def test_pull_with_a_bad_token(server: FakeHub) -> None:
    server.status = 401
    with pytest.raises(CatalogError, match="HF_TOKEN"):
        catalog.pull("hf:acme/tiny/tiny.gguf")


def test_pull_offline_by_choice(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CatalogError, match="unset HF_HUB_OFFLINE"):
        catalog.pull("hf:acme/tiny/tiny.gguf")
    assert not server.requests


def test_pull_without_network(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CatalogError, match=r"no connection to http://127.0.0.1:9"):
        catalog.pull("hf:acme/tiny/tiny.gguf")
    assert not leftovers()


def test_pull_names_the_server_that_is_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    source = entry.HubSource(repo="acme/tiny", file="tiny.gguf")
    strange = huggingface_hub.errors.FileMetadataError("no size")
    for endpoint, named in (("", "https://huggingface.co"), ("http://mirror", "http://mirror")):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        assert str(hub._explain(source, strange)).startswith(f"{named} does not answer like a")


def test_pull_lists_a_repository_and_takes_the_only_file(server: FakeHub) -> None:
    server.repos["acme/one"] = {"README.md": b"x", "mmproj-F16.gguf": b"v", "one.gguf": MODEL}
    assert catalog.pull("hf:acme/one").name == "one.gguf"


def test_pull_lists_a_repository_and_asks(server: FakeHub) -> None:
    with pytest.raises(CatalogError, match=r"holds 2 GGUF files; name one.*sub/deep.gguf, tiny"):
        catalog.pull("hf:acme/tiny")
    server.repos["acme/text"] = {"README.md": b"x"}
    with pytest.raises(CatalogError, match="holds no GGUF file"):
        catalog.pull("hf:acme/text")


def test_choose_takes_what_the_entry_prefers(server: FakeHub) -> None:
    names = ["m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "m-Q4_K_M-x.gguf", "m-Q8_0.gguf"]
    server.repos["acme/many"] = dict.fromkeys(names, MODEL)
    source = entry.HubSource(repo="acme/many", prefer="Q4_K_M")
    assert hub._choose(source) == "m-Q4_K_M.gguf"


def test_pull_checks_the_disk_first(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(CapacityError, match=r"needs 0\.1 MB of disk.*pydflash rm.*PYDFLASH_CACHE"):
        catalog.pull("hf:acme/tiny/tiny.gguf")
    assert not any("cdn" in path for _, path, _ in server.requests)
    assert not leftovers()


def test_pull_when_the_disk_fills_up(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, seen: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub, "sha256_of", full)
    with pytest.raises(CapacityError, match="the disk filled up while fetching hf:acme/tiny"):
        catalog.pull("hf:acme/tiny/tiny.gguf")
    assert not leftovers()


def test_pull_interrupted_leaves_nothing(server: FakeHub) -> None:
    def stop(progress: catalog.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalog.pull("hf:acme/tiny/tiny.gguf", progress=stop)
    assert not leftovers()
    assert catalog.installed() == ()
    assert catalog.pull("hf:acme/tiny/tiny.gguf").read_bytes() == MODEL


def test_resolve_finds_what_other_programs_downloaded(server: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"run `pydflash pull hf:acme/tiny/tiny\.gguf`"):
        catalog.resolve("hf:acme/tiny/tiny.gguf")
    there = huggingface_hub.hf_hub_download(
        "acme/tiny", "tiny.gguf", endpoint=server.url, cache_dir=tmp_path / "hf"
    )
    assert catalog.resolve("hf:acme/tiny/tiny.gguf") == Path(there)
    assert store.installed() == ()
