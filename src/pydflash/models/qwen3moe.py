"""`qwen3moe`: qwen3 with a mixture of experts in place of the feed-forward layer."""

from pydflash.checkpoint.files import Checkpoint
from pydflash.models.llama import Config, load

__all__ = ["describe", "load"]


def describe(checkpoint: Checkpoint) -> Config:
    """What a `qwen3moe` file says of itself."""
    return Config.read(checkpoint, interleaved=False, qk_norm=True, experts=True)
