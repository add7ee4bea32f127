"""Commits on the device: captured ones, which are padded, do what plain ones do and nothing else."""

import pytest
import torch

from pydflash.kernels.ops import PAGE_SIZE, Tape
from pydflash.kernels.record import Again
from pydflash.kernels.ref.ops import build_ops
from pydflash.state.base import PagedKVSpec, RecurrentSpec
from pydflash.state.kv import KvStore
from pydflash.state.moves import Moves
from pydflash.state.recurrent import Advance, RecurrentStore, SlotId

OPS = build_ops(torch.device("cpu"))
KV = [PagedKVSpec(layer=n, kv_heads=1 + n, head_dim=32) for n in range(2)]
DELTA = [
    RecurrentSpec(layer=2 + n, conv_width=4, conv_channels=32, k_heads=1, heads=2, k_dim=8, v_dim=8)
    for n in range(2)
]
TOKENS, SLOTS, PAGES = 90, 5, 4


class World:
    """Two layers of pages and two of states with random contents, and a step's tape: alike in all worlds."""

    def __init__(self, *, captured: bool, hybrid: bool) -> None:
        torch.manual_seed(0)
        record = Again() if captured else None
        self.kv = KvStore(KV, PAGES, "f32", "f32", OPS, scratch=True, record=record)
        self.recurrent = RecurrentStore(DELTA, SLOTS, OPS, scratch=True) if hybrid else None
        self.tensors = [t for layer in self.kv.layers for t in (layer.k, layer.v)]
        for layer in self.recurrent.layers if self.recurrent is not None else ():
            self.tensors += [layer.conv, layer.state]
            layer.tape = Tape(
                k=torch.randn(TOKENS, 1, 8),
                delta=torch.randn(TOKENS, 2, 8),
                decay=torch.rand(TOKENS, 2),
                rows=torch.randn(TOKENS, 32),
            )
        for tensor in self.tensors:
            tensor.copy_(torch.randn(tensor.shape))

    def run(self, places: list[tuple[int, int]], advances: list[Advance]) -> None:
        Moves(kv=self.kv, recurrent=self.recurrent, places=places, advances=advances).run()


def advance(slot: int, *nodes: int) -> Advance:
    return Advance(slot=SlotId(slot), nodes=nodes)


PLACES = [(3, 1), (40, 2), (1, 40), (2 * PAGE_SIZE, 3 * PAGE_SIZE + 31)]
LISTS: dict[str, tuple[list[tuple[int, int]], list[Advance]]] = {
    "places": (PLACES, []),
    "one row": ([], [advance(2, 0, 3, 4)]),
    "both": (PLACES[:2], [advance(0, 5, 7)]),
    "rows": (PLACES, [advance(4, 0), advance(1, 9, 11, 12), advance(0, 30, 31)]),
    "many": (PLACES, [advance(3, *range(20, 60))]),
    "too many to capture": (PLACES, [advance(3, *range(TOKENS - 1))]),
    "nothing": ([], []),
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("hybrid", [True, False])
def test_captured_commits_do_what_plain_ones_do(name: str, hybrid: bool) -> None:
    places, advances = LISTS[name]
    if not hybrid:
        advances = []
    plain, captured = (World(captured=c, hybrid=hybrid) for c in (False, True))
    before = [t.clone() for t in plain.tensors]
    for _ in range(2):  # once as it is captured, once as it is repeated
        for world in (plain, captured):
            world.run(places, advances)
        assert all(map(torch.equal, plain.tensors, captured.tensors))
    assert plain.kv.commits is None
    assert captured.kv.commits is not None
    changes = bool(places or advances)
    assert all(map(torch.equal, before, plain.tensors)) is not changes
    fits = changes and not (advances and name.startswith("too many"))
    assert len(captured.kv.commits) == int(fits)


def test_a_capture_serves_other_lists_of_its_size() -> None:
    plain, captured = (World(captured=c, hybrid=True) for c in (False, True))
    for places, advances in (LISTS["both"], LISTS["one row"], (PLACES, [advance(3, *range(16))])):
        for world in (plain, captured):
            world.run(places, advances)
        assert all(map(torch.equal, plain.tensors, captured.tensors))
    assert captured.kv.commits is not None
    assert len(captured.kv.commits) == 1


def test_states_say_where_their_tapes_are() -> None:
    world = World(captured=False, hybrid=True)
    assert world.recurrent is not None
    where = world.recurrent.tapes_at
    assert len(set(where)) == len(DELTA)
    last = world.recurrent.layers[-1]
    assert last.tape is not None
    last.tape = Tape(
        k=last.tape.k.clone(),
        delta=last.tape.delta,
        decay=last.tape.decay,
        rows=last.tape.rows,
    )
    assert world.recurrent.tapes_at != where
