"""`qwen3` (dense): llama with a norm on each query and key head and half-split rotation."""

from pydflash.checkpoint.files import Checkpoint
from pydflash.models.llama import Config, load

__all__ = ["describe", "load"]


def describe(checkpoint: Checkpoint) -> Config:
    """What a `qwen3` file says of itself."""
    return Config.read(checkpoint, interleaved=False, qk_norm=True)
