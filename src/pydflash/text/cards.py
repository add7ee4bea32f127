"""Model cards: what a model's makers recommend, as JSON files by the model's name.

A card gives sampling, output length and reasoning budgets. Cards are data of this package; a folder
of the user's own comes first. A model without a card gets its family's length and nothing else.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydflash.errors import ConfigError
from pydflash.text.json_text import parse_object

Effort = Literal["low", "medium", "high", "x-high", "max"]
EFFORTS: tuple[Effort, ...] = ("low", "medium", "high", "x-high", "max")
REPLY_BUDGET = 4096  # tokens kept for the answer when reasoning is cut off

_SHIPPED = "model_cards"
_FAMILIES = (("qwen35", 32768), ("qwen3", 32768), ("gemma4", 16384), ("laguna", 32768))
_FALLBACK_TOKENS = 16000
_QUANT = re.compile(r"[-.](?:i?q\d[a-z0-9-]*|b?f16|f32|mxfp4|ud-.*)$")
_SAMPLING = frozenset(
    ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Lengths in tokens. `tiers` are the reasoning budgets of each effort, never falling."""

    name: str
    max_tokens: int
    reply_budget: int = REPLY_BUDGET
    think_max: int
    tiers: Mapping[Effort, int]
    terminator_hint: str = ""
    sampling: Mapping[str, float] = field(default_factory=dict)
    source: Mapping[str, Any] | None = None  # the file's own JSON, None for a family's fallback


def card_stem(name: str) -> str:
    """A model's name as card files are called: lower case, `-` between words."""
    words = re.sub(r"[ \t_]", "-", name).lower()
    return re.sub(r"[^a-z0-9.-]", "", words)


def find_card(names: Sequence[str], arch: str, *, folders: Sequence[Path] = ()) -> ModelCard:
    """The card of the first name that has one, else the family's fallback.

    `names`: the file's `general.name`, its file name without the suffix, … . Raises ConfigError for a
    card that is not as it should be.
    """
    for stem in _stems(names):
        for folder in folders:
            path = folder / f"{stem}.json"
            if path.is_file():
                return parse_card(path.read_text("utf-8"), str(path))
        shipped = resources.files("pydflash.text").joinpath(_SHIPPED, f"{stem}.json")
        if shipped.is_file():
            return parse_card(shipped.read_text("utf-8"), shipped.name)
    tokens = next((n for family, n in _FAMILIES if arch.startswith(family)), _FALLBACK_TOKENS)
    return _card({"name": arch, "max_tokens": tokens}, None)


def parse_card(text: str, where: str) -> ModelCard:
    """A card from its JSON. Raises ConfigError naming the key that is wrong."""
    found = parse_object(text)
    if found is None:
        raise ConfigError(f"the model card {where} is not a JSON object")
    try:
        return _card(found, found)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the model card {where} is wrong: {error}; see docs/text.md") from error


def _stems(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        stem = card_stem(name)
        if stem:
            yield stem
            bare = _QUANT.sub("", stem)
            if bare != stem:
                yield bare


def _card(found: Mapping[str, Any], source: Mapping[str, Any] | None) -> ModelCard:
    max_tokens = _count(found, "max_tokens", None)
    budget = _count(found, "hard_limit_reply_budget", REPLY_BUDGET)
    think_max = max(0, max_tokens - budget)
    complex_tokens = _count(found, "complex_problem_max_tokens", 0)
    sampling = found.get("sampling", {})
    unknown = set(sampling) - _SAMPLING
    if unknown:
        raise ValueError(f"sampling has no {sorted(unknown)[0]!r}")
    return ModelCard(
        name=str(found.get("name", "")),
        max_tokens=max_tokens,
        reply_budget=budget,
        think_max=think_max,
        tiers=_tiers(found, think_max, complex_tokens - budget if complex_tokens else None),
        terminator_hint=str(found.get("thinking_terminator_hint", "")),
        sampling={key: _number(sampling, key) for key in sampling},
        source=source,
    )


def _tiers(found: Mapping[str, Any], think_max: int, hard: int | None) -> dict[Effort, int]:
    """Parts of the longest thought, unless the card says otherwise; each at least the one before."""
    most = think_max if hard is None else max(hard, think_max)
    derived = (think_max / 8, think_max / 2, think_max, (think_max + most) / 2, most)
    given = found.get("reasoning_effort_tiers", {})
    tiers: dict[Effort, int] = {}
    least = 0
    for effort, default in zip(EFFORTS, derived, strict=True):
        least = max(least, _count(given, effort, round(default)))
        tiers[effort] = least
    return tiers


def _count(found: Mapping[str, Any], key: str, default: int | None) -> int:
    value = found.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{key} must be a whole number, not {json.dumps(value)}")
    return value


def _number(found: Mapping[str, Any], key: str) -> float:
    value = found[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} must be a number, not {json.dumps(value)}")
    return value
