"""Our reader against the official `gguf.GGUFReader`, and `write_gguf` against both."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

from pydflash.checkpoint.files import TensorInfo, open_checkpoint
from pydflash.checkpoint.gguf_values import ValueType
from pydflash.checkpoint.writer import write_gguf
from pydflash.errors import CapacityError, CheckpointError, ConfigError
from pydflash.quant.formats import FORMATS
from pydflash.quant.tensor import QuantTensor
from tests.tiny.gguf import tiny_gguf

EVERY_TYPE: dict[str, tuple[Any, GGUFValueType]] = {
    "t.u8": (200, GGUFValueType.UINT8),
    "t.i8": (-100, GGUFValueType.INT8),
    "t.u16": (60000, GGUFValueType.UINT16),
    "t.i16": (-30000, GGUFValueType.INT16),
    "t.u32": (4_000_000_000, GGUFValueType.UINT32),
    "t.i32": (-2_000_000_000, GGUFValueType.INT32),
    "t.u64": (1 << 63, GGUFValueType.UINT64),
    "t.i64": (-(1 << 62), GGUFValueType.INT64),
    "t.f32": (math.pi, GGUFValueType.FLOAT32),
    "t.f64": (math.pi, GGUFValueType.FLOAT64),
    "t.yes": (True, GGUFValueType.BOOL),
    "t.no": (False, GGUFValueType.BOOL),
    "t.text": ("naïve ☕ \n\0 text", GGUFValueType.STRING),
}
EVERY_ARRAY: dict[str, tuple[list[Any], GGUFValueType]] = {
    "a.u8": ([0, 255], GGUFValueType.UINT8),
    "a.i16": ([-5, 6, 7], GGUFValueType.INT16),
    "a.u64": ([1 << 40], GGUFValueType.UINT64),
    "a.f32": ([0.5, -1e30, math.inf], GGUFValueType.FLOAT32),
    "a.f64": ([math.tau], GGUFValueType.FLOAT64),
    "a.bool": ([True, False, True], GGUFValueType.BOOL),
    "a.text": (["", "é", "three"], GGUFValueType.STRING),
}


@pytest.fixture
def every_type(tmp_path: Path) -> Path:
    path = tmp_path / "types.gguf"
    writer = GGUFWriter(path, "llama")
    for name, (value, kind) in EVERY_TYPE.items():
        writer.add_key_value(name, value, kind)
    for name, (values, kind) in EVERY_ARRAY.items():
        writer.add_key_value(name, values, GGUFValueType.ARRAY, kind)
    writer.add_key_value("a.nested", [[1, 2], [3]], GGUFValueType.ARRAY)
    for name, kind in (
        ("f16", np.float16),
        ("f64", np.float64),
        ("i8", np.int8),
        ("i32", np.int32),
    ):
        writer.add_tensor(name, np.arange(24).reshape(2, 3, 4).astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assert_equal_to_official(path: Path) -> None:
    official = GGUFReader(path)
    with open_checkpoint(path) as ours:
        fields = {k: f for k, f in official.fields.items() if not k.startswith("GGUF.")}
        assert ours.meta.keys() == list(fields)
        for key, field in fields.items():
            assert ours.meta.get(key) == field.contents(), key
            assert ours.meta.entry(key).type == field.types[0]
        assert list(ours.tensors) == [t.name for t in official.tensors]
        for tensor in official.tensors:
            info = ours.tensors[tensor.name]
            assert info.shape == tuple(int(n) for n in tensor.shape[::-1])
            assert info.format.ggml_id == tensor.tensor_type
            assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
            data = ours.tensor(tensor.name).data
            assert data.numpy().tobytes() == tensor.data.tobytes()


def test_formats_equal_official() -> None:
    from gguf import GGML_QUANT_SIZES

    for layout in FORMATS.values():
        if layout.ggml_id in set(GGMLQuantizationType):
            kind = GGMLQuantizationType(layout.ggml_id)
            assert kind.name == layout.name
            assert GGML_QUANT_SIZES[kind] == (layout.block, layout.block_bytes)


def test_open_checkpoint_equals_official(tiny_llama: Path, tiny_qwen3: Path) -> None:
    assert_equal_to_official(tiny_llama)
    assert_equal_to_official(tiny_qwen3)


def test_open_checkpoint_equals_official_in_every_type(every_type: Path) -> None:
    with open_checkpoint(every_type) as ours:
        assert ours.meta.get("a.nested") == [[1, 2], [3]]
        for name, (value, kind) in (EVERY_TYPE | EVERY_ARRAY).items():
            want = np.float32(value).tolist() if kind == GGUFValueType.FLOAT32 else value
            assert ours.meta.get(name) == want
    official = GGUFReader(every_type)
    with open_checkpoint(every_type) as ours:
        for name, (_, kind) in EVERY_TYPE.items():
            assert ours.meta.get(name) == official.fields[name].contents()
            assert ours.meta.entry(name).type == kind
        for tensor in official.tensors:
            assert ours.tensor(tensor.name).data.numpy().tobytes() == tensor.data.tobytes()


@pytest.mark.parametrize("layout", ["Q4_1", "Q6_K", "IQ4_XS", "BF16", "MXFP4"])
def test_open_checkpoint_equals_official_in_blocks(layout: str, tmp_path: Path) -> None:
    assert_equal_to_official(
        tiny_gguf(tmp_path / "m.gguf", hidden=256, head_dim=64, ffn=256, layers=1, formats=layout)
    )


@pytest.mark.model
def test_open_checkpoint_equals_official_on_smollm2(smollm2: Path) -> None:
    assert_equal_to_official(smollm2)


def test_write_gguf_copies_exactly(every_type: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    with open_checkpoint(every_type) as source:
        tensors = [(t, lambda n=name: source.tensor(n)) for name, t in source.tensors.items()]
        assert write_gguf(copy, meta=source.meta, tensors=tensors) == copy
        with open_checkpoint(copy) as written:
            assert written.meta.keys() == source.meta.keys()
            for key in source.meta:
                assert written.meta.raw(key) == source.meta.raw(key)
                assert written.meta.entry(key).type is source.meta.entry(key).type
            for name in source.tensors:
                assert written.tensors[name].shape == source.tensors[name].shape
                assert written.tensor(name).data.equal(source.tensor(name).data)
    assert copy.read_bytes() == every_type.read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_write_gguf_overrides(tiny_llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    types = "tokenizer.ggml.token_type"
    overrides = {
        "general.file_type": 7,
        "general.name": None,
        types: [1, 3],
        "new.number": 3,
        "new.list": ["a"],
        "new.signed": [1, -1],
    }
    with open_checkpoint(tiny_llama) as source:
        write_gguf(path, meta=source.meta, tensors=[], overrides=overrides)
        before = source.meta.entry("general.file_type").type
        item = source.meta.entry(types).item
    with open_checkpoint(path) as written:
        assert written.meta.int("general.file_type") == 7
        assert written.meta.entry("general.file_type").type is before
        assert "general.name" not in written.meta
        assert written.meta.int("new.number") == 3
        assert written.meta.strs("new.list") == ["a"]
        assert written.meta.ints("new.signed") == [1, -1]
        assert written.meta.ints(types) == [1, 3]
        assert written.meta.entry(types).item is item is ValueType.INT32


def test_write_gguf_from_plain_values(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    values = {"general.architecture": "llama", "n": 3, "x": 0.5, "yes": True, "list": [1, 2]}
    write_gguf(path, meta=values, tensors=[])
    assert_equal_to_official(path)
    with open_checkpoint(path) as written:
        assert {key: written.meta.get(key) for key in written.meta} == values


def test_write_gguf_refuses_another_shape(tiny_llama: Path, tmp_path: Path) -> None:
    with open_checkpoint(tiny_llama) as source:
        info = source.tensors["output_norm.weight"]
        tensors = [(info, lambda: source.tensor("token_embd.weight"))]
        with pytest.raises(
            CheckpointError, match=r"output_norm\.weight was announced as F32 \[64\]"
        ):
            write_gguf(tmp_path / "m.gguf", meta=source.meta, tensors=tensors)
    assert not list(tmp_path.iterdir())


def test_write_gguf_refuses_a_full_disk(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = TensorInfo(name="w", shape=(1 << 46,), format=FORMATS["F32"], nbytes=1 << 48)

    def never() -> QuantTensor:
        raise AssertionError("asked for although there is no room")

    with pytest.raises(CapacityError, match=r"no space for .*268435488 MiB are needed, \d+ MiB"):
        write_gguf(tmp_path / "m.gguf", meta={}, tensors=[(huge, never)])

    with open_checkpoint(tiny_llama) as source:

        def full() -> QuantTensor:
            raise OSError(28, "No space left on device")

        tensors = [(source.tensors["output_norm.weight"], full)]
        with pytest.raises(CapacityError, match=r"no space for .*free some or write elsewhere"):
            write_gguf(tmp_path / "m.gguf", meta=source.meta, tensors=tensors)
    assert not list(tmp_path.iterdir())


def test_write_gguf_refuses_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written: No such file"):
        write_gguf(tmp_path / "none" / "m.gguf", meta={}, tensors=[])
