"""check_fit: does a drafter belong to this target? What cannot work is an error, what may not is a warning.

Plain numbers only: the target's network is not asked. A drafter that passes and still does not fit shows in
its acceptance, never in the text.
"""

import hashlib
from dataclasses import dataclass

from pydflash.draft.config import DraftConfig
from pydflash.errors import CheckpointError

# Embeddings are padded to round sizes by some converters; another model's vocabulary differs by more.
_PADDING = 0.01

TARGET = "target"
TARGET_LAYERS = "target_layers"
TEMPLATE = "template"
THINKING = "thinking"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What a drafter's file can be held against. `vocab` counts rows of the embedding."""

    layers: int
    hidden: int
    vocab: int
    name: str | None = None
    template: str | None = None  # the chat template's text, as it is used
    thinking: bool | None = None  # None: the model has no such switch, or nobody set it


def check_fit(config: DraftConfig, target: TargetFacts) -> tuple[str, ...]:
    """Sentences of warning for a drafter that may fit `target`; CheckpointError for one that cannot.

    The card's `target`, `target_layers`, `template` (see `template_mark`) and `thinking` ("on", "off" or
    "both") are compared when they are there.
    """
    c, called = config, target.name or "the target"
    if c.target_hidden != target.hidden:
        raise _wrong(f"features of {c.target_hidden} numbers, {called} has {target.hidden}")
    if c.hidden != target.hidden:
        # Embeddings and head are the target's.
        raise _wrong(f"embeddings of {c.hidden} numbers, {called} has {target.hidden}")
    if c.target_layers[-1] >= target.layers:
        raise _wrong(
            f"the output of layer {c.target_layers[-1]} (counted from 0), {called} has {target.layers} layers"
        )
    if c.mask_token >= target.vocab:
        raise _wrong(f"the mask token {c.mask_token}, {called} has {target.vocab} tokens")
    padded = target.vocab <= c.vocab <= target.vocab * (1 + _PADDING)
    if not padded:
        raise _wrong(f"a vocabulary of {c.vocab} tokens, {called} has {target.vocab}")
    return (*_padding(c, target), *_card(c, target))


def is_made_for(config: DraftConfig, target: TargetFacts) -> bool:
    """Whether the card names this target, by a name that both state; CheckpointError if it cannot fit."""
    check_fit(config, target)
    name = config.card.get(TARGET)
    return None not in (name, target.name) and _plain(str(name)) == _plain(str(target.name))


def template_mark(template: str) -> str:
    """What a card records of a chat template: 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(template.encode()).hexdigest()[:16]


def _padding(c: DraftConfig, target: TargetFacts) -> tuple[str, ...]:
    if c.vocab == target.vocab:
        return ()
    return (
        f"the drafter was made for {c.vocab} tokens, the target has {target.vocab}: "
        "fine if the rest is padding",
    )


def _card(c: DraftConfig, target: TargetFacts) -> tuple[str, ...]:
    stated = c.card.get(TARGET_LAYERS)
    if stated is not None and stated.isdecimal() and int(stated) != target.layers:
        raise _wrong(
            f"a target of {stated} layers, {target.name or 'this one'} has {target.layers}"
        )
    found = []
    name = c.card.get(TARGET)
    if name is not None and target.name is not None and _plain(name) != _plain(target.name):
        found.append(
            f"the drafter was made for {name}, the target calls itself {target.name}: "
            "expect fewer accepted tokens unless they are the same model"
        )
    mark = c.card.get(TEMPLATE)
    if mark is not None and target.template is not None and mark != template_mark(target.template):
        found.append(
            "the drafter was trained with another chat template than the one in use: "
            "expect fewer accepted tokens"
        )
    mode, thinks = c.card.get(THINKING), target.thinking
    if thinks is not None and mode in ("on", "off") and (mode == "on") is not thinks:
        found.append(
            f"the drafter was trained with thinking {mode}, it is {'on' if thinks else 'off'} now: "
            "expect fewer accepted tokens"
        )
    return tuple(found)


def _plain(name: str) -> str:
    """A model's name without its owner and its spelling: SmolLM2 135M and HF/smollm2-135m are one."""
    return "".join(c for c in name.rsplit("/", 1)[-1].lower() if c.isalnum())


def _wrong(what: str) -> CheckpointError:
    return CheckpointError(f"this drafter expects {what}; use the drafter made for this model")
