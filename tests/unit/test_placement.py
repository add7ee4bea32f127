"""placement: which device a model gets, and what is said when it cannot have the one asked for."""

import pytest
import torch

from pydflash import device
from pydflash.config import RuntimeConfig
from pydflash.device import DeviceInfo
from pydflash.errors import CapacityError, ConfigError, UnsupportedError
from pydflash.kernels.triton import support
from pydflash.service import placement
from pydflash.service.placement import (
    CPU,
    check_draft_device,
    embeddings_on_host,
    first_fit,
    kernels_for,
    target_devices,
)


def gpu(name: str, free: int) -> DeviceInfo:
    return DeviceInfo(name=name, description="Test GPU", total_bytes=100, free_bytes=free)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs that the kernels serve, the second with more memory free."""
    monkeypatch.setattr(placement, "gpus", lambda: (gpu("cuda:0", 10), gpu("cuda:1", 90)))
    monkeypatch.setattr(support, "unavailable", lambda _: None)


@pytest.mark.usefixtures("two")
def test_auto_tries_the_roomiest_gpu_and_then_the_cpu() -> None:
    assert target_devices(RuntimeConfig()) == [torch.device("cuda:1"), CPU]
    assert target_devices(RuntimeConfig(target_device="cpu")) == [CPU]
    assert target_devices(RuntimeConfig(ops="cpu")) == [CPU]
    assert target_devices(RuntimeConfig(target_device="cuda")) == [torch.device("cuda:0")]
    assert target_devices(RuntimeConfig(target_device="cuda:1")) == [torch.device("cuda:1")]


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("cuda:2", "this machine has cuda:0, cuda:1 and cpu"),
        ("hip:0", "this machine has cuda:0, cuda:1 and cpu"),
        ("tpu:0", "choose auto, cpu, cuda:N or hip:N"),
        ("cuda:x", "choose auto, cpu, cuda:N or hip:N"),
    ],
)
def test_a_device_that_is_not_here_is_refused(asked: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"--target-device {asked}: {says}"):
        target_devices(RuntimeConfig(target_device=asked))


def test_without_gpus_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "gpus", lambda: ())
    assert target_devices(RuntimeConfig()) == [CPU]
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        target_devices(RuntimeConfig(target_device="cuda:0"))


def test_a_gpu_without_kernels_is_refused_with_the_reason(
    two: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "unavailable", lambda _: "Triton is not installed")
    assert target_devices(RuntimeConfig()) == [CPU]
    with pytest.raises(UnsupportedError, match="Triton is not installed; use --target-device cpu"):
        target_devices(RuntimeConfig(target_device="cuda:0"))
    here = RuntimeConfig(target_device="cuda:0", ops="ref")
    assert target_devices(here) == [torch.device("cuda:0")]


def test_the_first_device_with_room_is_taken() -> None:
    small = torch.device("cuda:0")

    def fit(device: torch.device) -> str:
        if device == small:
            raise CapacityError("it is too small")
        return device.type

    assert first_fit([small, CPU], fit) == "cpu"
    with pytest.raises(CapacityError, match="too small"):
        first_fit([CPU, small], lambda d: fit(small))


def test_kernels_of_a_gpu_are_tritons_unless_others_are_asked_for() -> None:
    assert kernels_for(torch.device("cuda:0"), "auto") == "triton"
    assert kernels_for(torch.device("cuda:0"), "ref") == "ref"
    assert kernels_for(CPU, "auto") == "auto"


def test_embeddings_stay_on_the_host_where_that_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(placement, "available_memory_bytes", lambda: 1000)
    auto, host = RuntimeConfig(), RuntimeConfig(embeddings="host")
    assert embeddings_on_host(auto, "triton", 100)
    assert not embeddings_on_host(auto, "triton", 400)  # too large to lock
    assert embeddings_on_host(host, "triton", 400)
    assert not embeddings_on_host(RuntimeConfig(embeddings="device"), "triton", 100)
    for kernels, nbytes in (("ref", 100), ("auto", 100), ("triton", 0)):
        assert not embeddings_on_host(auto, kernels, nbytes)
    assert not caplog.text
    assert not embeddings_on_host(host, "triton", 0)
    assert "it is the output head as well" in caplog.text
    assert not embeddings_on_host(host, "ref", 100)
    assert "only Triton's kernels" in caplog.text


def test_the_drafter_runs_beside_its_target() -> None:
    check_draft_device(RuntimeConfig(), torch.device("cuda:0"))
    check_draft_device(RuntimeConfig(draft_device="hip:0"), torch.device("cuda:0"))
    with pytest.raises(ConfigError, match="--draft-device cpu: the drafter uses"):
        check_draft_device(RuntimeConfig(draft_device="cpu"), torch.device("cuda:0"))
    with pytest.raises(ConfigError, match="--draft-device moon"):
        check_draft_device(RuntimeConfig(draft_device="moon"), CPU)


def test_names_of_devices() -> None:
    assert device.torch_name("hip:1") == "cuda:1"
    assert device.torch_name("cpu") == "cpu"
    assert device.free_bytes("cpu") > 0
