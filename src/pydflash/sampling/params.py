"""SamplingParams: how one request wants its tokens drawn. Frozen, validated on creation, no tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pydflash.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Filters apply in this order: penalties, bias, mask, temperature, top-k, top-p, min-p (design H8b)."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # divides positive logits, multiplies negative ones
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    rep_window: int = 64  # the last generated tokens that penalties look at; -1: all
    penalize_prompt: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int | None = None  # None: the engine draws one and reports it
    choice: int = 0  # index among `n` choices of one request; part of the noise key
    max_tokens: int | None = None  # None: up to the context
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: off; k: the chosen token's and the k best
    filtered_logprobs: bool = False  # of the filtered distribution instead of the model's own

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1

    def __post_init__(self) -> None:
        _require(0.0 <= self.temperature <= 100.0, "temperature", "between 0 and 100")
        _require(self.top_k >= 0, "top_k", "0 (off) or more")
        _require(0.0 < self.top_p <= 1.0, "top_p", "in (0, 1]")
        _require(0.0 <= self.min_p <= 1.0, "min_p", "in [0, 1]")
        _require(self.repetition_penalty > 0.0, "repetition_penalty", "above 0")
        _require(abs(self.frequency_penalty) <= 100.0, "frequency_penalty", "within -100..100")
        _require(abs(self.presence_penalty) <= 100.0, "presence_penalty", "within -100..100")
        _require(self.rep_window >= -1, "rep_window", "-1 (all) or more")
        _require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "1 or more")
        _require(self.min_tokens >= 0, "min_tokens", "0 or more")
        _require(self.seed is None or 0 <= self.seed < 2**64, "seed", "an integer in [0, 2**64)")
        _require(self.logprobs is None or 0 <= self.logprobs <= 100, "logprobs", "0 to 100")
        _require(all(self.stop), "stop", "made of non-empty strings")


def _require(holds: bool, name: str, what: str) -> None:
    # NaN fails every comparison, so it lands here too.
    if not holds:
        raise RequestError(f"{name} must be {what}", param=name)
