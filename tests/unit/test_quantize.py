"""`quantize_file` and `pydflash quantize` on tiny models, read back by the official reader, too."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize as official

from pydflash.checkpoint import requantize as module
from pydflash.checkpoint import writer
from pydflash.checkpoint.files import open_checkpoint
from pydflash.checkpoint.requantize import quantize_file, requantize
from pydflash.cli.main import main
from pydflash.errors import CapacityError, CheckpointError, ConfigError, UnsupportedError
from pydflash.kernels.ref.quant import dequantize
from pydflash.quant.mix import MIXES
from tests.tiny.gguf import tiny_gguf

WIDE = {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 288, "vocab": 288}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("model") / "wide.gguf", layers=1, **WIDE)


def formats_of(path: Path) -> dict[str, str]:
    with open_checkpoint(path) as checkpoint:
        return {name: info.format.name for name, info in checkpoint.tensors.items()}


@pytest.mark.parametrize("kind", list(MIXES))
def test_quantize_file_reads_back(source: Path, tmp_path: Path, kind: str) -> None:
    dest = quantize_file(source, tmp_path / "out.gguf", kind)
    bound = {2: 0.4, 3: 0.25, 4: 0.15, 5: 0.08, 6: 0.04, 8: 0.01, 16: 5e-3, 32: 1e-9}
    reader = GGUFReader(dest)
    assert reader.get_field("general.file_type").contents() == MIXES[kind].file_type
    version = reader.get_field("general.quantization_version")
    assert (version and version.contents()) == (None if "F" in kind else 2)
    with open_checkpoint(source) as before, open_checkpoint(dest) as after:
        assert list(after.tensors) == list(before.tensors)
        for tensor in reader.tensors:
            was, now = dequantize(before.tensor(tensor.name)), dequantize(after.tensor(tensor.name))
            assert np.array_equal(official(tensor.data, tensor.tensor_type), now.numpy())
            bits = int(after.tensors[tensor.name].format.bits_per_weight)
            assert (now - was).norm() <= bound[bits] * was.norm()


def test_quantize_file_mixes(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path / "deep.gguf", layers=8, **WIDE)
    found = formats_of(quantize_file(source, tmp_path / "out.gguf", "q4_k_m"))
    assert found["output.weight"] == "Q6_K"
    assert found["token_embd.weight"] == found["blk.1.attn_v.weight"] == "Q4_K"
    assert found["blk.0.attn_v.weight"] == found["blk.7.attn_v.weight"] == "Q6_K"
    assert found["blk.0.ffn_down.weight"] == "Q8_0"  # rows of 288
    assert found["blk.1.ffn_down.weight"] == "Q5_0"
    assert found["blk.0.attn_norm.weight"] == found["output_norm.weight"] == "F32"


def test_quantize_file_keeps_metadata(source: Path, tmp_path: Path) -> None:
    dest = quantize_file(source, tmp_path / "out.gguf", "Q8_0")
    with open_checkpoint(source) as before, open_checkpoint(dest) as after:
        changed = {"general.file_type", "general.quantization_version"}
        assert set(after.meta.keys()) - changed == set(before.meta.keys()) - changed
        for key in set(before.meta.keys()) - changed:
            assert after.meta.get(key) == before.meta.get(key)
            assert after.meta.entry(key).type == before.meta.entry(key).type


def test_quantize_file_copies_what_fits_already(tmp_path: Path) -> None:
    start = tiny_gguf(tmp_path / "a.gguf", formats="Q8_0")
    dest = quantize_file(start, tmp_path / "b.gguf", "Q8_0")
    with open_checkpoint(start) as before, open_checkpoint(dest) as after:
        for name in before.tensors:
            assert torch.equal(before.tensor(name).data, after.tensor(name).data)
    plain = quantize_file(dest, tmp_path / "c.gguf", "F16")
    assert set(formats_of(plain).values()) == {"F16", "F32"}
    with open_checkpoint(plain) as checkpoint:
        assert "general.quantization_version" not in checkpoint.meta


def test_quantize_file_does_not_depend_on_threads_or_slices(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    one = quantize_file(source, tmp_path / "one.gguf", "Q4_K_M", threads=1)
    monkeypatch.setattr(module, "_SLICE", 7 * 256)
    many = quantize_file(source, tmp_path / "many.gguf", "Q4_K_M", threads=3)
    assert one.read_bytes() == many.read_bytes()
    assert torch.get_num_threads() == threads


def test_requantize_takes_stacks_of_experts(source: Path) -> None:
    with open_checkpoint(source) as checkpoint:
        tensor = checkpoint.tensor("blk.0.attn_q.weight")
    stack = module.QuantTensor(
        name="e", data=tensor.data.view(4, 64, -1), format=tensor.format, shape=(4, 64, 256)
    )
    packed = requantize(stack, MIXES["Q4_K"].base)
    assert packed.shape == (4, 64, 256)
    flat = requantize(tensor, MIXES["Q4_K"].base)
    assert torch.equal(packed.data.view(256, -1), flat.data)


def test_quantize_file_reports_each_tensor(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    report: Callable[..., None] = lambda info, target: seen.append((info.name, target.name))  # noqa: E731
    dest = quantize_file(source, tmp_path / "out.gguf", "Q5_K", report)
    assert dict(seen) == formats_of(dest)


def test_quantize_file_refuses(source: Path, tmp_path: Path) -> None:
    dest = tmp_path / "out.gguf"
    dest.write_text("precious")
    with pytest.raises(ConfigError, match=r"out\.gguf exists; .*--force"):
        quantize_file(source, dest, "Q8_0")
    assert dest.read_text() == "precious"
    with pytest.raises(ConfigError, match="is the file to read"):
        quantize_file(source, source, "Q8_0", force=True)
    with pytest.raises(ConfigError, match="Q9 is not a type"):
        quantize_file(source, tmp_path / "new.gguf", "Q9")
    with pytest.raises(ConfigError, match="is not a directory"):
        quantize_file(source, tmp_path / "no" / "new.gguf", "Q8_0")
    quantize_file(source, dest, "Q8_0", force=True)
    assert formats_of(dest)["blk.0.attn_q.weight"] == "Q8_0"
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_quantize_file_names_the_tensor_with_infinity(tmp_path: Path) -> None:
    start = tiny_gguf(tmp_path / "a.gguf")
    with open_checkpoint(start) as checkpoint:
        path, offset = checkpoint.handle("blk.0.ffn_up.weight")
    data = bytearray(path.read_bytes())
    data[offset : offset + 4] = np.float32(np.inf).tobytes()
    start.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_up\.weight: NaN or infinity"):
        quantize_file(start, tmp_path / "b.gguf", "Q8_0")
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_quantize_file_says_when_the_disk_is_full(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(CapacityError, match="no space for"):
        quantize_file(source, tmp_path / "out.gguf", "Q8_0")
    assert not list(tmp_path.iterdir())


def test_quantize_file_wants_gguf(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}'
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(UnsupportedError, match="convert it to GGUF"):
        quantize_file(path, tmp_path / "out.gguf", "Q8_0")


def test_quantize_command(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dest = tmp_path / "out.gguf"
    command = ["quantize", str(source), str(dest), "--type", "Q4_0", "--quiet"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "out.gguf: " in out
    assert "Q4_0" in out
    assert "already" not in out
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    again = ["quantize", str(dest), str(tmp_path / "f16.gguf"), "--type", "F16", "--threads", "1"]
    assert main(again) == 0
    assert "quantised already" in capsys.readouterr().out
    assert main([*command, "--force", "--threads", "0"]) == 2
    assert main(["quantize", str(tmp_path / "none.gguf"), str(dest), "--type", "Q4_0"]) == 1
