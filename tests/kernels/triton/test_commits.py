"""Captured commits over Triton's kernels: what a graph was captured for, and what it is repeated with."""

from collections.abc import Callable

import torch

from pydflash.kernels.ops import DeltaArgs, Recurrent, Tape
from pydflash.kernels.record import Work, recorder
from pydflash.kernels.triton.delta_tape import reserve
from pydflash.state.kv import KvStore
from pydflash.state.moves import Moves
from pydflash.state.recurrent import RecurrentStore
from tests.backends import table
from tests.state.test_moves import DELTA, KV, PAGES, PLACES, SLOTS, advance

Tensor = torch.Tensor


class Frozen:
    """Repeats work on the tapes that were there when it was captured, whatever a step left since: as a graph
    does, of kernels that read nothing on the host."""

    on_host = False

    def __init__(self) -> None:
        self.layers: list[Recurrent] = []

    def __call__(self, work: Work) -> tuple[Callable[[], None], list[Tensor]]:
        then = [layer.tape for layer in self.layers]
        results = work()

        def replay() -> None:
            now = [layer.tape for layer in self.layers]
            put(self.layers, then)
            work()
            put(self.layers, now)

        return replay, results


def put(layers: list[Recurrent], tapes: list[Tape | None]) -> None:
    for layer, tape in zip(layers, tapes, strict=True):
        layer.tape = tape


def test_a_capture_is_for_the_tapes_that_it_knew() -> None:
    """Steps whose tapes were outgrown, and steps of graphs that put the old ones back."""
    ops = table("triton")
    vector = torch.zeros(2, device=ops.device)
    args = DeltaArgs(
        k_heads=1, v_heads=2, k_dim=8, v_dim=8, conv=vector, a=vector, dt_bias=vector, norm=vector, eps=0.0
    )  # fmt: skip
    frozen = Frozen()
    record = recorder(ops) or frozen
    stores = []
    for own in (None, record):
        kv = KvStore(KV, PAGES, "f32", "f32", ops, scratch=True, record=own)
        stores.append((kv, RecurrentStore(DELTA, SLOTS, ops, scratch=True)))
    frozen.layers = stores[1][1].layers
    older: list[list[Tape | None]] = [[], []]
    sizes = (4, 9, 4, 30, 9, 4)
    for turn, tokens in enumerate(sizes):
        for tapes, (kv, recurrent) in zip(older, stores, strict=True):
            torch.manual_seed(turn)
            for layer in recurrent.layers:
                layer.tape = reserve(layer, args, tokens).first(tokens)
            if turn == 0:
                tapes += [layer.tape for layer in recurrent.layers]
            elif tokens == sizes[0]:
                put(recurrent.layers, tapes)
            for layer in recurrent.layers:
                assert layer.tape is not None
                for t in (layer.tape.k, layer.tape.delta, layer.tape.decay, layer.tape.rows):
                    t.copy_(torch.randn(t.shape))
            advances = [advance(1, 0, 2, 3), advance(turn % 2 * 2, 1)]
            Moves(kv=kv, recurrent=recurrent, places=PLACES[:turn], advances=advances).run()
        for plain, captured in zip(stores[0][1].layers, stores[1][1].layers, strict=True):
            assert torch.equal(plain.state, captured.state), f"after step {turn}"
            assert torch.equal(plain.conv, captured.conv), f"after step {turn}"
    assert stores[1][0].commits is not None
    assert len(stores[1][0].commits) == 3, "one for 4 tokens, for twice as many and for 30"
