"""Whether a request thinks, and for how long: what the three APIs say, to one decision."""

from dataclasses import dataclass

from pydflash.text.cards import Effort, ModelCard

_EFFORTS: dict[str, Effort] = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "x-high": "x-high",
    "xhigh": "x-high",
    "max": "max",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingRequest:
    """What a client asked for. Nothing asked is no thinking.

    `effort`: `reasoning.effort` or `reasoning_effort`. `asked`: a `reasoning` object, or Anthropic's
    `thinking` of a type that enables it (False for `disabled`). `switch`: the template's own
    `enable_thinking`, which overrules all else.
    """

    effort: str | None = None
    asked: bool | None = None
    budget_tokens: int | None = None
    reply_budget: int | None = None
    switch: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """The decision. All in tokens: `ceiling` of the thought, `reserve` for the answer after it."""

    enabled: bool
    ceiling: int
    reserve: int
    max_output: int


def decide(request: ThinkingRequest, card: ModelCard, max_output: int) -> Thinking:
    """`max_output`: the most tokens that the request may generate, thought and answer together.

    The reserve never takes more than half of that, so that a short limit still leaves a thought.
    """
    if not is_enabled(request):
        return Thinking(enabled=False, ceiling=0, reserve=0, max_output=max_output)
    reserve = card.reply_budget
    if request.reply_budget is not None:
        reserve = min(max(request.reply_budget, 0), reserve)
    reserve = min(reserve, max_output // 2)
    ceiling = min(_ceiling(request, card), max_output - reserve)
    return Thinking(
        enabled=True,
        ceiling=ceiling,
        reserve=reserve,
        max_output=min(ceiling + reserve, max_output),
    )


def is_enabled(request: ThinkingRequest) -> bool:
    """Did the client opt in?"""
    if request.switch is not None:
        return request.switch
    if request.effort is not None:
        return request.effort != "none"
    return bool(request.asked)


def effort_of(request: ThinkingRequest) -> Effort:
    """The tier; an unknown word, and an opt-in without one, mean high."""
    return _EFFORTS.get((request.effort or "high").lower(), "high")


def _ceiling(request: ThinkingRequest, card: ModelCard) -> int:
    if request.budget_tokens is not None:
        return min(max(request.budget_tokens, 0), card.think_max)
    return card.tiers[effort_of(request)]
