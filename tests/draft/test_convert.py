"""`pydflash convert`, `quantize` and `inspect` with drafters."""

import json
from pathlib import Path

import pytest
import torch

from pydflash.checkpoint.files import open_checkpoint
from pydflash.cli.inspect import describe
from pydflash.cli.main import main
from pydflash.draft.convert import convert_drafter
from pydflash.draft.files import open_drafter
from pydflash.draft.write import write_gguf, write_safetensors
from pydflash.errors import ConfigError
from pydflash.kernels.ref.quant import dequantize
from tests.tiny.draft import CASES, DraftCase, tiny_config
from tests.tiny.gguf import tiny_gguf

WIDE = DraftCase(
    config=tiny_config(hidden=256, target_hidden=256, ffn=512, layers=3, head_dim=64), options={}
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_safetensors(WIDE.config, WIDE.tensors(), tmp_path / "zlab")


def formats_of(path: Path) -> dict[str, str]:
    with open_drafter(path) as drafter:
        return {name: t.format.name for name, t in drafter.tensors().items()}


@pytest.mark.parametrize("name", ["v1", "dflash2", "dspark", "reduced"])
def test_convert_drafter_round_all_containers(name: str, tmp_path: Path) -> None:
    case, target = CASES[name], tiny_gguf(tmp_path / "target.gguf")
    at = write_safetensors(case.config, case.tensors(), tmp_path / "a")
    steps = [("gguf", "b.gguf"), ("llama.cpp", "c.gguf"), (None, "d.gguf"), (None, "e")]
    steps += [("qwen35-dflash-draft", "f.gguf"), (None, "g.gguf"), ("safetensors", "h")]
    for to, dest in steps:
        assert convert_drafter(at, tmp_path / dest, to=to, target=target) == ()
        at = tmp_path / dest
    with open_drafter(tmp_path / "d.gguf") as drafter:
        assert drafter.architecture == "dflash"
    with open_drafter(tmp_path / "g.gguf") as drafter:
        assert drafter.architecture == "qwen35-dflash-draft"
    with open_drafter(at) as drafter:
        assert drafter.config == case.config
        for key, tensor in case.tensors().items():
            assert torch.equal(dequantize(drafter.checkpoint.tensor(key)), tensor.float()), key


def test_llama_cpp_drafters_keep_their_tokenizer(source: Path, tmp_path: Path) -> None:
    target = tiny_gguf(tmp_path / "target.gguf")
    with pytest.raises(ConfigError, match="name the target's GGUF file"):
        convert_drafter(source, tmp_path / "l.gguf", to="llama.cpp")
    convert_drafter(source, tmp_path / "l.gguf", to="llama.cpp", target=target)
    convert_drafter(tmp_path / "l.gguf", tmp_path / "q.gguf", type="Q8_0")
    with open_checkpoint(tmp_path / "q.gguf") as made, open_checkpoint(target) as whose:
        assert made.meta.strs("tokenizer.ggml.tokens") == whose.meta.strs("tokenizer.ggml.tokens")
        assert "llama.block_count" not in made.meta


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q4_K_M", "F16", "BF16"])
def test_quantize_takes_drafters(
    kind: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dest = tmp_path / "q.gguf"
    assert main(["quantize", str(source), str(dest), "--type", kind, "--quiet"]) == 0
    assert "MB from" in capsys.readouterr().out
    formats = formats_of(dest)
    assert formats["blk.0.attn_q.weight"] == kind.removesuffix("_M")
    assert formats["dflash.fc.weight"] == kind.removesuffix("_M")
    assert {f for n, f in formats.items() if "norm" in n} == {"F32"}
    assert ("Q6_K" in formats.values()) is (kind == "Q4_K_M")
    with open_drafter(dest) as drafter:
        assert drafter.config == WIDE.config
        got = dequantize(drafter.checkpoint.tensor("blk.2.ffn_down.weight"))
    want = WIDE.tensors()["blk.2.ffn_down.weight"]
    assert float((got - want).norm() / want.norm()) < (0.1 if "Q4" in kind else 0.01)


def test_tables_of_heads_keep_eight_bits(tmp_path: Path) -> None:
    case = CASES["dspark"]
    path = write_gguf(case.config, case.tensors(), tmp_path / "d.gguf", type="Q4_K")
    formats = formats_of(path)
    assert formats["dflash.dspark.markov.w1"] == "F16"  # rows of 8 are no blocks of 32
    assert formats["dflash.dspark.confidence.weight"] == "F32"
    assert formats["blk.0.attn_q.weight"] == "Q5_0"  # rows of 64 are no blocks of 256


def test_quantize_notes_sliding_windows(source: Path, tmp_path: Path) -> None:
    dest = str(tmp_path / "q.gguf")
    assert main(["quantize", str(source), dest, "--type", "Q8_0", "--swa", "2048", "--quiet"]) == 0
    with open_checkpoint(dest) as checkpoint:
        meta = checkpoint.meta
        assert meta.int("{arch}.attention.sliding_window") == 2048
        assert meta.bools("{arch}.attention.sliding_window_pattern") == [True, True, False]
    with open_drafter(dest) as drafter:
        assert drafter.config.windows == (2048, 2048, None)
        assert drafter.config.causal == (True, True, False)


def test_quantize_and_convert_refuse(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, full = tiny_gguf(tmp_path / "model.gguf"), tmp_path / "full.gguf"
    full.write_text("precious")
    runs = [
        (["quantize", model, tmp_path / "q.gguf", "--type", "Q8_0", "--swa", 64], "--swa is for"),
        (["quantize", source, full, "--type", "Q8_0"], "exists"),
        (["convert", source, source], "the drafter to read"),
        (["convert", source, tmp_path / "x", "--swa", 2], "window of 2"),
        (["convert", source, tmp_path / "x", "--to", "onnx"], "onnx is no form"),
        (["convert", source, tmp_path / "x", "--type", "Q4_K"], "F32, F16 or BF16"),
        (["convert", source, tmp_path / "no" / "x"], "not a directory"),
        (["convert", source, full, "--to", "safetensors", "--force"], "is a file"),
        (["convert", source, tmp_path, "--to", "gguf", "--force"], "is a directory"),
    ]
    for words, message in runs:
        assert main([str(word) for word in words]) == 2
        assert message in capsys.readouterr().err
    assert full.read_text() == "precious"
    assert main(["convert", str(model), str(tmp_path / "x")]) == 1
    assert "is no DFlash drafter" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"zlab", "model.gguf", "full.gguf"}


def test_convert_writes_bf16_safetensors(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dest = tmp_path / "half"
    assert main(["convert", str(source), str(dest), "--type", "BF16"]) == 0
    assert "MB from" in capsys.readouterr().out
    assert set(formats_of(dest).values()) == {"BF16"}
    values = json.loads((dest / "config.json").read_text())
    assert values["architectures"] == ["DFlashDraftModel"]
    assert values["dflash_config"]["target_layer_ids"] == [0, 1]
    assert values["num_target_layers"] == 2


@pytest.mark.parametrize("container", ["safetensors", "gguf"])
def test_inspect_shows_a_drafter(
    container: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES["reduced-dflash2"]
    if container == "gguf":
        path = write_gguf(case.config, case.tensors(), tmp_path / "d.gguf")
    else:
        path = write_safetensors(case.config, case.tensors(), tmp_path / "d")
    report = describe(path)
    assert json.loads(json.dumps(report))["drafter"]["config"]["target_layers"] == [0, 1]
    assert not any(run["yes"] for run in report["runs"].values())
    assert main(["inspect", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("3 tokens from a block of 4", "317 of 320", "layers 0, 1", "conv, selector"):
        assert words in shown
    assert "card: target" in shown
    assert "96 of 320 tokens" in shown


def test_inspect_says_why_a_drafter_is_refused(tmp_path: Path) -> None:
    path = write_safetensors(CASES["v1"].config, CASES["v1"].tensors(), tmp_path / "d")
    values = json.loads((path / "config.json").read_text())
    del values["rope_theta"]
    (path / "config.json").write_text(json.dumps(values))
    assert "rope_theta" in describe(path)["drafter"]["refused"]
