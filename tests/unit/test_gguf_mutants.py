"""1,000 damaged headers: each is read or refused within a second, in a process that owns 1 GB."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# No torch here: its libraries alone map more than the limit.
_PROGRAM = """
import json, resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from pathlib import Path
from pydflash.checkpoint.gguf_header import read_header
from pydflash.checkpoint.gguf_values import decode_value
from pydflash.errors import PydflashError
from tests.tiny.mutants import mutants

raw = Path(sys.argv[1]).read_bytes()
limit = read_header(raw, "m").data_start
refused, slowest, sentences = 0, 0.0, set()
for data in mutants(raw, 1000, header_bytes=limit):
    start = time.perf_counter()
    try:
        header = read_header(data, "m.gguf")
        for entry in header.entries.values():
            decode_value(data, entry, "m.gguf")
    except PydflashError as error:
        refused += 1
        assert len(str(error)) < 600 and "\\n" not in str(error), str(error)
        sentences.add(str(error)[:30])
    slowest = max(slowest, time.perf_counter() - start)
assert "torch" not in sys.modules
print(json.dumps({"refused": refused, "slowest": slowest, "kinds": len(sentences)}))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="RLIMIT_AS is how Unix bounds memory")
def test_read_header_survives_mutants(tiny_llama: Path) -> None:
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROGRAM, str(tiny_llama)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=root,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["slowest"] < 1
    # Damage that hides in a text or a number is no damage to the format, so some files are read.
    assert 300 < result["refused"] < 1000
    assert result["kinds"] > 5
