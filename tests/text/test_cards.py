"""Model cards, the decision whether and how long to think, and the budget's state machine."""

import json
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydflash.errors import ConfigError
from pydflash.text.budget import Markers, RunGuard, ThinkingBudget
from pydflash.text.cards import card_stem, find_card, parse_card
from pydflash.text.thinking import Thinking, ThinkingRequest, decide

QWEN = find_card(["Qwen3.6-27B"], "qwen35")


def test_stem() -> None:
    assert card_stem("Qwen3.6 27B_it\t(new)!") == "qwen3.6-27b-it-new"


@pytest.mark.parametrize(
    ("names", "arch", "name", "max_tokens"),
    [
        (["Qwen3.6 27B"], "qwen35", "Qwen3.6-27B", 32768),
        (["x", "Qwen3.6-27B-Q4_K_M"], "qwen35", "Qwen3.6-27B", 32768),
        (["Smollm2 135M 8k", "SmolLM2-135M-Instruct.Q4_1"], "llama", "SmolLM2-135M-Instruct", 8192),
        (["gemma-4-31b-it"], "gemma4", "gemma-4-31B-it", 16384),
        (["unknown", ""], "qwen35moe", "qwen35moe", 32768),
        ([], "gemma4", "gemma4", 16384),
        ([], "laguna", "laguna", 32768),
        ([], "llama", "llama", 16000),
    ],
)
def test_find(names: list[str], arch: str, name: str, max_tokens: int) -> None:
    card = find_card(names, arch)
    assert (card.name, card.max_tokens) == (name, max_tokens)


def test_every_shipped_card_is_sound_and_found_by_its_name() -> None:
    folder = resources.files("pydflash.text").joinpath("model_cards")
    files = [file for file in folder.iterdir() if file.name.endswith(".json")]
    assert len(files) >= 4
    for file in files:
        card = parse_card(file.read_text("utf-8"), file.name)
        assert f"{card_stem(card.name)}.json" == file.name
        assert card.source == json.loads(file.read_text("utf-8"))


def test_a_folder_comes_first(tmp_path: Path) -> None:
    (tmp_path / "qwen3.6-27b.json").write_text('{"name": "mine", "max_tokens": 5000}')
    card = find_card(["Qwen3.6-27B"], "qwen35", folders=[tmp_path])
    assert (card.name, card.think_max) == ("mine", 904)


def test_tiers() -> None:
    assert QWEN.think_max == 32256
    assert list(QWEN.tiers.values()) == [4032, 16128, 32256, 56832, 81408]
    derived = parse_card('{"name": "x", "max_tokens": 12288}', "x")
    assert list(derived.tiers.values()) == [1024, 4096, 8192, 8192, 8192]
    longer = parse_card(
        '{"name": "x", "max_tokens": 12288, "complex_problem_max_tokens": 20480}', "x"
    )
    assert list(longer.tiers.values()) == [1024, 4096, 8192, 12288, 16384]
    rising = parse_card(
        '{"max_tokens": 12288, "reasoning_effort_tiers": {"low": 9000, "max": 1}}', "x"
    )
    assert list(rising.tiers.values()) == [9000] * 5
    assert list(parse_card('{"max_tokens": 100}', "x").tiers.values()) == [0] * 5


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"name": "x"}',
        '{"max_tokens": "12"}',
        '{"max_tokens": 12, "sampling": {"top_q": 1}}',
        '{"max_tokens": 12, "sampling": {"top_p": "1"}}',
        '{"max_tokens": 12, "sampling": 3}',
        '{"max_tokens": 12, "reasoning_effort_tiers": {"low": -1}}',
    ],
)
def test_a_bad_card_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the model card here"):
        parse_card(text, "here")


ASK = ThinkingRequest


@pytest.mark.parametrize(
    ("request_", "enabled", "ceiling"),
    [
        (ASK(), False, 0),
        (ASK(effort="none"), False, 0),
        (ASK(asked=False), False, 0),
        (ASK(effort="minimal"), True, 4032),
        (ASK(effort="low"), True, 4032),
        (ASK(effort="medium"), True, 16128),
        (ASK(effort="XHigh"), True, 56832),
        (ASK(effort="x-high"), True, 56832),
        (ASK(effort="max"), True, 81408),
        (ASK(effort="lots"), True, 32256),
        (ASK(asked=True), True, 32256),
        (ASK(asked=True, budget_tokens=1024), True, 1024),
        (ASK(asked=True, budget_tokens=99999), True, 32256),
        (ASK(asked=True, effort="none"), False, 0),
        (ASK(switch=True), True, 32256),
        (ASK(switch=False, effort="high"), False, 0),
        (ASK(switch=True, effort="none"), True, 32256),
    ],
)
def test_opting_in(request_: ThinkingRequest, enabled: bool, ceiling: int) -> None:
    found = decide(request_, QWEN, 100_000)
    assert (found.enabled, found.ceiling) == (enabled, ceiling)
    assert found.max_output == (ceiling + 512 if enabled else 100_000)


