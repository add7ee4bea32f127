"""harvest: prompts answered by the target, and prompts it thinks of itself (as Magpie does: given the opening
of a user turn, an instruction-tuned model writes one).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pydflash.train.documents import Document, without_loops
from pydflash.train.language import Language
from pydflash.train.prompts import Prompt
from pydflash.train.target import Order, Target

Tell = Callable[[str, int], None]  # what is going on, tokens made since

# A system prompt steers what the user asks; the question is then answered without it. None: the default.
_STEERS: tuple[tuple[str, str | None], ...] = (
    ("chat", None),
    ("chat", None),
    ("code", "You are an expert Python programmer. The user asks you to write Python functions."),
    ("math", "You are a math tutor. The user gives you a math word problem with numbers to solve."),
    ("text", "You are an editor. The user gives you a text to rewrite, summarize or take apart."),
    ("chat", "You answer questions about science, history, society and everyday life."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """How much to generate and how."""

    own: int = 1000  # prompts the target thinks of itself
    follow_ups: float = 0.15  # share of finished conversations that get a second turn
    sampled: float = 1 / 3  # share of answers drawn at `temperature`, the others are greedy
    temperature: float = 0.7
    max_prompt: int = 320
    max_new: int = 384
    seed: int = 0


def harvest(
    target: Target,
    language: Language,
    stop: frozenset[int],
    prompts: Sequence[Prompt],
    options: Harvest,
    tell: Tell,
) -> list[Document]:
    """Answer `prompts` and `options.own` more of the target's own making; loops are thinned out."""
    rng = random.Random(options.seed)
    own = _own(target, language, stop, options, rng, tell)
    asked = [*prompts, *own]
    rng.shuffle(asked)
    documents, conversations = _answer(
        target, language, stop, asked, options, rng, lambda n: tell("answers", n)
    )
    chosen = [c for c in conversations if rng.random() < options.follow_ups]
    second = _follow_up(target, language, stop, chosen, options, rng, tell)
    more, _ = _answer(
        target, language, stop, second, options, rng, lambda n: tell("second answers", n)
    )
    return without_loops([*documents, *more])


def _own(
    target: Target,
    language: Language,
    stop: frozenset[int],
    options: Harvest,
    rng: random.Random,
    tell: Tell,
) -> list[Prompt]:
    """First user turns, by turns of `_STEERS`; without doubles."""
    if not options.own:
        return []
    openings = [
        language.user_turn([{"role": "system", "content": steer}] if steer else [])
        for _, steer in _STEERS
    ]
    order = Order(
        prompts=[openings[i % len(openings)] for i in range(options.own)],
        temperatures=[1.0] * options.own,
        max_new=min(200, options.max_prompt),
        stop=stop,
        seed=options.seed + 1,
    )
    turns = target.generate(order, lambda n: tell("questions", n))
    found: dict[str, Prompt] = {}
    for i, turn in enumerate(turns):
        text = _said(turn, stop, language)
        if text:
            domain = _STEERS[i % len(_STEERS)][0]
            found[text] = Prompt(domain=domain, messages=({"role": "user", "content": text},))
    return list(found.values())


def _answer(
    target: Target,
    language: Language,
    stop: frozenset[int],
    prompts: Sequence[Prompt],
    options: Harvest,
    rng: random.Random,
    progress: Callable[[int], None],
) -> tuple[list[Document], list[Prompt]]:
    """The documents, and the conversations that came to an end of their own with the answer added."""
    encoded = [(p, language.encode(p)) for p in prompts]
    encoded = [(p, tokens) for p, tokens in encoded if 0 < len(tokens) <= options.max_prompt]
    heat = [options.temperature if rng.random() < options.sampled else 0.0 for _ in encoded]
    order = Order(
        prompts=[tokens for _, tokens in encoded],
        temperatures=heat,
        max_new=options.max_new,
        stop=stop,
        seed=options.seed + 2 + rng.randrange(1 << 20),
    )
    documents, ended = [], []
    answers = target.generate(order, progress)
    for (prompt, tokens), answer, temperature in zip(encoded, answers, heat, strict=True):
        if len(answer) < 2:
            continue
        documents.append(
            Document(
                tokens=np.array([*tokens, *answer], np.int32),
                start=len(tokens),
                domain=prompt.domain,
                greedy=temperature == 0,
            )
        )
        text = _said(answer, stop, language)
        if prompt.messages and text and len(tokens) + len(answer) < options.max_prompt:
            reply = {"role": "assistant", "content": text}
            ended.append(Prompt(domain=prompt.domain, messages=(*prompt.messages, reply)))
    return documents, ended


def _follow_up(
    target: Target,
    language: Language,
    stop: frozenset[int],
    conversations: Sequence[Prompt],
    options: Harvest,
    rng: random.Random,
    tell: Tell,
) -> list[Prompt]:
    """Each conversation with one more user turn, written by the target."""
    if not conversations:
        return []
    order = Order(
        prompts=[language.user_turn(c.messages) for c in conversations],
        temperatures=[1.0] * len(conversations),
        max_new=80,
        stop=stop,
        seed=options.seed + 3 + rng.randrange(1 << 20),
    )
    turns = target.generate(order, lambda n: tell("second questions", n))
    prompts = []
    for conversation, turn in zip(conversations, turns, strict=True):
        text = _said(turn, stop, language)
        if text:
            message = {"role": "user", "content": text}
            prompts.append(
                Prompt(domain=conversation.domain, messages=(*conversation.messages, message))
            )
    return prompts


def _said(tokens: Sequence[int], stop: frozenset[int], language: Language) -> str:
    """The text of a turn that came to its end; nothing for one that was cut off."""
    if not tokens or tokens[-1] not in stop:
        return ""
    return language.decode(tokens[:-1]).strip()
