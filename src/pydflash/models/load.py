"""Load a model in two steps: what the file describes, then its tensors bound strictly to a device."""

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from pydflash.checkpoint.files import Checkpoint
from pydflash.errors import UnsupportedError
from pydflash.kernels.ops import OpTable
from pydflash.layers.rope import RopeSpec
from pydflash.models import ARCHITECTURES
from pydflash.models.base import Footprint, Model
from pydflash.models.bind import Binder, layer_of
from pydflash.state.base import StateSpec

log = logging.getLogger(__name__)


class ModelConfig(Protocol):
    """What every architecture's config says before anything is allocated."""

    @property
    def max_positions(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def rope(self) -> RopeSpec: ...
    @property
    def width(self) -> int:
        """Floats that a token takes while a layer runs, about."""

    def state_specs(self) -> list[StateSpec]: ...


@dataclass(frozen=True, slots=True)
class Description:
    """A file's architecture, understood but not loaded."""

    checkpoint: Checkpoint
    config: ModelConfig
    module: Any

    @property
    def table_nbytes(self) -> int:
        """Bytes in the file of an embedding that only embeds; 0 where it is the head as well."""
        tensors = self.checkpoint.tensors
        return tensors["token_embd.weight"].nbytes if "output.weight" in tensors else 0

    def footprint(self, ops: OpTable) -> Footprint:
        """What loading it with these kernels will take."""
        return _footprint(self.checkpoint, self.config, ops)

    def load(
        self, ops: OpTable, max_positions: int, progress: Callable[[int], None] | None = None
    ) -> Model:
        """Bind the tensors. `progress` is told the bytes of each; rotary tables cover `max_positions`."""
        bind = Binder(self.checkpoint, ops, progress)
        model: Model = self.module.load(bind, self.config, max_positions)
        return model


def _footprint(checkpoint: Checkpoint, config: ModelConfig, ops: OpTable) -> Footprint:
    weights = decoded = on_host = 0
    tied = "output.weight" not in checkpoint.tensors
    for info in checkpoint.tensors.values():
        if layer_of(info.name) >= config.layers or info.name.startswith("mtp."):
            continue  # left out by the model
        elements = prod(info.shape)
        if len(info.shape) < 2 or info.name.endswith("conv1d.weight"):
            weights += 4 * elements
            continue
        *stacked, rows, cols = info.shape
        held = prod(stacked) * ops.held_bytes(info.format, rows, cols)
        is_table = info.name == "token_embd.weight" and not tied
        if is_table and ops.host_table is not None:
            on_host += held
            continue
        weights += held
        if not is_table:
            decoded += 4 * elements
    return Footprint(
        weights=weights,
        decoded=min(decoded, ops.keeps),
        position=4 * config.rope.dims,
        token=4 * config.width,
        logits=4 * config.vocab,
        query=4 * config.heads * config.head_dim,
        on_host=on_host,
    )


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
