"""Every option, once: default, help and command-line flag. Frozen; resolved once and printed at start."""

from dataclasses import dataclass, field
from typing import Any, Literal

KvFormat = Literal["f32", "f16", "bf16", "q8_0"]
OpsChoice = Literal["auto", "ref", "cpu"]


def option(default: Any, help: str, *, flag: str | None = None) -> Any:
    """A dataclass field that knows its help text and flag (default: the field's name with dashes)."""
    metadata = {"help": help} | ({"flag": flag} if flag else {})
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """Where and how the model runs."""

    target_device: str = option("auto", "device of the target model: auto or cpu")
    threads: int = option(0, "CPU threads; 0 means one per physical core this process may use")
    ops: OpsChoice = option("auto", "kernels: auto, cpu (compiled C++) or ref (pure PyTorch)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateConfig:
    """How much the engine may remember."""

    max_ctx: int = option(0, "context length; 0 means the model's own, as far as memory allows")
    cache_type_k: KvFormat = option("f16", "format of attention keys")
    cache_type_v: KvFormat = option("f16", "format of attention values")
    kv_pages: int = option(
        0, "KV pages of 32 positions; 0 means enough for every sequence at max_ctx"
    )
    max_concurrency: int = option(1, "sequences that may run at once")
    captures: int = option(1, "recurrent states kept per sequence to come back to")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """What one step may contain."""

    prefill_chunk: int = option(
        256, "prompt tokens of one sequence computed in a step; multiple of 32"
    )
    max_exact_rows: int = option(64, "rows recomputed per step after a preemption")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All of it."""

    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    state: StateConfig = field(default_factory=StateConfig)
    step: StepConfig = field(default_factory=StepConfig)
