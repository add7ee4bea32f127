"""upload: what crosses to a device arrives whole, in however many parts."""

import numpy as np
import pytest
import torch

from pydflash.kernels.upload import (
    Fetch,
    Staging,
    apart,
    end_pushes,
    fetch,
    ints,
    joined,
    push,
    rows_of,
    upload,
)
from tests.backends import DEVICE


@pytest.mark.parametrize("size", [7, 64, 1000])
def test_large_tensors_cross_in_parts(size: int) -> None:
    staging = Staging(DEVICE, size)
    for shape in ((3, 50), (1,), (0, 4), (129,)):
        values = torch.randint(0, 255, shape, dtype=torch.uint8)
        halves = torch.randn(shape)
        assert torch.equal(staging.push(values).cpu(), values)
        assert torch.equal(staging.push(halves).cpu(), halves)
    view = torch.randn(20, 30)[:, 4:9]
    assert torch.equal(staging.push(view).cpu(), view)


def test_push() -> None:
    values = torch.randn(4000, 33)
    assert torch.equal(push(values, DEVICE).cpu(), values)
    end_pushes()
    assert torch.equal(push(values, DEVICE).cpu(), values)


@pytest.mark.parametrize("name", ["_accelerator_emptyHostCache", "_host_emptyCache"])
def test_page_locked_memory_goes_back_to_the_system(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name that this torch has, and only where there is a GPU in use."""
    calls: list[str] = []
    for other in ("_accelerator_emptyHostCache", "_host_emptyCache"):
        monkeypatch.delattr(torch._C, other, raising=False)
    for used in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda used=used: used)
        end_pushes()
        monkeypatch.setattr(torch._C, name, lambda: calls.append(name), raising=False)
        end_pushes()
        assert calls == [name] * used
        monkeypatch.delattr(torch._C, name)


def test_what_is_on_its_way_does_not_change() -> None:
    values, more = torch.arange(6, device=DEVICE).view(2, 3), torch.ones(4, device=DEVICE)
    under_way = Fetch([values, more])
    values.zero_()
    more.add_(1)
    there, rest = under_way.arrays()
    assert there.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert rest.tolist() == [1.0] * 4


def test_numbers_there_and_back() -> None:
    there = [ints((3, 1, 2), DEVICE), upload(np.array([[0.5, -1.0]], np.float32), DEVICE)]
    assert [t.device.type for t in there] == [DEVICE.type] * 2
    back = fetch(there)
    assert back[0].tolist() == [3, 1, 2]
    assert back[1].tolist() == [[0.5, -1.0]]


def test_rows_of_are_copies() -> None:
    values = torch.arange(12.0, device=DEVICE).view(6, 2)
    for rows in ([], [2, 3, 4], [4, 1, 1], range(6)):
        got = rows_of(values, rows)
        assert got.tolist() == [values[r].tolist() for r in rows]
        if len(rows):
            got.zero_()
    assert values.sum() == 66


@pytest.mark.parametrize(
    "lists", [[[]], [[1]], [[1, 2, 3, 4], [5]], [[], [7, 8], [], [9, 10, 11, 12, 13], []]]
)
def test_joined_lists_come_apart(lists: list[list[int]]) -> None:
    flat = torch.from_numpy(joined(lists))
    parts = apart(flat, [len(values) for values in lists])
    assert [part.tolist() for part in parts] == lists
    assert flat.dtype is torch.int32
    assert all(part.storage_offset() % 4 == 0 for part in parts), "16 bytes"
