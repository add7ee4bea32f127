"""Where a step's tapes lie, and the tables by which commits find them: graphs keep both."""

import pytest
import torch

from pydflash.kernels.ops import DeltaArgs, Recurrent

delta_tape = pytest.importorskip("pydflash.kernels.triton.delta_tape")
ARGS = DeltaArgs(
    k_heads=1,
    v_heads=2,
    k_dim=8,
    v_dim=8,
    conv=torch.zeros(32, 4),
    a=torch.zeros(2),
    dt_bias=torch.zeros(2),
    norm=torch.ones(8),
    eps=1e-6,
)


def layers(count: int = 3) -> list[Recurrent]:
    return [
        Recurrent(conv=torch.zeros(2, 3, 32), state=torch.zeros(2, 2, 8, 8)) for _ in range(count)
    ]


def step(some: list[Recurrent], tokens: int) -> torch.Tensor:
    """The table of a commit after a step of so many exact tokens."""
    for layer in some:
        layer.tape = delta_tape.reserve(layer, ARGS, tokens).first(tokens)
    return delta_tape.operand_table(some)


def test_a_table_says_where_every_operand_is() -> None:
    some = layers()
    table = step(some, 5)
    for row, layer in zip(table.tolist(), some, strict=True):
        tape = layer.tape
        assert tape is not None
        held = (layer.conv, layer.state, tape.k, tape.delta, tape.decay, tape.rows)
        assert row == [t.data_ptr() for t in held]


def test_steps_that_fit_share_tapes_and_table() -> None:
    some = layers()
    table = step(some, 24)
    assert all(step(some, tokens) is table for tokens in (1, 7, 24))


def test_outgrown_tapes_stay_and_are_few() -> None:
    some = layers()
    first = step(some, 10)
    tape = some[0].tape
    tables = [step(some, tokens) for tokens in range(11, 200)]
    assert len({id(t) for t in (first, *tables)}) == 6, "10, 20, 40, 80, 160, 320"
    known = some[0].buffers.tables  # type: ignore[attr-defined]
    kept = {t.data_ptr() for made in known.values() for t in made.kept}
    assert {where for row in first.tolist() for where in row} <= kept
    some[0].tape = tape  # as a graph puts it back; the others are as the last step left them
    assert delta_tape.operand_table(some) is not first
