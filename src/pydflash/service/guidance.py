"""Guidance: constraints to grammars over one vocabulary, by llguidance. Nothing else imports that library.

It is an optional extra, imported when the first constraint comes.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydflash.errors import ConfigError, EngineError, RequestError
from pydflash.service.constraint import Constraint
from pydflash.text.lark import until
from pydflash.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

SPACES = r"[ ]|\n[ ]{0,64}|\n\t{0,16}"
"""White space between JSON tokens: one blank, or one new line with its indent.

Any amount would be JSON as well, and small models then write blanks until their tokens run out.
"""

_LIBRARY = "llguidance"


class Guidance:
    """Compiles constraints. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def compile(self, constraint: Constraint) -> "GuidedGrammar":
        """Raises RequestError for a bad or impossible constraint, ConfigError without the library."""
        vocabulary = self._vocabulary  # first: it says clearly when the library is missing
        from llguidance import LLMatcher

        param = constraint.param or constraint.kind
        matcher = LLMatcher(vocabulary, self._grammar(constraint, param), log_level=0)
        nothing = not matcher.is_error() and not any(matcher.compute_bitmask())
        if nothing or matcher.is_error():
            reason = matcher.get_error().strip().split("\n<state>")[0]
            if nothing or reason.startswith("NoExtension"):
                reason = "no text at all fits it"
            raise RequestError(f"{param} cannot be followed: {reason}", param=param)
        return GuidedGrammar(matcher)

    @cached_property
    def _vocabulary(self) -> "LLTokenizer":
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError as error:
            raise ConfigError(
                f"constrained output needs the package {_LIBRARY}; "
                "install it with pip install 'pydflash[grammar]'"
            ) from error
        known = self._tokenizer
        return LLTokenizer(
            TokenizerWrapper(_Vocabulary(known)),
            n_vocab=known.vocab_size,
            eos_token=sorted(known.eog),
        )

    def _grammar(self, constraint: Constraint, param: str) -> str:
        """The constraint in the library's own form, with what may be written before it."""
        body = _body(constraint, param)
        if not constraint.after:
            return json.dumps({"grammars": [body]})
        head = "start: before GAP? @body\nGAP: /\\n{1,2}/\n"
        head += until("before", constraint.after, self._tokenizer.cut)
        return json.dumps({"grammars": [{"lark_grammar": head}, {"name": "body", **body}]})


class GuidedGrammar:
    """A compiled grammar: a matcher that never moves, to be copied."""

    def __init__(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher

    def start(self) -> "GuidedMask":
        return GuidedMask(self._matcher.deep_copy())


class GuidedMask:
    """A TokenMask over a matcher, which stands after the committed tokens and those of `_ahead`."""

    def __init__(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher
        self._ahead: list[int] = []

    def allowed(self, drawn: Sequence[int]) -> bytes | None:
        self._move(drawn)
        mask = b"" if self._matcher.is_error() else self._matcher.compute_bitmask()
        if self._matcher.is_error():
            reason = self._matcher.get_error().strip().split("\n")[0]
            raise EngineError(f"the grammar cannot go on: {reason}; simplify it")
        return mask

    def takes(self, drawn: Sequence[int]) -> int:
        self._move(())
        return 0 if self._matcher.is_error() else self._matcher.validate_tokens(list(drawn))

    def is_done(self, drawn: Sequence[int]) -> bool:
        self._move(drawn)
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def commit(self, drawn: Sequence[int]) -> None:
        self._move(drawn)
        self._ahead.clear()

    def _move(self, drawn: Sequence[int]) -> None:
        """Stand after exactly these tokens since the last commit."""
        ahead, same = self._ahead, 0
        while same < min(len(ahead), len(drawn)) and ahead[same] == drawn[same]:
            same += 1
        if same < len(ahead):
            self._matcher.rollback(len(ahead) - same)
            del ahead[same:]
        if same < len(drawn):
            self._matcher.consume_tokens(list(drawn[same:]))
            ahead += drawn[same:]


class _Vocabulary:
    """What the library asks of a tokenizer. A leading 0xFF says that a token is no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = [t for t in range(tokenizer.vocab_size) if tokenizer.is_special(t)]
        ends = sorted(tokenizer.eog)
        self.eos_token_id = ends[0] if ends else 0
        self.bos_token_id = tokenizer.bos
        self.tokens = list(tokenizer.pieces())
        for token in special:
            self.tokens[token] = b"\xff" + self.tokens[token]
        self.special_token_ids = special
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text, parse_special=False)


def _body(constraint: Constraint, param: str) -> dict[str, Any]:
    if constraint.kind == "grammar":
        return {"lark_grammar": constraint.text}
    if constraint.kind == "regex":
        from llguidance import regex_to_lark

        return {"lark_grammar": f"start: /{regex_to_lark(constraint.text, '')}/"}
    schema: Any = {"type": "object"}
    if constraint.kind == "json_schema":
        try:
            schema = json.loads(constraint.text)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{param} is not JSON: {error}", param=param) from error
        if not isinstance(schema, dict):
            raise RequestError(f"{param} must be a JSON schema, an object", param=param)
    own = schema.get("x-guidance")
    options = {"whitespace_pattern": SPACES, **(own if isinstance(own, dict) else {})}
    return {"json_schema": {**schema, "x-guidance": options}}
