"""`pydflash inspect`: the report as JSON and as tables."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pydflash import device
from pydflash.cli.inspect import _verdict, describe, inspect
from pydflash.cli.main import main
from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.kernels import select
from pydflash.kernels.cpu import library
from pydflash.kernels.ops import Missing, OpTable
from pydflash.kernels.ref import ops as ref_ops
from pydflash.kernels.triton import support
from tests.tiny.gguf import tiny_gguf


@pytest.fixture(autouse=True)
def _only_some_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that need no compiler: `cpu` is `ref` with three formats and without some ops."""

    def make(name: str, device: torch.device, threads: int) -> OpTable:
        table = ref_ops.build_ops(device)
        if name == "ref":
            return table
        formats = frozenset({"F32", "Q8_0", "Q4_1"})
        lacking = {op: Missing(op) for op in ("delta_layer", "delta_commit", "moe")}
        return replace(table, name=name, formats=formats, **lacking)

    monkeypatch.setattr(select, "_make", make)
    monkeypatch.setattr(library, "unavailable", lambda: None)
    monkeypatch.setattr(device, "devices", lambda: (device.cpu(),))


def test_describe(tiny_qwen3: Path) -> None:
    report = describe(tiny_qwen3)
    assert json.loads(json.dumps(report)) == report
    assert report["architecture"] == "qwen3"
    assert report["name"] == "Tiny qwen3"
    assert report["bytes"] == tiny_qwen3.stat().st_size
    assert report["sizes"] == {
        "layers": 2,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 96,
        "context": 512,
    }
    # Two layers of 4 norms, of q, k, v, o and of gate, up, down; the embedding; the last norm.
    layer = 2 * 64 + 2 * 16 + 64 * (64 + 32 + 32 + 64) + 3 * 64 * 96
    assert report["parameters"] == 2 * layer + 320 * 64 + 64
    assert report["tensors"]["Q8_0"] == {
        "count": 15,
        "bytes": (report["parameters"] - 384) // 32 * 34,
    }
    assert report["tensors"]["F32"] == {"count": 9, "bytes": 384 * 4}
    assert sum(report["parts"].values()) == sum(t["bytes"] for t in report["tensors"].values())
    assert report["parts"]["embeddings"] == 320 * 64 // 32 * 34
    assert report["parts"]["norms"] == 384 * 4
    assert report["parts"]["attention"] == 2 * 64 * 192 // 32 * 34
    assert "head" not in report["parts"]
    assert report["tokenizer"]["tokens"] == 320
    assert report["tokenizer"]["special"]["eos"] == {"id": 2, "text": "<|im_end|>"}
    assert [end["id"] for end in report["tokenizer"]["ends"]] == [0, 2]
    assert "<|im_start|>" in report["chat_template"]
    assert report["runs"] == {"cpu": {"yes": True, "kernels": {"cpu": [], "ref": []}}}


def test_describe_says_what_cannot_run(tmp_path: Path) -> None:
    path = tiny_gguf(
        tmp_path / "m.gguf",
        formats={"output*": "Q4_0", "blk*": "F16"},
        extra={"general.architecture": "mamba", "mamba.block_count": 1},
    )
    report = describe(path)
    assert report["parts"]["head"] == 320 * 64 // 32 * 18
    run = report["runs"]["cpu"]
    assert run["yes"] is False
    assert run["kernels"]["cpu"][0].startswith("architecture mamba is not among ")
    assert run["kernels"]["cpu"][1:] == ["no kernel for F16, Q4_0"]
    assert run["kernels"]["ref"] == run["kernels"]["cpu"][:1]


def test_describe_names_the_kernels_that_lack_an_op(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", "qwen35moe")
    run = describe(path)["runs"]["cpu"]
    lacking = ["lacks delta_commit, delta_layer, moe"]
    assert run == {"yes": True, "kernels": {"cpu": lacking, "ref": []}}
    assert _verdict(run) == (
        "cpu kernels: no, lacks delta_commit, delta_layer, moe\nref kernels: yes (--ops ref)"
    )


def test_describe_names_the_kernels_of_every_kind_of_device(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = replace(device.cpu(), name="cuda:0")
    monkeypatch.setattr(device, "devices", lambda: (device.cpu(), gpu))
    monkeypatch.setattr(support, "unavailable", lambda _: "there is no Triton")
    runs = describe(tiny_llama)["runs"]
    assert _verdict(runs["cpu"]) == "yes, with cpu or ref kernels"
    assert _verdict(runs["cuda"]) == (
        "triton kernels: no, there is no Triton\nref kernels: yes (--ops ref)"
    )
    assert select.explain(torch.device("cuda"))[:2] == [
        "triton: no: there is no Triton",
        "cpu: no: these kernels are for the CPU",
    ]
    with pytest.raises(UnsupportedError, match="triton cannot serve cuda: there is no Triton"):
        select.build(torch.device("cuda"), ops="triton")


def test_describe_safetensors(tmp_path: Path) -> None:
    save_file({"lm_head.weight": torch.zeros(4, 8)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    report = describe(tmp_path)
    assert report["kind"] == "safetensors"
    assert report["architecture"] == "qwen3"
    assert report["parts"] == {"head": 128}
    assert report["tokenizer"] is None
    assert report["runs"]["cpu"]["kernels"]["ref"] == ["models run from GGUF files only"]


def test_inspect_json(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny_llama), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == describe(tiny_llama)


def test_inspect_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Markup and escape sequences in a file are shown, not obeyed.
    path = tiny_gguf(tmp_path / "m.gguf", extra={"general.name": "[red]evil\x1b[2J"})
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "[red]evil\ufffd[2J" in shown
    for word in ("llama", "layers 2", "gpt2", "smollm", "<|im_end|>", "embeddings", "runs on cpu"):
        assert word in shown
    assert "\x1b" not in shown


def test_inspect_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_llama: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_llama.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        inspect(str(path))
    assert main(["inspect", str(path)]) == 1
    assert capsys.readouterr().err.startswith("error: m.gguf is truncated or damaged")
