"""open_checkpoint and Checkpoint: views, release, splits, safetensors."""

import json
import sys
from pathlib import Path
from struct import pack

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import save_file

from pydflash.checkpoint.files import open_checkpoint
from pydflash.errors import CheckpointError, UnsupportedError
from tests.tiny.gguf import tiny_gguf


def split_gguf(directory: Path, parts: int = 3, **split: int) -> list[Path]:
    """One tensor a part; `split` overrides the last part's split keys."""
    paths = []
    for index in range(parts):
        path = directory / f"m-{index + 1:05}-of-{parts:05}.gguf"
        keys = {"no": index, "count": parts, "tensors": parts}
        if index == parts - 1:
            keys |= split
        writer = GGUFWriter(path, "llama")
        writer.add_uint16("split.no", keys["no"])
        writer.add_uint16("split.count", keys["count"])
        writer.add_int32("split.tensors.count", parts if index else keys["tensors"])
        writer.add_tensor(f"t{index}", np.full((2, 4), index, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


def resident_kib() -> int:
    """Memory of this process that is pages of mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssFile"):
            return int(line.split()[1])
    raise AssertionError("no RssFile line")


def test_checkpoint_tensor_is_a_view(tiny_llama: Path) -> None:
    with open_checkpoint(tiny_llama) as checkpoint:
        assert checkpoint.kind == "gguf"
        assert checkpoint.nbytes == tiny_llama.stat().st_size
        first, second = checkpoint.tensor("output.weight"), checkpoint.tensor("output.weight")
        assert first.shape == (320, 64)
        assert first.data.shape == (320, 256)
        assert first.data.data_ptr() == second.data.data_ptr()
        vector = checkpoint.tensor("output_norm.weight")
        assert vector.shape == (64,)
        assert vector.data.view(torch.float32).mean().item() == pytest.approx(1, abs=0.1)


def test_checkpoint_views_outlive_close(tiny_llama: Path) -> None:
    checkpoint = open_checkpoint(str(tiny_llama))
    tensor = checkpoint.tensor("output.weight")
    before = tensor.data.clone()
    checkpoint.close()
    assert tensor.data.equal(before)
    assert checkpoint.meta.arch == "llama"
    with pytest.raises(CheckpointError, match="was closed"):
        checkpoint.tensor("output.weight")


def test_checkpoint_names_a_missing_tensor(tiny_llama: Path) -> None:
    with (
        open_checkpoint(tiny_llama) as checkpoint,
        pytest.raises(CheckpointError, match=r"llama\.gguf has no tensor blk\.9\.x"),
    ):
        checkpoint.tensor("blk.9.x")


def test_checkpoint_handle(tiny_llama: Path) -> None:
    with open_checkpoint(tiny_llama) as checkpoint:
        path, offset = checkpoint.handle("output_norm.weight")
        with path.open("rb") as file:
            file.seek(offset)
            raw = file.read(256)
        assert raw == checkpoint.tensor("output_norm.weight").data.numpy().tobytes()


@pytest.mark.skipif(sys.platform != "linux", reason="RssFile and MADV_DONTNEED are Linux's")
def test_checkpoint_release(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", vocab=8192, hidden=256, ffn=256, layers=1)
    with open_checkpoint(path) as checkpoint:
        checkpoint.prefetch()
        checkpoint.prefetch("output_norm.weight")
        tensor = checkpoint.tensor("token_embd.weight")
        before = resident_kib()
        total = tensor.data.sum(dtype=torch.int64).item()
        loaded = resident_kib()
        assert loaded - before > 7000
        checkpoint.release("token_embd.weight")
        assert resident_kib() < loaded - 7000
        assert tensor.data.sum(dtype=torch.int64).item() == total
        for name in checkpoint.tensors:
            checkpoint.release(name)


def test_checkpoint_never_writes_the_file(tiny_llama: Path, tmp_path: Path) -> None:
    copy = tmp_path / "m.gguf"
    copy.write_bytes(tiny_llama.read_bytes())
    with open_checkpoint(copy) as checkpoint:
        checkpoint.tensor("output.weight").data.fill_(7)
    assert copy.read_bytes() == tiny_llama.read_bytes()


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_open_checkpoint_finds_all_parts(opened: int, tmp_path: Path) -> None:
    paths = split_gguf(tmp_path)
    with open_checkpoint(paths[opened]) as checkpoint:
        assert list(checkpoint.tensors) == ["t0", "t1", "t2"]
        assert [file.path for file in checkpoint.files] == paths
        for index in range(3):
            values = checkpoint.tensor(f"t{index}").data.view(torch.float32)
            assert values.eq(index).all()
            assert checkpoint.handle(f"t{index}")[0] == paths[index]


def test_open_checkpoint_names_a_missing_part(tmp_path: Path) -> None:
    paths = split_gguf(tmp_path)
    paths[1].unlink()
    message = r"one of 3 parts, and m-00002-of-00003\.gguf is missing beside it"
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(paths[2])


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"no": 0}, r"m-00003-of-00003\.gguf says it is part 1"),
        ({"count": 4}, r"is one of 4 parts, but 3 were found"),
    ],
)
def test_open_checkpoint_checks_parts(split: dict[str, int], message: str, tmp_path: Path) -> None:
    paths = split_gguf(tmp_path, **split)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(paths[0])


def test_open_checkpoint_refuses_a_renamed_part(tmp_path: Path) -> None:
    renamed = split_gguf(tmp_path)[0].rename(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match=r"one of 3 parts.*named like model-00001-of-00003"):
        open_checkpoint(renamed)


def test_open_checkpoint_refuses_a_strange_part(tmp_path: Path) -> None:
    paths = split_gguf(tmp_path)
    paths[1].write_bytes(paths[0].read_bytes())
    with pytest.raises(CheckpointError, match=r"00002-of-00003\.gguf repeats tensor t0"):
        open_checkpoint(paths[0])


WEIGHTS = {
    "model.norm.weight": torch.arange(8, dtype=torch.bfloat16),
    "lm_head.weight": torch.arange(32, dtype=torch.float32).view(4, 8),
    "half": torch.ones(2, 3, 4, dtype=torch.float16),
    "scalar": torch.tensor(2.5),
    "index": torch.tensor([1, 2, 3]),
}


def test_open_checkpoint_reads_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(WEIGHTS, path, metadata={"format": "pt"})
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for opened in (path, tmp_path):
        with open_checkpoint(opened) as checkpoint:
            assert checkpoint.kind == "safetensors"
            assert checkpoint.config["model_type"] == "llama"
            assert checkpoint.meta.str("format") == "pt"
            assert set(checkpoint.tensors) == set(WEIGHTS)
            assert checkpoint.tensors["scalar"].shape == (1,)
            assert checkpoint.tensors["model.norm.weight"].format.name == "BF16"
            assert checkpoint.tensors["index"].format.name == "I64"
            for name, weight in WEIGHTS.items():
                data = checkpoint.tensor(name).data.contiguous().view(weight.dtype)
                assert data.flatten().equal(weight.flatten())


def test_open_checkpoint_reads_sharded_safetensors(tmp_path: Path) -> None:
    names = list(WEIGHTS)
    shards = {"a.safetensors": names[:2], "b.safetensors": names[2:]}
    for file, held in shards.items():
        save_file({name: WEIGHTS[name] for name in held}, tmp_path / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with open_checkpoint(tmp_path) as checkpoint:
        assert set(checkpoint.tensors) == set(WEIGHTS)
        assert checkpoint.config == {}

    index.write_text(json.dumps({"weight_map": weight_map | {"more": "b.safetensors"}}))
    with pytest.raises(CheckpointError, match="no file holds more"):
        open_checkpoint(tmp_path)
    index.write_text(json.dumps({"weight_map": weight_map | {"more": "../b.safetensors"}}))
    with pytest.raises(CheckpointError, match="outside its directory"):
        open_checkpoint(tmp_path)
    index.write_text("{")
    with pytest.raises(CheckpointError, match="not readable JSON"):
        open_checkpoint(tmp_path)
    index.write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks b\.safetensors, named by"):
        open_checkpoint(tmp_path)


def safetensors(header: object, data: int = 64) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return pack("<Q", len(raw)) + raw + bytes(data)


def f32(shape: list[int], start: int, stop: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


BROKEN: dict[str, tuple[bytes, type[Exception], str]] = {
    "header length": (pack("<Q", 999) + b"{" + bytes(991), CheckpointError, "past the end"),
    "json": (safetensors(b"{nonsense}"), CheckpointError, "not valid JSON"),
    "depth": (safetensors(b'{"a":' + b"[" * 100_000), CheckpointError, "not valid JSON"),
    "twice": (safetensors(b'{"a":1,"a":2}'), CheckpointError, "a name appears twice"),
    "no object": (safetensors({"a": 3}), CheckpointError, "tensor a is not described"),
    "no dtype": (safetensors({"a": {"shape": [1]}}), CheckpointError, "tensor a lacks a valid"),
    "negative": (safetensors({"a": f32([-8], 0, 32)}), CheckpointError, "tensor a lacks a valid"),
    "zero": (safetensors({"a": f32([0], 0, 0)}), CheckpointError, "tensor a has shape"),
    "size": (safetensors({"a": f32([4], 0, 32)}), CheckpointError, "tensor a .*has 32 bytes"),
    "huge": (
        safetensors({"a": f32([1 << 60], 0, 1 << 62)}),
        CheckpointError,
        "tensor a runs past the end",
    ),
    "overlap": (
        safetensors({"a": f32([8], 0, 32), "b": f32([8], 16, 48)}),
        CheckpointError,
        "b overlaps a",
    ),
    "fp8": (
        safetensors({"a": f32([8], 0, 8, "F8_E4M3")}),
        UnsupportedError,
        "a has type F8_E4M3, which is not read",
    ),
    "metadata": (safetensors({"__metadata__": {"a": 1}}), CheckpointError, "not a map of strings"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_open_checkpoint_refuses_safetensors(case: str, tmp_path: Path) -> None:
    raw, error, message = BROKEN[case]
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    with pytest.raises(error, match=message) as caught:
        open_checkpoint(path)
    assert type(caught.value) is error
    assert str(caught.value).startswith("m.safetensors")
