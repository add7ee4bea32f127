"""Run GGUF language models fast and exactly. Names are loaded on first use: importing costs nothing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydflash.config import EngineConfig
    from pydflash.sampling.params import SamplingParams
    from pydflash.service.constraint import Constraint
    from pydflash.service.llm import LLM

__all__ = ["LLM", "Constraint", "EngineConfig", "SamplingParams", "__version__", "load"]

_LAZY = {
    "LLM": "pydflash.service.llm",
    "Constraint": "pydflash.service.constraint",
    "EngineConfig": "pydflash.config",
    "SamplingParams": "pydflash.sampling.params",
}


def load(model: str, *, config: "EngineConfig | None" = None) -> "LLM":
    """Open a model by catalogue name, path or `hf:owner/repo/file`."""
    from pydflash.config import EngineConfig
    from pydflash.service.llm import LLM

    return LLM(model, config=config or EngineConfig())


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("pydflash")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
