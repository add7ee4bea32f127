"""Memory that runs out while a model is loaded: refused with what would help, or the next device's turn."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from pydflash.config import EngineConfig, RuntimeConfig, SpecConfig, StateConfig
from pydflash.device import Scarce, ran_out
from pydflash.errors import CapacityError
from pydflash.models.base import Decoder
from pydflash.models.load import Description
from pydflash.service import build
from tests.tiny.gguf import tiny_gguf

CONFIG = EngineConfig(
    runtime=RuntimeConfig(ops="ref", threads=1),
    state=StateConfig(max_ctx=64),
    spec=SpecConfig(no_speculation=True),
)
FULL = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 1 GiB"


class Fails:
    """Stands for the KV store and raises the first time; `models` were loaded by then."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, error: type[Exception], said: str = ""
    ) -> None:
        self.models: list[weakref.ref[Any]] = []
        self._left, self._error, self._said, self._store = 1, error, said, build.KvStore
        monkeypatch.setattr(build, "KvStore", self)
        load = Description.load

        def seen(described: Description, *args: Any) -> Any:
            model = load(described, *args)
            assert isinstance(model, Decoder)
            self.models.append(weakref.ref(model.output_norm))
            return model

        monkeypatch.setattr(Description, "load", seen)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._left:
            self._left -= 1
            raise self._error(self._said)
        return self._store(*args, **kwargs)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (torch.OutOfMemoryError, FULL),
        (MemoryError, ""),
        (RuntimeError, "Triton Error [CUDA]: out of memory"),
    ],
)
def test_it_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], says: str
) -> None:
    fails = Fails(monkeypatch, error, says)
    with pytest.raises(CapacityError, match="cpu ran out while the model was loaded") as caught:
        build.load(tiny_gguf(tmp_path / "m.gguf"), CONFIG)
    gc.collect()
    assert [m() for m in fails.models] == [None], "the error, still at hand, keeps what was loaded"
    said = str(caught.value)
    assert "--max-ctx" in said
    assert "--cache-type-k q8_0" in said
    assert "total capacity" not in said


def test_other_errors_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Fails(monkeypatch, RuntimeError, "shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        build.load(tiny_gguf(tmp_path / "m.gguf"), CONFIG)


def test_the_next_device_is_tried_and_the_first_gives_its_memory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(build, "target_devices", lambda runtime: [cpu, cpu])
    fails = Fails(monkeypatch, torch.OutOfMemoryError, FULL)
    loaded = build.load(tiny_gguf(tmp_path / "m.gguf"), CONFIG)
    assert loaded.device == "cpu"
    assert "not on cpu: the memory of cpu ran out" in caplog.text
    gc.collect()
    assert [m() is not None for m in fails.models] == [False, True]


def test_what_running_out_looks_like() -> None:
    assert ran_out(torch.OutOfMemoryError(FULL))
    assert ran_out(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"))
    assert ran_out(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert not ran_out(RuntimeError("an illegal memory access was encountered"))


def test_work_that_finds_no_memory_leaves_nothing() -> None:
    class Large:
        pass

    def work() -> None:
        large = Large()
        seen.append(weakref.ref(large))
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    seen: list[weakref.ref[Large]] = []
    with Scarce() as memory:
        work()
    assert memory.ran_out
    assert "Triton" in memory.said
    assert [ref() for ref in seen] == [None]
    with Scarce() as memory:
        pass
    assert not memory.ran_out
    for other in (RuntimeError("illegal memory access"), ValueError("out of memory")):
        with pytest.raises(type(other)), Scarce():
            raise other
