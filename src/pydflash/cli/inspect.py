"""`pydflash inspect`: what a model file holds, and what this build can do with it."""

import json
from collections import Counter, defaultdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pydflash import catalog
from pydflash.catalog.cache import megabytes

if TYPE_CHECKING:
    from rich.console import Console

    from pydflash.checkpoint.files import Checkpoint

_TEMPLATE_LINES = 3
_TEMPLATE_CHARS = 400

# Part of the model by a piece of the tensor's name; the first that matches counts.
_PARTS = (
    ("embeddings", ("token_embd", "embed_tokens", "per_layer_token_embd")),
    ("norms", ("norm",)),
    ("experts", ("_exps", "experts.")),
    ("ffn", ("ffn_", "mlp.")),
    ("attention", ("attn_", "self_attn.", "ssm_", "linear_attn.")),
    ("head", ("output.weight", "lm_head")),
)
_SIZES = {
    "layers": "block_count",
    "hidden": "embedding_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "ffn": "feed_forward_length",
    "context": "context_length",
    "experts": "expert_count",
}


def inspect(
    file: Annotated[
        str, Parameter(help="a file, a catalogue name, or hf:owner/repo/file.gguf")
    ] = catalog.DEFAULT_MODEL,
    /,
    *,
    as_json: Annotated[
        bool, Parameter(name="--json", help="print one JSON object", negative="")
    ] = False,
) -> None:
    """Describe a model file: architecture, sizes, formats, tokenizer, and what can run it here."""
    report = describe(catalog.resolve(file))
    if as_json:
        print(json.dumps(report, indent=1))
        return
    from rich.console import Console

    _show(Console(), report)


def describe(path: Path) -> dict[str, Any]:
    """All that `inspect` shows, ready for JSON. Sizes in bytes."""
    from pydflash.checkpoint.files import open_checkpoint

    with open_checkpoint(path) as checkpoint:
        return {
            "path": str(checkpoint.path),
            "kind": checkpoint.kind,
            "files": [file.path.name for file in checkpoint.files],
            "bytes": checkpoint.nbytes,
            "architecture": _architecture(checkpoint),
            "name": _plain(checkpoint.meta.get("general.name")),
            "parameters": sum(prod(t.shape) for t in checkpoint.tensors.values()),
            "sizes": _sizes(checkpoint),
            "tensors": _tensors(checkpoint),
            "parts": _parts(checkpoint),
            "tokenizer": _tokenizer(checkpoint),
            "chat_template": checkpoint.meta.get("tokenizer.chat_template"),
            "drafter": _drafter(checkpoint),
            "runs": _runs(checkpoint),
        }


def _architecture(checkpoint: "Checkpoint") -> str | None:
    if checkpoint.kind == "gguf":
        return checkpoint.meta.arch
    return _plain(checkpoint.config.get("model_type"))


def _sizes(checkpoint: "Checkpoint") -> dict[str, Any]:
    if checkpoint.kind != "gguf":
        return {}
    sizes = {}
    for label, key in _SIZES.items():
        value = checkpoint.meta.get(f"{{arch}}.{key}")
        if isinstance(value, list):
            value = value[0] if len(set(value)) == 1 else value
        if value is not None:
            sizes[label] = value
    return sizes


def _tensors(checkpoint: "Checkpoint") -> dict[str, dict[str, int]]:
    count: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for info in checkpoint.tensors.values():
        count[info.format.name] += 1
        nbytes[info.format.name] += info.nbytes
    return {name: {"count": count[name], "bytes": size} for name, size in nbytes.most_common()}


def _parts(checkpoint: "Checkpoint") -> dict[str, int]:
    parts: dict[str, int] = defaultdict(int)
    for info in checkpoint.tensors.values():
        part = next((p for p, marks in _PARTS if any(m in info.name for m in marks)), "other")
        parts[part] += info.nbytes
    return dict(sorted(parts.items(), key=lambda item: -item[1]))


def _tokenizer(checkpoint: "Checkpoint") -> dict[str, Any] | None:
    from pydflash.checkpoint.meta import read_vocabulary

    if "tokenizer.ggml.tokens" not in checkpoint.meta:
        return None
    vocabulary = read_vocabulary(checkpoint.meta)
    tokens = vocabulary["tokens"]
    special = {
        name: {"id": token, "text": tokens[token]}
        for name in ("bos", "eos", "eot", "pad", "unk")
        if (token := vocabulary[name]) is not None
    }
    return {
        "model": vocabulary["model"],
        "pre": vocabulary["pre"],
        "tokens": len(tokens),
        "merges": len(vocabulary["merges"] or ()),
        "special": special,
        "ends": [{"id": token, "text": tokens[token]} for token in vocabulary["eog"]],
        "add_bos": vocabulary["add_bos"],
    }


def _drafter(checkpoint: "Checkpoint") -> dict[str, Any] | None:
    """What a drafter says of itself, or why it is refused; None for anything else."""
    from dataclasses import asdict

    from pydflash.draft.files import is_drafter, open_drafter
    from pydflash.errors import PydflashError

    if not is_drafter(checkpoint):
        return None
    try:
        with open_drafter(checkpoint.path) as drafter:
            return {
                "container": drafter.container,
                "config": asdict(drafter.config),
                "slots": drafter.config.slots,
                "notes": list(drafter.notes),
            }
    except PydflashError as error:
        return {"refused": str(error)}


