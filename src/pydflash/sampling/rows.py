"""Rows: logits of one step, to draw from one row at a time; and those in the host's memory."""

from typing import Protocol

import torch

from pydflash.errors import EngineError
from pydflash.sampling.ask import Ask
from pydflash.sampling.dice import Dice
from pydflash.sampling.draw import Draw


class Rows(Protocol):
    """What a walk draws from. A row's draw is the same whatever the other rows are, wherever they lie."""

    def __len__(self) -> int: ...

    def draw(self, row: int, ask: Ask) -> Draw | EngineError:
        """A token from one row; its error where none can be drawn."""


class HostRows:
    """Rows in the host's memory (copied there if they are not)."""

    def __init__(self, dice: Dice, logits: torch.Tensor) -> None:
        """logits f32 [M, V]."""
        self._dice = dice
        self._rows = logits.to("cpu", torch.float32).numpy()

    def __len__(self) -> int:
        return len(self._rows)

    def draw(self, row: int, ask: Ask) -> Draw | EngineError:
        return self._dice.draw(self._rows[row], ask)
