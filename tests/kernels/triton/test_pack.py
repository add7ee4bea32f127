"""Packing: whatever is cut into slices, merged or kept on the host, rows come back as they were."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pydflash.checkpoint.files import open_checkpoint
from pydflash.kernels.ref.quant import dequantize
from pydflash.kernels.triton import pack as packing
from pydflash.kernels.triton import weights
from pydflash.kernels.triton.embed import embed
from pydflash.kernels.triton.ops import build_ops
from pydflash.kernels.triton.pack import held_bytes, pack
from pydflash.kernels.triton.weights import packed_of, prepare, prepare_table
from pydflash.models.load import describe
from pydflash.quant.formats import FORMATS
from tests.kernels.triton.test_products import BOUND, PLAIN, SUPER, error, random_weight
from tests.tiny.gguf import tiny_gguf

CPU = torch.device("cpu")


class Live(TorchDispatchMode):
    """Watches the memory of tensors: `peak` bytes were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for key in [key for key, (ref, _) in self._live.items() if ref.expired()]:
            del self._live[key]
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._live.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return out


@pytest.mark.parametrize("name", ["Q2_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "Q8_0", "BF16"])
def test_a_slice_is_what_packing_adds_to_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, cols, size = 1024, 512, 64 * 512
    monkeypatch.setattr(packing, "_SLICE", size)
    part = random_weight(rows, cols, name)
    with Live() as live:
        planes = pack([part], CPU)
    assert live.peak - planes.nbytes - part.nbytes < 14 * size
    assert planes.nbytes > 8 * size  # else a whole tensor's would pass


@pytest.mark.parametrize("name", ["Q3_K", "Q4_K", "Q6_K", "Q8_0", "F32"])
def test_slices_of_merged_tensors(
    device: torch.device, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are cut and joined wherever they fall, and their scales may be far apart."""
    monkeypatch.setattr(packing, "_SLICE", 64 * 256)
    parts = [random_weight(count, 256, name) for count in (70, 5, 130)]
    merged = prepare(parts, device, None)
    assert len(packed_of(merged).segments) == 1
    rows = [0, 63, 64, 69, 70, 74, 75, 127, 128, 191, 192, 204]  # where parts, slices and tiles end
    got = embed(merged, torch.tensor(rows, dtype=torch.int32, device=device))
    want = torch.cat([dequantize(p) for p in parts])[rows]
    assert error(got, want.double().to(device)) < BOUND


@pytest.mark.parametrize("name", [*SUPER, *PLAIN])
def test_tables_on_the_host(device: torch.device, name: str) -> None:
    """Bit for bit what the device would have held."""
    part = random_weight(70, 256, name)
    table, weight = prepare_table(part, device), prepare([part], device, None)
    planes = packed_of(table).segments[0].planes
    assert planes.words.device == CPU
    assert planes.words.is_pinned() == (device.type == "cuda")
    assert table.nbytes == held_bytes(FORMATS[name], 70, 256, tile=1)
    tokens = torch.tensor([3, 0, 69, 64, 3], dtype=torch.int32, device=device)
    assert torch.equal(embed(table, tokens), embed(weight, tokens))


def test_without_page_locked_memory_the_table_goes_to_the_device(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(size: int, device: torch.device) -> torch.Tensor:
        raise MemoryError("none left")

    monkeypatch.setattr(weights, "page_locked", none)
    ops = build_ops(device, host_tables=True)
    assert ops.host_table is not None
    weight = ops.host_table(random_weight(70, 256, "Q4_K"))
    assert packed_of(weight).segments[0].planes.words.device.type == device.type
    assert packed_of(weight).segments[0].planes.tile == 64
    assert "Q4_K goes to" in caplog.text


@pytest.mark.parametrize("tied", [False, True])
def test_a_models_table(device: torch.device, tmp_path: Path, tied: bool) -> None:
    """The plan leaves out what the host holds; a table that is the head as well stays."""
    path = tiny_gguf(tmp_path / "m.gguf", formats="Q8_0", tied=tied)
    ops, plain = build_ops(device, host_tables=True), build_ops(device)
    with open_checkpoint(path) as checkpoint:
        described = describe(checkpoint)
        model = described.load(ops, 64)
        there, here = described.footprint(ops), described.footprint(plain)
    planes = packed_of(model.token_embd).segments[0].planes
    assert planes.tile == (64 if tied else 1)
    assert there.on_host == (0 if tied else model.token_embd.nbytes)
    assert (there.weights < here.weights) == (not tied)
    assert (described.table_nbytes == 0) == tied
    assert here.on_host == 0
