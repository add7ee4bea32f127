"""Trace tree: one round's tree as inline SVG, depth to the right, and text made safe to show."""

import math
import unicodedata
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape, quoteattr

from pydflash.spec.trace import RoundTrace

Text = Callable[[Sequence[int]], str]  # of tokens in the middle of an answer

_BOX_H = 34
_ROW = 42
_CHAR = 7.4  # width of a character of the page's monospace face at 12 px
_SPACE = 30  # between columns, for the edges
_MOST = 24  # characters of a token that are shown in its box; the rest in its tooltip
_VISIBLE = {"\n": "↵", "\t": "⇥", "\r": "␍"}


def shown(text: str, *, lines: bool = False) -> str:
    """Text without a character that XML refuses or nobody sees. `lines` keeps line ends as they are."""
    return "".join(_seen(c, lines) for c in text)


def tree(r: RoundTrace, text: Text) -> str:
    """The nodes with the drafter's probabilities, the accepted path, and the target's draw behind it."""
    labels = [_label(text([token])) for token in (*r.tokens, r.drawn)]
    depth = [*r.depth, r.depth[r.path[-1]] + 1]
    parents = [*r.parents, r.path[-1]]
    accepted, last = {*r.path}, len(labels) - 1
    left, y = _columns(labels, depth), _places(parents)
    parts: list[str] = []
    for node in range(1, last + 1):
        up = parents[node]
        start, end = left[depth[up]][0] + left[depth[up]][1], left[depth[node]][0]
        middle = (start + end) / 2
        kind = "yes" if node in accepted or node == last else "no"
        parts.append(
            f'<path class="{kind}" d="M{start:.0f} {y[up]:.0f} C{middle:.0f} {y[up]:.0f} '
            f'{middle:.0f} {y[node]:.0f} {end:.0f} {y[node]:.0f}"/>'
        )
    for node in range(last + 1):
        kind = "end" if node == last else "yes" if node in accepted else "no"
        note = _note(node, last, r, node in accepted)
        x, width = left[depth[node]]
        full = shown(text([r.drawn if node == last else r.tokens[node]]))
        parts.append(
            f'<g class="{kind}"><title>{escape(full)}: {escape(note)}</title>'
            f'<rect x="{x:.0f}" y="{y[node] - _BOX_H / 2:.0f}" width="{width:.0f}" height="{_BOX_H}" rx="4"/>'
            f'<text x="{x + 6:.0f}" y="{y[node] - 3:.0f}">{escape(labels[node])}</text>'
            f'<text class="p" x="{x + 6:.0f}" y="{y[node] + 12:.0f}">{escape(note)}</text></g>'
        )
    wide, high = sum(left[max(depth)]) + 2, max(y) + _ROW / 2
    said = f"{len(r.tokens) - 1} drafts, {len(accepted) - 1} accepted, then the target drew {labels[last]}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label={quoteattr(said)} '
        f'width="{wide:.0f}" height="{high:.0f}" viewBox="0 0 {wide:.0f} {high:.0f}">'
        f"{''.join(parts)}</svg>"
    )


def _note(node: int, last: int, r: RoundTrace, accepted: bool) -> str:
    if node == last:
        return "drawn"
    if node == 0:
        return "✓ anchor"
    return ("✓ " if accepted else "") + percent(r.logp[node])


def percent(logp: float) -> str:
    """A probability for a person."""
    share = math.exp(logp) * 100
    return "<0.1%" if share < 0.1 else f"{share:.1f}%" if share < 9.95 else f"{share:.0f}%"


def _columns(labels: list[str], depth: list[int]) -> list[tuple[float, float]]:
    """(left edge, width) of each depth, as wide as its widest label."""
    widths = [0.0] * (max(depth) + 1)
    for label, d in zip(labels, depth, strict=True):
        widths[d] = max(widths[d], max(_width(label), 8) * _CHAR + 12)
    out: list[tuple[float, float]] = []
    x = 1.0
    for width in widths:
        out.append((x, width))
        x += width + _SPACE
    return out


def _places(parents: list[int]) -> list[float]:
    """The middle of each node: leaves one below the other, a parent level with its first child."""
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents[1:], start=1):
        children[parent].append(node)
    y = [0.0] * len(parents)
    line = 0
    stack = [0]
    while stack:  # depth first, so that a first child stands level with its parent
        node = stack.pop()
        y[node] = line * _ROW + _ROW / 2
        if not children[node]:
            line += 1
        stack.extend(reversed(children[node]))
    return y


def _label(text: str) -> str:
    seen = shown(text).replace(" ", "·") or "∅"
    return seen if len(seen) <= _MOST else seen[: _MOST - 1] + "…"


def _width(label: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in label)


def _seen(c: str, lines: bool) -> str:
    if lines and c == "\n":
        return c
    if c in _VISIBLE:
        return _VISIBLE[c]
    code = ord(c)
    # Control characters, lone surrogates, marks that turn the direction of text, and what XML 1.0 lacks.
    hidden = code < 32 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 or code in (0xFFFE, 0xFFFF)
    turning = 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
    return f"\\u{code:04x}" if hidden or turning else c
