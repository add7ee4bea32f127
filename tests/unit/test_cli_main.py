"""cli.main: verbs, exit codes, one-line errors, and that help never imports torch."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pydflash
from pydflash.cli import main as front
from pydflash.cli.main import VERBS, main
from pydflash.errors import ConfigError, EngineError


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    class App:
        def __call__(self, *args: object, **kwargs: object) -> None:
            raise error

    monkeypatch.setattr(front, "build_app", App)


def test_import_pydflash_is_light() -> None:
    heavy = "[m for m in ('torch', 'numpy', 'rich', 'huggingface_hub') if m in sys.modules]"
    assert python(f"import sys, pydflash; print({heavy})").strip() == "[]"


def test_pydflash_names_are_lazy() -> None:
    assert pydflash.SamplingParams(temperature=0.5).temperature == 0.5
    assert pydflash.__version__
    assert {"LLM", "load"} <= set(dir(pydflash))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pydflash.nothing


@pytest.mark.parametrize("words", [[], *([verb] for verb in sorted(VERBS))], ids=str)
def test_help_imports_no_torch(words: list[str]) -> None:
    out = python(
        "import sys\nfrom pydflash.cli.main import main\n"
        f"code = main({[*words, '--help']!r})\n"
        "assert code == 0, code\nassert 'torch' not in sys.modules, 'torch was imported'"
    )
    assert out.startswith("Usage: pydflash")


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in VERBS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pydflash {pydflash.__version__}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pul"], "error: pul is not a command of pydflash: did you mean pull?"),
        (["xyzzy"], "error: xyzzy is not a command of pydflash: there are run, chat"),
        (["pull", "--forse"], "error: Unknown option: --forse. Did you mean --force?"),
        (
            ["run", "--top-k", "many", "hi"],
            'error: Invalid value for --top-k: unable to convert "m',
        ),
        (["rm"], "error: name the models to delete"),
    ],
)
def test_wrong_words_exit_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(says)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ConfigError("no\n  such thing"), 2, "error: no such thing\n"),
        (EngineError("it stopped"), 1, "error: it stopped\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (SystemExit(3), 3, ""),
    ],
)
def test_errors_become_exit_codes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    says: str,
) -> None:
    raising(monkeypatch, error)
    assert main(["models"]) == code
    assert capsys.readouterr().err == says


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, EngineError("it stopped"))
    monkeypatch.setenv("PYDFLASH_DEBUG", "1")
    assert main(["models"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_warnings_are_one_line_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class App:
        def __call__(self, *args: object, **kwargs: object) -> None:
            logging.getLogger("pydflash.models.load").info("not worth a line")
            logging.getLogger("pydflash.models.load").warning("m.gguf: keys %s", "a, b")

    monkeypatch.setattr(front, "build_app", App)
    for _ in range(2):
        assert main(["models"]) == 0
        assert capsys.readouterr() == ("", "warning: m.gguf: keys a, b\n")


def test_closed_pipe_is_quiet(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "pydflash", "models", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYDFLASH_CACHE": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_models_and_rm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import json

    from pydflash.catalog import cache

    monkeypatch.setenv("PYDFLASH_CACHE", str(tmp_path))
    home = cache.models_dir() / "acme--m"
    home.mkdir(parents=True)
    (home / "m.gguf").write_bytes(b"GGUF")
    cache.write_note(home, "hf:acme/m", (cache.StoredFile(name="m.gguf", bytes=4, sha256=""),))
    assert main(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert rows["acme--m"]["path"] == str(home / "m.gguf")
    assert rows["smollm2-135m"]["path"] is None
    assert main(["models"]) == 0
    assert "acme--m" in capsys.readouterr().out
    assert main(["rm", "acme--m"]) == 0
    assert capsys.readouterr().out.startswith("removed acme--m")
    assert main(["rm", "acme--m"]) == 1


def test_devices_json(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert main(["devices", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["threads"] >= 1
    assert facts["devices"][0]["name"] == "cpu"
    assert any(line.endswith("chosen") for line in facts["devices"][0]["kernels"])
    assert main(["devices", "--ops"]) == 0
    assert "ref: " in capsys.readouterr().out
