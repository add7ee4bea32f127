"""The command line's front door: the table of verbs, and the one place where errors become exit codes.

Verbs are named by import string and loaded when called, so that `pydflash --help` is quick and
never imports torch. Exit codes: 0 done, 1 failed, 2 wrong options, 130 interrupted.
"""

import difflib
import io
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from pydflash import log
from pydflash.errors import ConfigError, PydflashError

# verb: (where it is, what it does)
VERBS = {
    "run": ("pydflash.cli.run:run", "Answer one prompt, given or piped in."),
    "chat": ("pydflash.cli.chat:chat", "Talk with a model."),
    "serve": ("pydflash.cli.serve:serve", "Serve a model over HTTP."),
    "pull": ("pydflash.cli.pull:pull", "Fetch a model into the cache."),
    "models": ("pydflash.cli.models:models", "List the catalogue and what is on this machine."),
    "rm": ("pydflash.cli.rm:rm", "Delete a model from the cache."),
    "inspect": ("pydflash.cli.inspect:inspect", "Describe a model file."),
    "quantize": ("pydflash.cli.quantize:quantize", "Rewrite a model file in another format."),
    "convert": ("pydflash.cli.convert:convert", "Convert a drafter between file formats."),
    "train": ("pydflash.cli.train:train", "Train a drafter for a model."),
    "devices": ("pydflash.cli.devices:devices", "List the devices of this machine."),
    "bench": ("pydflash.cli.bench:app", "Measure steps, speed and drafts."),
    "trace": ("pydflash.cli.trace:trace", "Show an answer round by round: drafts and costs."),
}
_INTERRUPTED = 130


def build_app() -> App:
    """The application with every verb, none of them imported."""
    app = App(
        name="pydflash",
        help="Run GGUF language models fast and exactly, on the CPU you already have; GPUs are to come.",
        help_format="plaintext",  # the markdown renderer costs 50 ms of every --help
        version=_version,
        suppress_keyboard_interrupt=False,
    )
    for verb, (target, summary) in VERBS.items():
        app.command(target, name=verb, help=summary)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "replace":
            stream.reconfigure(errors="replace")  # what is no text becomes "?", not a crash
    log.set_up()
    try:
        _check_verb(words)
        result = build_app()(
            words, exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        _say("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`| head`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except CycloptsError as error:
        _debug()
        _say(f"error: {_one_line(error)}")
        return 2
    except PydflashError as error:
        _debug()
        _say(f"error: {_one_line(error)}")
        return 2 if isinstance(error, ConfigError) else 1


def _check_verb(words: list[str]) -> None:
    # Before the CLI library sees it: its own suggestion would import every verb.
    if words and not words[0].startswith("-") and words[0] not in VERBS:
        close = difflib.get_close_matches(words[0], VERBS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(VERBS)}"
        raise ConfigError(f"{words[0]} is not a command of pydflash: {hint}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _debug() -> None:
    if os.environ.get("PYDFLASH_DEBUG", "") not in {"", "0"}:
        import traceback

        traceback.print_exc()


def _version() -> str:
    from importlib.metadata import version

    return f"pydflash {version('pydflash')}"
