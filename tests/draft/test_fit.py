"""A drafter against its target: refused when it cannot work, remarked on when it may not."""

from dataclasses import replace
from typing import Any

import pytest

from pydflash.draft.fit import TargetFacts, check_fit, template_mark
from pydflash.errors import CheckpointError
from tests.tiny.draft import tiny_config

TARGET = TargetFacts(
    layers=2, hidden=64, vocab=320, name="Tiny llama", template="{{ x }}", thinking=False
)


def test_check_fit_is_silent_when_all_agrees() -> None:
    card = {"target": "someone/tiny-llama", "template": template_mark("{{ x }}"), "thinking": "off"}
    assert check_fit(tiny_config(card=card), TARGET) == ()
    assert check_fit(tiny_config(card={}), TARGET) == ()
    assert check_fit(tiny_config(card=card | {"thinking": "both"}), TARGET) == ()
    assert check_fit(tiny_config(), replace(TARGET, name=None, template=None)) == ()


@pytest.mark.parametrize(
    ("drafter", "target", "words"),
    [
        ({}, {"hidden": 128}, "features of 64 numbers, Tiny llama has 128"),
        ({"hidden": 128}, {}, "embeddings of 128 numbers"),
        ({"target_layers": (1, 2)}, {}, r"layer 2 \(counted from 0\), Tiny llama has 2 layers"),
        ({}, {"layers": 1}, "layer 1"),
        ({}, {"vocab": 317}, "mask token 317"),
        ({}, {"vocab": 1000}, "vocabulary of 320 tokens, Tiny llama has 1000"),
        ({"mask_token": 3}, {"vocab": 300}, "vocabulary of 320"),
        ({}, {"layers": 30}, "a target of 2 layers, Tiny llama has 30"),
    ],
)
def test_check_fit_refuses(drafter: dict[str, Any], target: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words + ".*use the drafter made for this model"):
        check_fit(tiny_config(**drafter), replace(TARGET, **target))


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ({"target": "Other-7B"}, "made for Other-7B"),
        ({"template": template_mark("{{ y }}")}, "another chat template"),
        ({"thinking": "on"}, "with thinking on, it is off now"),
    ],
)
def test_check_fit_warns(card: dict[str, str], words: str) -> None:
    (warning,) = check_fit(tiny_config(card=card), TARGET)
    assert words in warning


def test_check_fit_takes_padding_with_a_remark() -> None:
    (warning,) = check_fit(tiny_config(vocab=322), TARGET)
    assert "322" in warning
    assert "padding" in warning
