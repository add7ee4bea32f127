"""Chart: a suite's saved figures as an SVG of horizontal bars, drawn with nothing but text.

Colours follow the reader's light or dark setting, also where the file is shown as an image. Every bar
carries its name and its figure, so that no colour has to be told from another.
"""

from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

_WIDTH = 720
_LEFT = 150  # the tasks' names
_RIGHT = 190  # what stands behind the longest bar
_BAR = 18
_GAP = 5
_GROUP_GAP = 18
_TOP = 58
# No variables: what shows an SVG outside a browser rarely knows them.
_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 } .task { font-weight: 600 }
.dim { fill: #59636e; font-size: 12px } .paper { fill: #ffffff }
.plain { fill: #8c959f } .draft { fill: #0969da } .peer { fill: #9a6700 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .dim { fill: #9198a1 } .paper { fill: #0d1117 }
.plain { fill: #6e7681 } .draft { fill: #4493f8 } .peer { fill: #d29922 }
}
"""


def chart(document: Mapping[str, Any]) -> str:
    """The SVG of a `bench suite` JSON document: tokens a second of every task, one bar for each way."""
    groups = [(str(task["task"]), _bars(task, document)) for task in document["tasks"]]
    most = max((value for _, bars in groups for _, _, value, _ in bars), default=0.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / most if most else 0.0
    body: list[str] = []
    y = _TOP
    for task, bars in groups:
        middle = y + (len(bars) * (_BAR + _GAP) - _GAP) / 2 + 4
        body.append(_text(_LEFT - 10, middle, task, "task", anchor="end"))
        for kind, name, value, note in bars:
            width = max(value * scale, 1.0)
            body.append(
                f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2"/>'
            )
            label = f"{value:.1f} {name}" + (f", {note}" if note else "")
            body.append(_text(_LEFT + width + 6, y + 13.5, label, ""))
            y += _BAR + _GAP
        y += _GROUP_GAP
    title = f"Tokens a second, {document['model']['file']}"
    where = f"{document['cpu']}, {document['threads']} threads; medians over the same prompts"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" '
            f'height="{y}" role="img" aria-labelledby="title">',
            f'<title id="title">{escape(title)}</title>',
            f"<style>{_STYLE}</style>",
            '<rect class="paper" width="100%" height="100%"/>',
            _text(16, 26, title, "title"),
            _text(16, 44, where, "dim"),
            *body,
            "</svg>\n",
        ]
    )


def _bars(
    task: Mapping[str, Any], document: Mapping[str, Any]
) -> list[tuple[str, str, float, str]]:
    """(class, name, tokens a second, note) of what was measured for a task."""
    found: list[tuple[str, str, float | None, str]] = [
        ("peer", "llama.cpp", task["peer_tok_s"], ""),
        ("plain", "plain", task["plain_tok_s"], ""),
        ("draft", str(document.get("drafter") or "drafts"), task["draft_tok_s"], ""),
    ]
    if task["speedup"] is not None:
        kind, name, value, _ = found[-1]
        found[-1] = (kind, name, value, f"{task['speedup']:.2f}x plain")
    return [(kind, name, value, note) for kind, name, value, note in found if value is not None]


def _text(x: float, y: float, words: str, kind: str, *, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
