"""Record llama.cpp's quantisation error on fixed tensors, for tests/unit/test_encode.py to compare with.

Run: pip install llama-cpp-python, then
    python tests/oracles/kquant_golden.py tests/golden/kquant_rmse.json [--model FILE.gguf]
Needs numpy, and `gguf` with --model: a model in Q4_1, of which a few blocks are kept in the record. No
importance matrix. What is recorded is the root mean square error of `ggml_quantize_chunk`, read back by
libggml's own decoder.
"""

import argparse
import base64
import ctypes
import json
from importlib import metadata
from pathlib import Path

import numpy as np

TYPES = {"Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
SIZES = {"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
ROWS, COLS = 32, 1024
MODEL_BLOCKS = 256
MODEL_TENSORS = (
    "blk.0.attn_q.weight",
    "blk.4.ffn_down.weight",
    "blk.11.attn_v.weight",
    "blk.20.ffn_gate.weight",
    "blk.29.attn_output.weight",
)


def made_tensors() -> dict[str, np.ndarray]:
    """The seeded tensors, f32 [32, 1024] each."""
    shape = (ROWS, COLS)
    rng = np.random.default_rng(20240607)
    normal = rng.standard_normal(shape) * 0.02
    laplace = rng.laplace(0, 0.015, shape)
    uniform = rng.uniform(-0.05, 0.05, shape)
    outliers = rng.standard_normal(shape) * 0.02
    outliers[rng.random(shape) < 0.003] *= 12
    columns = rng.standard_normal(shape) * np.exp(rng.standard_normal(COLS) * 0.7) * 0.02
    rows = rng.standard_normal(shape) * np.exp(rng.standard_normal((ROWS, 1))) * 0.02
    shifted = rng.standard_normal(shape) * 0.02 + 0.03
    student = rng.standard_t(4, shape) * 0.01
    made = {
        "normal": normal,
        "laplace": laplace,
        "uniform": uniform,
        "outliers": outliers,
        "columns": columns,
        "rows": rows,
        "shifted": shifted,
        "student": student,
    }
    return {name: values.astype(np.float32) for name, values in made.items()}


def model_bytes(path: Path) -> dict[str, bytes]:
    """The first 256 blocks of some Q4_1 tensors of a model, as stored."""
    from gguf import GGUFReader

    found = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    picked = {}
    for name in MODEL_TENSORS:
        if found[name].tensor_type.name != "Q4_1":
            raise SystemExit(f"{name} of {path} is not Q4_1")
        picked[name] = found[name].data.tobytes()[: MODEL_BLOCKS * 20]
    return picked


def decode_q4_1(stored: bytes) -> np.ndarray:
    """f32 [16, 512]: half-float scale and minimum, then 16 bytes of low and high nibbles."""
    blocks = np.frombuffer(stored, dtype=np.uint8).reshape(-1, 20)
    scale, low = blocks[:, :4].copy().view(np.float16).astype(np.float32).T[..., None]
    codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return (scale * codes + low).reshape(-1, 512)


def error(lib: ctypes.CDLL, values: np.ndarray, name: str) -> float:
    rows, cols = values.shape
    values = np.ascontiguousarray(values)
    packed = np.zeros(rows * cols // 256 * SIZES[name], dtype=np.uint8)
    back = np.zeros_like(values)
    as_floats = ctypes.POINTER(ctypes.c_float)
    lib.ggml_quantize_chunk(
        TYPES[name],
        values.ctypes.data_as(as_floats),
        packed.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int64(0),
        ctypes.c_int64(rows),
        ctypes.c_int64(cols),
        None,
    )
    decode = getattr(lib, f"dequantize_row_{name.lower()}".replace("_k", "_K"))
    decode(
        packed.ctypes.data_as(ctypes.c_void_p),
        back.ctypes.data_as(as_floats),
        ctypes.c_int64(rows * cols),
    )
    return float(np.sqrt(np.mean((back.astype(np.float64) - values) ** 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, help="a GGUF of SmolLM2-135M-Instruct")
    args = parser.parse_args()
    import llama_cpp  # here, so that the tests can import the tensors without it

    folder = Path(llama_cpp.__file__).parent / "lib"
    lib = ctypes.CDLL(str(next(folder.glob("libggml-base.*"))))
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    made = {n: {t: error(lib, v, t) for t in TYPES} for n, v in made_tensors().items()}
    record = {
        "llama_cpp_python": metadata.version("llama-cpp-python"),
        "numpy": np.__version__,
        "made": made,
    }
    if args.model:
        record["model"] = args.model.name
        record["model_tensors"] = {}
        for name, stored in model_bytes(args.model).items():
            values = decode_q4_1(stored)
            found: dict[str, object] = {t: error(lib, values, t) for t in TYPES}
            found["q4_1"] = base64.b64encode(stored).decode()
            record["model_tensors"][name] = found
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
