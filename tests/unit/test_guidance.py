"""Guidance: constraints compiled, masks that can go back, and errors that name what is wrong."""

import json
import random
import sys
from pathlib import Path

import pytest

from pydflash.checkpoint.files import open_checkpoint
from pydflash.cli.constraint import read_constraint
from pydflash.errors import ConfigError, RequestError
from pydflash.sampling.mask import bits
from pydflash.service.build import build_language
from pydflash.service.constraint import Constraint
from pydflash.service.guidance import Guidance, GuidedMask
from pydflash.text.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return build_language(open_checkpoint(tiny_llama))[0]


@pytest.fixture(scope="module")
def guidance(tokenizer: Tokenizer) -> Guidance:
    return Guidance(tokenizer)


def schema(value: object) -> Constraint:
    return Constraint(kind="json_schema", text=json.dumps(value))


def state(guidance: Guidance, tokenizer: Tokenizer, constraint: Constraint, text: str) -> str:
    """What the grammar says of a text: refused, open, whole (may end) or done (must)."""
    tokens = tokenizer.encode(text)
    mask = guidance.compile(constraint).start()
    if mask.takes(tokens) < len(tokens):
        return "refused"
    mask.commit(tokens)
    may_end = bits(mask.allowed(()) or b"", tokenizer.vocab_size)[list(tokenizer.eog)]
    assert may_end.all() or not may_end.any()
    if mask.is_done(()):
        assert may_end.all()
        return "done"
    return "whole" if may_end.all() else "open"


@pytest.mark.parametrize(
    ("constraint", "text", "want"),
    [
        (schema(PERSON), '{"name": "Bo", "age": 3}', "done"),
        (schema(PERSON), '{\n  "name": "Bo",\n  "age": 3,\n  "tags": ["a"]\n}', "done"),
        (schema(PERSON), '{"name": "Bo"', "open"),
        (schema(PERSON), '{"name": "Bo"}', "refused"),
        (schema(PERSON), '{"name": "Bo", "age": 121', "refused"),
        (schema(PERSON), '{"name": "Bo",   ', "refused"),
        (schema({"type": "integer"}), "12", "whole"),
        (Constraint(kind="json_object"), '{"a": [1, {"b": null}]}', "done"),
        (Constraint(kind="json_object"), "[", "refused"),
        (Constraint(kind="regex", text=r"\d{2}/[a-z]*"), "12/", "whole"),
        (Constraint(kind="regex", text=r"\d{2}/[a-z]*"), "12/ab", "whole"),
        (Constraint(kind="regex", text=r"\d{2}"), "12", "done"),
        (Constraint(kind="regex", text=r"\d{2}"), "1", "open"),
        (Constraint(kind="grammar", text='start: "a" b+\nb: "b" | "c"'), "ab", "whole"),
        (Constraint(kind="grammar", text='start: "a" b+\nb: "b" | "c"'), "a", "open"),
        (Constraint(kind="grammar", text='start: "a" b+\nb: "b" | "c"'), "ad", "refused"),
        (Constraint(kind="json_object", after="</think>"), "so</think>{}", "done"),
        (Constraint(kind="json_object", after="</think>"), "so</thin</think>\n\n{}", "done"),
        (Constraint(kind="json_object", after="</think>"), "{}", "open"),
        (Constraint(kind="json_object", after="</think>"), "</think>x", "refused"),
        (Constraint(kind="regex", text="x+", after="<|im_start|>"), "a<|im_start|>x", "whole"),
        (Constraint(kind="regex", text="x+", after="<|im_start|>:"), "a<|im_start|>:x", "whole"),
        (Constraint(kind="grammar", text='start: "x"', after="</think>"), "</think>x", "done"),
    ],
)
def test_what_a_constraint_lets_through(
    guidance: Guidance, tokenizer: Tokenizer, constraint: Constraint, text: str, want: str
) -> None:
    assert state(guidance, tokenizer, constraint, text) == want


