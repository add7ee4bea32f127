"""A GPU bench's saved figures as Markdown, and its breakdown as an SVG of bars beside their floors."""

from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from pydflash.bench.gpu_peer import shown

Body = Mapping[str, Any]
_WIDTH, _LEFT, _RIGHT, _BAR, _TOP = 760, 190, 220, 16, 58
_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 } .dim { fill: #59636e; font-size: 12px }
.paper { fill: #ffffff } .bar { fill: #0969da } .gap { fill: #8c959f }
.floor { stroke: #cf222e; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .dim { fill: #9198a1 } .paper { fill: #0d1117 }
.bar { fill: #4493f8 } .gap { fill: #6e7681 } .floor { stroke: #ff7b72 }
}
"""


def markdown(body: Body) -> str:
    """Figures, then the breakdown. Parts that failed or did not run are left out."""
    out = [
        f"Measured on {body['device']} (driver {body.get('driver')}, torch {body['torch']}, Triton "
        f"{body.get('triton')}), commit {body['commit']}, {body['date']}; {body['model']['file']}, "
        f"{body['model']['bytes'] / 1e9:.2f} GB.",
        "",
        "| figure | measured |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in figures(body)),
    ]
    out += _beside_peer(_found(body, "peer"))
    for name, account in _found(body, "breakdown").items():
        out += [
            "",
            f"**{name}**: {account['wall_us']:.0f} us by the host's clock",
            "",
            "| kind | us | launches | floor us | x floor |",
            "|---|--:|--:|--:|--:|",
        ]
        for line in account["kinds"]:
            floor = line["floor_us"]
            told = ("", "") if not floor else (f"{floor:.0f}", f"{line['us'] / floor:.2f}")
            out.append(
                f"| {line['kind']} | {line['us']:.0f} | {line['launches']:.0f} | {told[0]} | {told[1]} |"
            )
    return "\n".join(out) + "\n"


def _beside_peer(peer: Body) -> list[str]:
    """Our figures beside llama.cpp's, ratios of times: below 1 we are faster."""
    if not peer:
        return []
    where = "the CPU" if peer["gpu"] is None else "the same GPU"
    out = [
        "",
        f"**llama.cpp** ({peer['version']}) on {where}, steps of {peer['ubatch']} prompt tokens; the "
        "ratio is our time over its time",
        "",
        "| figure | ours | llama.cpp | ratio |",
        "|---|--:|--:|--:|",
    ]
    for line in peer["figures"]:
        ours, tokens = line["ours_s"], line["tokens"]
        told = ("", "") if ours is None else (shown(ours, tokens), f"{line['ratio']:.2f}")
        theirs = shown(line["theirs"]["median_s"], tokens)
        out.append(f"| {line['name']} | {told[0]} | {theirs} | {told[1]} |")
    return out


def figures(body: Body) -> list[tuple[str, str]]:
    """Name and value of every figure there is."""
    out: list[tuple[str, str]] = []
    if found := _found(body, "ceilings"):
        out.append(("copy rate", f"{found['copy_bytes_s'] / 1e9:.0f} GB/s"))
        out.append(("read rate", f"{found['read_bytes_s'] / 1e9:.0f} GB/s"))
        out.append(("dense products", f"{found['flops_s'] / 1e12:.1f} Tflop/s"))
    for depth, one in _found(body, "step").items():
        wall, device = one["wall"]["median_s"], one["device"]["median_s"]
        told = f"{_ms(wall)} (on the device {_ms(device)}, floor {_ms(one['floor_s'])})"
        out.append((f"one-token step, {depth}", told))
    for rows, one in _found(body, "verify").items():
        told = f"{_ms(one['whole']['median_s'])} (on the device {_ms(one['whole_device']['median_s'])})"
        out.append((f"tree step and commit, {rows}", told))
    if found := _found(body, "prefill"):
        out.append((f"prefill of {found['tokens']} tokens", f"{found['tok_s']:.0f} tok/s"))
    if found := _found(body, "decode"):
        out.append(("decode through the engine", f"{found['tok_s']:.1f} tok/s"))
    if found := _found(body, "eight"):
        told = f"{found['together']['tok_s']:.0f} tok/s of all, {found['ratio']:.2f} x one"
        out.append((f"{found['sequences']} sequences together", told))
    if found := _found(body, "round"):
        told = f"{_ms(found['whole']['median_s'])}, {found['ratio']:.2f} x a plain engine step"
        out.append((f"round, budget {found['budget']}, block {found['block']}", told))
        parts = found["parts"]
        told = ", ".join(f"{k.removesuffix('_s')} {_ms(v)}" for k, v in parts.items())
        out.append(("its parts, with syncs between", told))
    if found := _found(body, "forced"):
        told = f"{found['tok_s']:.0f} tok/s" + ("" if found["identical"] else " (tokens DIFFER)")
        out.append((f"at a FORCED {found['tokens_a_round']:.2f} tokens a round", told))
    if (found := _found(body, "memory")) and "peak" in found:
        out.append(("peak memory of the device", f"{found['peak'] / 2**30:.2f} GiB"))
    if found := _found(body, "start"):
        out.append(("start to first token, second start", f"{found['counts_s']:.1f} s"))
    return out


def picture(body: Body) -> str:
    """Bars of every breakdown, a mark where the floor lies."""
    accounts = _found(body, "breakdown")
    kinds = [line for account in accounts.values() for line in account["kinds"]]
    most = max((max(line["us"], line["floor_us"] or 0.0) for line in kinds), default=0.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / most if most else 0.0
    shapes: list[str] = []
    y = _TOP
    for name, account in accounts.items():
        shapes.append(_text(16, y + 10, f"{name}: {account['wall_us'] / 1e3:.2f} ms", "", "start"))
        y += 20
        for line in account["kinds"]:
            width = max(line["us"] * scale, 1.0)
            kind = "gap" if line["kind"] == "gaps" else "bar"
            shapes.append(_text(_LEFT - 10, y + 12.5, line["kind"], "", "end"))
            shapes.append(
                f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2"/>'
            )
            end = width
            label = f"{line['us']:.0f} us"
            if line["launches"]:
                label += f", {line['launches']:.0f} launches"
            if line["floor_us"]:
                at = _LEFT + line["floor_us"] * scale
                shapes.append(
                    f'<line class="floor" x1="{at:.1f}" x2="{at:.1f}" y1="{y - 1}" y2="{y + _BAR + 1}"/>'
                )
                end = max(end, at - _LEFT)
                label += f", {line['us'] / line['floor_us']:.2f} x floor"
            shapes.append(_text(_LEFT + end + 6, y + 12.5, label, "dim", "start"))
            y += _BAR + 4
        y += 16
    title = f"Where the time goes, {body['model']['file']}"
    where = f"{body['device']}; a line marks each part's floor by bytes or operations"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" '
        f'height="{y}" role="img" aria-labelledby="title">'
    )
    paper = '<rect class="paper" width="100%" height="100%"/>'
    top = [_text(16, 26, title, "title", "start"), _text(16, 44, where, "dim", "start")]
    lines = [head, f'<title id="title">{escape(title)}</title>', f"<style>{_STYLE}</style>", paper]
    return "\n".join([*lines, *top, *shapes, "</svg>\n"])


def _found(body: Body, part: str) -> dict[str, Any]:
    """A part's figures; nothing where it failed."""
    found: dict[str, Any] = body.get(part, {})
    return {} if "error" in found else found


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _text(x: float, y: float, words: str, kind: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
