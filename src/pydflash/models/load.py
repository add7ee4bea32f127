"""Load a model in two steps: what the file describes, then its tensors bound strictly to a device."""

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pydflash.checkpoint.files import Checkpoint
from pydflash.errors import UnsupportedError
from pydflash.kernels.ops import OpTable
from pydflash.models import ARCHITECTURES
from pydflash.models.base import Model
from pydflash.models.bind import Binder
from pydflash.state.base import StateSpec

log = logging.getLogger(__name__)


class ModelConfig(Protocol):
    """What every architecture's config says before anything is allocated."""

    @property
    def max_positions(self) -> int: ...

    def state_specs(self) -> list[StateSpec]: ...


@dataclass(frozen=True, slots=True)
class Description:
    """A file's architecture, understood but not loaded."""

    checkpoint: Checkpoint
    config: ModelConfig
    module: Any

    def load(
        self, ops: OpTable, max_positions: int, progress: Callable[[int], None] | None = None
    ) -> Model:
        """Bind the tensors. `progress` is told the bytes of each; rotary tables cover `max_positions`."""
        bind = Binder(self.checkpoint, ops, progress)
        model: Model = self.module.load(bind, self.config, max_positions)
        return model


def describe(checkpoint: Checkpoint) -> Description:
    """Read the metadata as its architecture understands it."""
    arch = checkpoint.meta.arch
    name = ARCHITECTURES.get(arch)
    if name is None:
        raise UnsupportedError(
            f"{checkpoint.path.name} is of architecture {arch!r}, which this version cannot run; "
            f"it runs {', '.join(ARCHITECTURES)}"
        )
    module = importlib.import_module(name)
    config: ModelConfig = module.describe(checkpoint)
    unread = sorted(checkpoint.meta.unread())
    if unread:
        # Refusing would turn away sound files with a converter's extra notes; silence would guess.
        log.warning(
            "%s: keys this version does not use: %s", checkpoint.path.name, ", ".join(unread)
        )
    return Description(checkpoint, config, module)