@pytest.mark.parametrize(
    ("constraint", "param", "sentence"),
    [
        (Constraint(kind="json_schema", text="{"), "json_schema", "not JSON"),
        (Constraint(kind="json_schema", text="[1]"), "json_schema", "must be a JSON schema"),
        (schema({"type": "odd"}), "json_schema", "Invalid type: odd"),
        (schema({"type": "string", "minLength": 2, "maxLength": 1}), "json_schema", "Unsatis"),
        (schema({"not": {"type": "string"}}), "json_schema", "not"),
        (Constraint(kind="regex", text="[a"), "regex", "unclosed"),
        (Constraint(kind="regex", text=r"[^\s\S]"), "regex", "no text at all fits it"),
        (Constraint(kind="grammar", text="start: foo"), "grammar", 'unknown name: "foo"'),
        (Constraint(kind="grammar", text="", param="own"), "own", "no start rule"),
    ],
)
def test_bad_constraints_are_refused(
    guidance: Guidance, constraint: Constraint, param: str, sentence: str
) -> None:
    with pytest.raises(RequestError, match=sentence) as caught:
        guidance.compile(constraint)
    assert caught.value.param == param
    assert "<state>" not in str(caught.value)


def test_a_place_goes_back(guidance: Guidance, tokenizer: Tokenizer) -> None:
    """In whatever order masks are asked for, each is that of a fresh matcher on the same text."""
    grammar = guidance.compile(schema(PERSON))
    dice = random.Random(2)
    said: list[int] = []
    mask: GuidedMask = grammar.start()
    for _ in range(12):
        branches = [[], *[_some(grammar.start(), said, tokenizer, dice) for _ in range(4)]]
        for branch in dice.sample(branches, len(branches)):
            fresh = grammar.start()
            fresh.commit([*said, *branch])
            assert mask.allowed(branch) == fresh.allowed(())
            assert mask.is_done(branch) == fresh.is_done(())
            assert mask.takes(branch) == len(branch)
            assert mask.takes([*branch, *tokenizer.eog]) == len(branch) + fresh.takes(
                [*tokenizer.eog]
            )
        step = max(branches, key=len)[:2]
        mask.commit(step)
        said += step
    assert len(said) > 8


def _some(
    mask: GuidedMask, said: list[int], tokenizer: Tokenizer, dice: random.Random
) -> list[int]:
    """Up to four tokens that may follow, at random."""
    mask.commit(said)
    branch: list[int] = []
    for _ in range(dice.randrange(1, 5)):
        allowed = set(bits(mask.allowed(branch) or b"", tokenizer.vocab_size).nonzero()[0].tolist())
        allowed -= tokenizer.eog
        if not allowed:
            break
        branch.append(dice.choice(sorted(allowed)))
    return branch


def test_without_the_library(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ConfigError, match=r"pip install 'pydflash\[grammar\]'"):
        Guidance(tokenizer).compile(Constraint(kind="json_object"))


def test_flags_to_a_constraint(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"type": "object"}')
    none = {"json_schema": None, "regex": None, "grammar": None}
    assert read_constraint(**none) is None
    got = read_constraint(**{**none, "json_schema": path})
    assert got == Constraint(kind="json_schema", text=path.read_text(), param="--json-schema")
    assert read_constraint(**{**none, "regex": ""}) == Constraint(kind="regex", param="--regex")
    got = read_constraint(**{**none, "grammar": path})
    assert got is not None
    assert (got.kind, got.text, got.param) == ("grammar", path.read_text(), "--grammar")
    with pytest.raises(ConfigError, match="--regex and --grammar exclude each other"):
        read_constraint(**{**none, "regex": "a", "grammar": path})
    with pytest.raises(ConfigError, match=r"--grammar .* cannot be read"):
        read_constraint(**{**none, "grammar": tmp_path / "nope"})
