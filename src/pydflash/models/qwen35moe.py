"""`qwen35moe`: qwen35 with a mixture of experts in place of the feed-forward layer."""

from pydflash.checkpoint.files import Checkpoint
from pydflash.models.qwen35 import Config, load

__all__ = ["describe", "load"]


def describe(checkpoint: Checkpoint) -> Config:
    """What a `qwen35moe` file says of itself."""
    return Config.read(checkpoint, experts=True)