def _runs(checkpoint: "Checkpoint") -> dict[str, dict[str, Any]]:
    """For each kind of device: can this build run the model there, with which kernels, and why not."""
    import torch

    from pydflash.device import devices, torch_name
    from pydflash.draft.files import is_drafter
    from pydflash.kernels.select import obstacles
    from pydflash.models import ARCHITECTURES

    architecture = _architecture(checkpoint)
    reasons: list[str] = []  # whatever the kernels
    if is_drafter(checkpoint):
        reasons.append("it is a drafter, of use beside its target")
    elif checkpoint.kind != "gguf":
        reasons.append("models run from GGUF files only")
    elif architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        reasons.append(f"architecture {architecture} is not among {known}")
    formats = {info.format.name for info in checkpoint.tensors.values() if len(info.shape) > 1}
    ops = _ops(checkpoint)
    runs: dict[str, dict[str, Any]] = {}
    for kind in sorted({device.name.partition(":")[0] for device in devices()}):
        found = obstacles(torch.device(torch_name(kind)), formats, ops)
        kernels = {name: reasons + against for name, against in found.items()}
        runs[kind] = {"yes": not all(kernels.values()), "kernels": kernels}
    return runs


def _ops(checkpoint: "Checkpoint") -> set[str]:
    """The ops beyond those of every backend that the model's tensors call for."""
    ops = set()
    for name in checkpoint.tensors:
        if "_exps." in name:
            ops.add("moe")
        if ".ssm_" in name:
            ops |= {"delta_layer", "delta_commit"}
    return ops


def _verdict(run: dict[str, Any]) -> str:
    """One kernel set a line, or one reason for all of them."""
    kernels: dict[str, list[str]] = run["kernels"]
    words = {name: "; ".join(against) for name, against in kernels.items()}
    if len(set(words.values())) == 1:
        why = next(iter(words.values()))
        return f"no: {why}" if why else f"yes, with {' or '.join(words)} kernels"
    return "\n".join(
        f"{name} kernels: no, {why}" if why else f"{name} kernels: yes (--ops {name})"
        for name, why in words.items()
    )


def _plain(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _show(console: "Console", report: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for label, text in _facts(report):
        facts.add_row(label, _escape(text))
    console.print(facts)

    formats = Table("format", "tensors", "bytes", box=box.SIMPLE_HEAD)
    for name, row in report["tensors"].items():
        formats.add_row(name, str(row["count"]), megabytes(row["bytes"]))
    parts = Table("part", "bytes", "share", box=box.SIMPLE_HEAD)
    total = sum(report["parts"].values()) or 1
    for name, nbytes in report["parts"].items():
        parts.add_row(name, megabytes(nbytes), f"{nbytes / total:.1%}")
    beside = Table.grid(padding=(0, 4))
    beside.add_row(formats, parts)
    console.print(beside)


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    files = report["files"]
    parts = f" in {len(files)} files" if len(files) > 1 else ""
    rows = [
        ("file", report["path"]),
        ("size", f"{megabytes(report['bytes'])}{parts}, {report['kind']}"),
        ("architecture", f"{report['architecture'] or 'not said'}"),
        ("name", report["name"] or "-"),
        ("parameters", f"{report['parameters'] / 1e6:,.1f} M"),
    ]
    if report["sizes"]:
        rows.append(("sizes", ", ".join(f"{k} {v}" for k, v in report["sizes"].items())))
    if tokenizer := report["tokenizer"]:
        pre = f", pre-tokenizer {tokenizer['pre']}" if tokenizer["pre"] else ""
        rows.append(("tokenizer", f"{tokenizer['model']}{pre}, {tokenizer['tokens']:,} tokens"))
        special = (f"{k} {v['id']} {v['text']}" for k, v in tokenizer["special"].items())
        rows.append(("special", ", ".join(special) or "-"))
        ends = ", ".join(f"{end['id']} {end['text']}" for end in tokenizer["ends"])
        rows.append(("ends a turn", ends or "-"))
    if report["drafter"] is None:
        rows.append(("chat template", _first_lines(report["chat_template"])))
    else:
        rows += _drafter_facts(report["drafter"])
    for kind, run in report["runs"].items():
        rows.append((f"runs on {kind}", _verdict(run)))
    return rows


def _drafter_facts(drafter: dict[str, Any]) -> list[tuple[str, str]]:
    if "refused" in drafter:
        return [("drafter", f"refused: {drafter['refused']}")]
    c = drafter["config"]
    taps = ", ".join(map(str, c["target_layers"]))
    layers = [
        f"{'all' if window is None else window}{' causal' if causal else ''}"
        for window, causal in zip(c["windows"], c["causal"], strict=True)
    ]
    heads = [k for k in ("conv", "selector", "markov", "domino") if c[k] is not None]
    rows = [
        ("drafter", f"{drafter['container']} container, {c['layers']} layers of {c['hidden']}"),
        ("drafts", f"{drafter['slots']} tokens from a block of {c['block_size']}"),
        ("mask token", f"{c['mask_token']} of {c['vocab']}"),
        ("reads", f"the outputs of the target's layers {taps} (counted from 0)"),
        ("layers see", "; ".join(layers)),
    ]
    if heads:
        rows.append(("heads", ", ".join(heads)))
    if c["draft_vocab"] is not None:
        rows.append(("draft vocabulary", f"{c['draft_vocab']} of {c['vocab']} tokens"))
    rows += [(f"card: {key}", value) for key, value in c["card"].items()]
    return rows + [("note", note) for note in drafter["notes"]]


def _first_lines(template: object) -> str:
    if not isinstance(template, str):
        return "none"
    lines = template.splitlines()
    shown = "\n".join(lines[:_TEMPLATE_LINES])[:_TEMPLATE_CHARS]
    return shown if shown == template else f"{shown} … ({len(lines)} lines, {len(template)} chars)"


def _escape(text: str) -> str:
    from rich.markup import escape

    # A file's own text must not steer the terminal.
    return escape("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text))
