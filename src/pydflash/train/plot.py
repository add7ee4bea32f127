"""plot: loss and acceptance of a run as one SVG file, without any drawing library."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydflash.train.trainer import History

_W, _H, _PAD = 640, 240, 44
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a")
Points = Sequence[tuple[float, float]]


def write_plot(path: Path, history: History) -> Path:
    """Two panels above one another: the loss, and tokens a round of "all" held-out documents."""
    ways: dict[str, list[tuple[float, float]]] = {}
    for step, found in history.acceptance:
        for way, length in found.get("all", {}).items():
            ways.setdefault(way, []).append((step, length))
    panels = [_panel("loss", {"loss": _smooth(history.loss)}, 0)]
    if ways:
        panels.append(_panel("tokens a round, held out", ways, _H))
    height = _H * len(panels)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_W}" height="{height}" '
        f'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(panels)
        + "\n</svg>\n",
        encoding="utf-8",
    )
    return path


def _panel(title: str, lines: Mapping[str, Points], top: int) -> str:
    points = [p for line in lines.values() for p in line]
    if not points:
        return ""
    right = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    span = (high - low) or 1.0

    def at(x: float, y: float) -> str:
        across = _PAD + x / right * (_W - 2 * _PAD)
        return f"{across:.1f},{top + _H - _PAD - (y - low) / span * (_H - 2 * _PAD):.1f}"

    parts = [f'<text x="{_PAD}" y="{top + 24}" font-weight="bold">{title}</text>']
    for value in (low, low + span / 2, high):
        x, y = at(0, value).split(",")
        parts.append(f'<line x1="{x}" y1="{y}" x2="{_W - _PAD}" y2="{y}" stroke="#d0d7de"/>')
        parts.append(f'<text x="4" y="{y}">{value:.3g}</text>')
    parts.append(
        f'<text x="{_W - _PAD}" y="{top + _H - 24}" text-anchor="end">step {right:g}</text>'
    )
    for i, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        path = " ".join(at(x, y) for x, y in line)
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>'
        )
        parts.append(
            f'<text x="{_W - _PAD}" y="{top + 24 + 14 * i}" text-anchor="end" fill="{colour}">{name}</text>'
        )
    return "\n".join(parts)


def _smooth(points: Points) -> list[tuple[float, float]]:
    """At most about 200 points, each the mean of its neighbours."""
    size = max(1, len(points) // 200)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(g[-1][0], sum(y for _, y in g) / len(g)) for g in groups]
