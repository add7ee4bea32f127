"""Constrained rows: a mask for each node, so that drafts change speed, never text. Masks are fakes here."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pydflash.engine.engine import Engine
from pydflash.engine.request import Request
from pydflash.errors import EngineError, RequestError
from pydflash.sampling.mask import bits
from pydflash.sampling.params import SamplingParams
from pydflash.spec.proposal import Proposal
from pydflash.spec.proposer import Outcome
from tests.spec.test_engine_draft import TREES, Scripted, speculating
from tests.spec.test_engine_exact import (
    EOG,
    Guesses,
    _count_preemptions,
    make_engine,
    requests,
    run,
)

VOCAB = 320


class Automaton:
    """After any three tokens, forty may follow; the end among them from `least` on, alone at `most`."""

    def __init__(self, least: int = 0, most: int = 1000, breaks_at: int = 1000) -> None:
        self.least, self.most, self.breaks_at = least, most, breaks_at

    def start(self) -> "Place":
        return Place(self)

    def after(self, said: Sequence[int]) -> set[int]:
        ends = set(EOG) if len(said) >= self.least else set()
        if len(said) >= self.most:
            return set(EOG)
        return _forty(self.least, tuple(said[-3:])) | ends


@cache
def _forty(seed: int, last: tuple[int, ...]) -> set[int]:
    return set(random.Random(repr((seed, last))).sample(range(3, VOCAB), 40))


class Place:
    def __init__(self, rule: Automaton) -> None:
        self.rule = rule
        self.said: list[int] = []
        self.asked = 0

    def allowed(self, drawn: Sequence[int]) -> bytes:
        self.asked += 1
        said = [*self.said, *drawn]
        for i in range(len(self.said), len(said)):
            assert said[i] in self.rule.after(said[:i]), (
                "a token was drawn that the grammar forbids"
            )
        if len(said) >= self.rule.breaks_at:
            raise EngineError("the grammar cannot go on: it is a bad one")
        flags = np.zeros(VOCAB, np.bool_)
        flags[list(self.rule.after(said))] = True
        return np.packbits(flags, bitorder="little").tobytes()

    def takes(self, drawn: Sequence[int]) -> int:
        for i, token in enumerate(drawn):
            if token not in self.rule.after([*self.said, *drawn[:i]]):
                return i
        return len(drawn)

    def is_done(self, drawn: Sequence[int]) -> bool:
        return len(self.said) + len(drawn) >= self.rule.most

    def commit(self, drawn: Sequence[int]) -> None:
        self.said += drawn


def some() -> list[Request]:
    """Free and constrained in turn: greedy, sampled and filtered, with penalties and a bias."""
    out = []
    for i, request in enumerate(requests()[:6]):
        rule = Automaton(least=8 + i, most=20 + 3 * i) if i % 4 else None
        params = replace(request.params, min_tokens=0)
        out.append(replace(request, params=params, grammar=rule))
    return out


@pytest.fixture(scope="module")
def plain(tiny_llama: Path) -> list[list[int]]:
    return [run(make_engine(tiny_llama), [r])[0] for r in some()]


def test_the_plain_answers_keep_to_the_grammar(plain: list[list[int]]) -> None:
    for request, said in zip(some(), plain, strict=True):
        if request.grammar is None:
            continue
        assert len(said) > 5
        place = request.grammar.start()
        for i, token in enumerate(said):
            assert bits(place.allowed(said[:i]), VOCAB)[token]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        ("random", "bushy"),
        ("right", "chain"),
        ("right", "adaptive"),
        ("until 2", "tall"),
        ("wrong first", "bushy"),
    ],
)
def test_drafts_do_not_change_constrained_text(
    tiny_llama: Path, plain: list[list[int]], kind: str, tree: str
) -> None:
    asked = some()
    known = [[*r.prompt, *said] for r, said in zip(asked, plain, strict=True)]
    proposer = speculating(Scripted(known, kind), TREES[tree])
    engine = make_engine(tiny_llama, pages=8, speculate=proposer)
    preempted = _count_preemptions(engine)
    dice = random.Random(len(tree))
    assert run(engine, asked, [dice.randrange(20) for _ in asked]) == plain
    if tree == "bushy":
        assert preempted, "the pool was meant to be too small"


def test_random_trees_do_not_either(tiny_qwen3: Path) -> None:
    asked = some()[:3]
    plain = [run(make_engine(tiny_qwen3), [r])[0] for r in asked]
    known = {r.id: [*r.prompt, *said] for r, said in zip(asked, plain, strict=True)}
    guesses = Guesses(known, 0)
    engine = make_engine(tiny_qwen3, pages=16, proposer=guesses)
    dice = random.Random(0)
    assert run(engine, asked, [dice.randrange(20) for _ in asked]) == plain
    assert guesses.settled == sum(len(said) - 1 for said in plain)


def test_forbidden_nodes_are_not_verified(tiny_llama: Path, plain: list[list[int]]) -> None:
    asked = some()
    seen: list[Outcome] = []

    class Watched(Guesses):
        def settle(self, contexts, outcomes, spent):  # type: ignore[no-untyped-def]
            seen.extend(outcomes)

    known = {r.id: [*r.prompt, *said] for r, said in zip(asked, plain, strict=True)}
    engine = make_engine(tiny_llama, proposer=Watched(known, 0))
    at = 1
    assert asked[at].grammar is not None
    assert run(engine, [asked[at]])[0] == plain[at]
    rule, start = asked[at].grammar, len(asked[at].prompt)
    nodes = 0
    for outcome in seen:
        before = plain[at][: outcome.position - start + 1]
        for leaf in range(1, len(outcome.proposal.tokens)):
            path = [outcome.proposal.tokens[n] for n in outcome.proposal.path(leaf)[1:]]
            place = rule.start()
            place.commit(before)
            assert place.takes(path) == len(path)
            nodes += 1
    assert nodes > 5, "right guesses were meant to stay"


def test_a_whole_text_ends_the_answer(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    params = SamplingParams(max_tokens=50, temperature=1.0, ignore_eos=True)
    ended = Request(prompt=(5, 6), params=params, seed=1, grammar=Automaton(least=60, most=9))
    limited = replace(ended, params=replace(params, max_tokens=9), id=ended.id + 10**6)
    cut = replace(ended, params=replace(params, max_tokens=8), id=ended.id + 2 * 10**6)
    sequences = [engine.add(r) for r in (ended, limited, cut)]
    while not engine.is_idle:
        engine.step()
    assert [s.finish for s in sequences] == ["stop", "stop", "length"]
    assert [len(s.generated) for s in sequences] == [9, 9, 8]
    assert [s.stop_token for s in sequences] == [None] * 3


def test_the_end_comes_only_where_it_may(tiny_llama: Path) -> None:
    """Biased so that it would end at once, an answer ends at the first place where it may."""
    params = SamplingParams(max_tokens=50, logit_bias={2: 100.0})
    request = Request(prompt=(5, 6), params=params, seed=1, grammar=Automaton(least=12))
    engine = make_engine(tiny_llama)
    sequence = engine.add(request)
    while not engine.is_idle:
        engine.step()
    assert sequence.finish == "stop"
    assert sequence.stop_token == 2
    assert len(sequence.generated) == 13


@pytest.mark.parametrize("drafts", [False, True])
def test_a_grammar_that_fails_ends_its_own_answer(tiny_llama: Path, drafts: bool) -> None:
    good, bad = requests()[0], requests()[1]
    bad = replace(bad, grammar=Automaton(breaks_at=7))
    said = run(make_engine(tiny_llama), [good])[0]
    known = [[*good.prompt, *said]]
    speculate = speculating(Scripted(known, "right"), TREES["bushy"]) if drafts else None
    engine: Engine = make_engine(tiny_llama, speculate=speculate)
    sequences = [engine.add(r) for r in (good, bad)]
    errors = []
    while not engine.is_idle:
        errors += [r.error for r in engine.step() if r.error is not None]
        engine.states.check()
    assert [str(e) for e in errors] == ["the grammar cannot go on: it is a bad one"]
    assert sequences[0].generated == said
    assert sequences[1].finish == "error"
    assert len(sequences[1].generated) == 7


def test_a_least_length_is_refused_beside_a_grammar(tiny_llama: Path) -> None:
    params = SamplingParams(min_tokens=3)
    request = Request(prompt=(5,), params=params, seed=1, grammar=Automaton())
    with pytest.raises(RequestError, match="min_tokens") as caught:
        make_engine(tiny_llama).add(request)
    assert caught.value.param == "min_tokens"


def test_free_rows_ask_no_mask(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    free, bound = (engine.add(r) for r in some()[:2])
    assert free.mask is None
    assert isinstance(bound.mask, Place)
    while not engine.is_idle:
        engine.step()
    assert bound.mask.asked == len(bound.generated), "one mask for each draw"
    assert bound.mask.said == bound.generated


def test_a_tree_of_some_nodes() -> None:
    tree = Proposal((9, 1, 2, 3, 4, 5), (-1, 0, 0, 1, 2, 4), (0, 1, 1, 2, 2, 3))
    assert tree.only(set(range(6))) is tree
    assert tree.only({0, 2, 4}) == Proposal.chain([9, 2, 4])
    assert tree.only({0, 1, 2, 4}) == Proposal((9, 1, 2, 4), (-1, 0, 0, 2), (0, 1, 1, 2))
