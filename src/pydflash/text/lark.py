"""Pieces of Lark grammars in llguidance's dialect: literal text of one vocabulary, and text up to a mark.

A control token is no text to a grammar: it is named by its id, `<[5]>`.
"""

import json
from collections.abc import Callable, Sequence

Cut = Callable[[str], Sequence[str | int]]
"""Text to ordinary pieces and ids of the control tokens written in it: `Tokenizer.cut`."""

ANY = r"/(?s:.*)/"


def literal(text: str, cut: Cut) -> str:
    """An expression for exactly this text."""
    return " ".join(
        json.dumps(piece, ensure_ascii=False) if isinstance(piece, str) else f"<[{piece}]>"
        for piece in cut(text)
    )


def until(name: str, mark: str, cut: Cut) -> str:
    """Rules named `name` and after it for any text up to the first `mark`, the mark included."""
    first, *rest = cut(mark)
    tail = "".join(
        f" {literal(piece, cut)}" if isinstance(piece, str) else f" <[{piece}]>" for piece in rest
    )
    if isinstance(first, int):
        return f"{name}: {name}_text <[{first}]>{tail}\n{name}_text: {ANY}\n"
    head = json.dumps(first, ensure_ascii=False)
    return f"{name}: {name}_text{tail}\n{name}_text[lazy]: {ANY} {head}\n"