def test_a_short_limit_is_shared() -> None:
    assert decide(ASK(effort="max"), QWEN, 300) == Thinking(
        enabled=True, ceiling=150, reserve=150, max_output=300
    )
    assert decide(ASK(effort="low", reply_budget=99), QWEN, 5000).reserve == 99
    assert decide(ASK(effort="low", reply_budget=9999), QWEN, 5000).reserve == 512


OPEN, CLOSE, HINT = 1, 2, 3
MARKERS = Markers(opener=(OPEN,), closer=(CLOSE,), force=(HINT, CLOSE, 4))


def budget(**changes: int) -> ThinkingBudget:
    options = {"ceiling": 5, "reserve": 4, "max_output": 20} | changes
    return ThinkingBudget(MARKERS, starts_open=bool(options.pop("open", 1)), **options)


def run(machine: ThinkingBudget, sampled: list[int]) -> list[int]:
    return [machine.step(token) for token in sampled]


def test_a_natural_close_is_left_alone() -> None:
    machine = budget()
    assert run(machine, [7, 8, CLOSE, 9, 9, 9, 9]) == [7, 8, CLOSE, 9, 9, 9, 9]
    assert (machine.close_kind, machine.thinking_tokens, machine.content_tokens) == (
        "natural",
        3,
        4,
    )


def test_the_ceiling_closes_by_force() -> None:
    machine = budget()
    assert run(machine, [7] * 10) == [7] * 5 + [HINT, CLOSE, 4, 7, 7]
    assert (machine.close_kind, machine.thinking_tokens, machine.content_tokens) == ("hard", 8, 2)


def test_the_reserve_closes_by_force() -> None:
    machine = budget(ceiling=99, max_output=10)
    assert run(machine, [7] * 10) == [7] * 6 + [HINT, CLOSE, 4, 7]
    assert machine.close_kind == "hard"


def test_closing_by_itself_in_that_very_step_is_natural() -> None:
    machine = budget()
    assert run(machine, [7] * 5 + [HINT, 7, 7, 7]) == [7] * 5 + [HINT, CLOSE, 4, 7]
    assert machine.close_kind == "natural"


def test_a_thought_may_open_later_and_only_once() -> None:
    machine = budget(open=0, ceiling=2)
    assert run(machine, [9, OPEN, 7, 7, 7, 7, 7, OPEN, 7, 7, 7]) == [
        *(9, OPEN, 7, 7),
        *(HINT, CLOSE, 4),
        *(OPEN, 7, 7, 7),
    ]
    assert [machine.thought_within(n) for n in (0, 1, 2, 3, 7, 99)] == [0, 0, 0, 1, 5, 5]
    never = budget(open=0)
    assert run(never, [9] * 30) == [9] * 30
    assert never.close_kind is None


def test_an_answer_that_loops_after_a_forced_close_is_degenerate() -> None:
    machine = budget()
    run(machine, [7] * 8)
    run(machine, list(range(100, 112)) + list(range(100, 111)))
    assert not machine.degenerate
    machine.step(111)
    assert machine.degenerate
    natural = budget()
    run(natural, [CLOSE] + list(range(100, 112)) * 4)
    assert not natural.degenerate


def test_a_run_of_one_token_is_degenerate_only_if_asked() -> None:
    def ran(machine: ThinkingBudget | RunGuard, tokens: list[int]) -> bool:
        assert [machine.step(token) for token in tokens] == tokens
        return machine.degenerate

    options = {"starts_open": True, "ceiling": 5, "reserve": 4, "max_output": 20}
    for machine in (ThinkingBudget(MARKERS, **options, runs=RunGuard(4)), RunGuard(4)):
        assert not ran(machine, [CLOSE, 9, 9, 9, 8, 9, 9, 9])
        assert ran(machine, [9])
        assert ran(machine, [8]), "it stays so"
    assert not ran(ThinkingBudget(MARKERS, **options), [CLOSE, *[9] * 50])


@given(
    st.lists(st.integers(0, 6), max_size=40),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(0, 30),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_free_tokens_are_never_replaced(
    sampled: list[int], ceiling: int, reserve: int, max_output: int, starts_open: bool
) -> None:
    machine = ThinkingBudget(
        MARKERS, starts_open=starts_open, ceiling=ceiling, reserve=reserve, max_output=max_output
    )
    free = machine.free
    for token in sampled:
        committed = machine.step(token)
        if free > 0:
            assert committed == token
        free = max(free - 1, machine.free)
    assert machine.thinking_tokens + machine.content_tokens == len(sampled)
