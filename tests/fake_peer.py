"""FakePeer: stands for the Python of an environment with llama_cpp, where its worker is asked for."""

import json
import sys
from pathlib import Path
from typing import Any

_WORKER = """#!{python}
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    open({log!r}, "a").write(line)
    if asked["do"] == "load":
        told = {{"vocab_size": 320, "version": "peer 1"}}
    elif asked["do"] == "has_gpu":
        told = {{"has_gpu": {has_gpu}}}
    elif asked["do"] == "step":
        told = {{"seconds": [0.5] * asked["repeats"]}}
    elif asked["do"] == "answer":
        told = {{"tokens": [1] * asked["count"], "prefill_s": 1.0, "decode_s": 100.0 * asked["count"]}}
    elif asked["do"] == "die":
        sys.exit(3)
    elif asked["do"] == "fail":
        print(json.dumps({{"ok": False, "error": "no such thing"}}), flush=True)
        continue
    else:
        told = {{"seconds": 0.25, "steps_s": 0.25}}
    print(json.dumps({{"ok": True, **told}}), flush=True)
{more}
"""


class FakePeer:
    """An executable `python` in `folder`. By its word steps take half a second, tokens of answers a
    hundred seconds, all else a quarter.

    `more`: what it does when it was asked enough.
    """

    def __init__(self, folder: Path, *, has_gpu: bool = False, more: str = "") -> None:
        self._log = folder / "asked"
        script = folder / "python"
        script.write_text(
            _WORKER.format(python=sys.executable, log=str(self._log), has_gpu=has_gpu, more=more)
        )
        script.chmod(0o755)
        self.python = str(script)

    def asked(self) -> list[dict[str, Any]]:
        """Every request so far."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]
