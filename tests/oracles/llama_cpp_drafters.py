"""Does llama.cpp load the drafters we write? Needs an environment with llama-cpp-python >= 0.3.36:

    python -m tests.oracles.llama_cpp_drafters write DIR     (here)
    python tests/oracles/llama_cpp_drafters.py load DIR      (there)

One line per drafter that llama.cpp's dialect can hold; exit code 1 if one is refused.
"""

import ctypes
import sys
from pathlib import Path


def write(directory: Path) -> None:
    """Tiny drafters of every kind, each in its own file."""
    from pydflash.checkpoint.files import open_checkpoint
    from pydflash.draft.write import write_gguf
    from pydflash.errors import UnsupportedError
    from tests.tiny.draft import CASES
    from tests.tiny.gguf import tiny_gguf

    directory.mkdir(parents=True, exist_ok=True)
    target = open_checkpoint(tiny_gguf(directory / "target.gguf")).meta
    for name, case in CASES.items():
        path = directory / f"{name}.gguf"
        try:
            write_gguf(case.config, case.tensors(), path, dialect="dflash", tokenizer=target)
        except UnsupportedError as error:
            print(f"{name}: not written: {error}")


def load(directory: Path) -> int:
    """Load every file with llama.cpp; the number it refuses."""
    import llama_cpp

    said: list[str] = []
    keep = llama_cpp.llama_log_callback(lambda _, text, __: said.append(text.decode("utf-8")))
    llama_cpp.llama_log_set(keep, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    refused = 0
    for path in sorted(directory.glob("*.gguf")):
        said.clear()
        params = llama_cpp.llama_model_default_params()
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        errors = [line.strip() for line in said if "error" in line]
        refused += not model
        print(f"{path.stem}: {'loads' if model else 'refused: ' + '; '.join(errors)}")
    return refused


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        sys.exit(bool(load(Path(sys.argv[2]))))
