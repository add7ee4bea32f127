"""cli.options: records become options; file < environment < flags."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from pydflash.cli.main import VERBS
from pydflash.cli.options import build, configured, convert, gather, options_of
from pydflash.cli.sampling import SamplingFlags
from pydflash.config import EngineConfig, option
from pydflash.errors import ConfigError
from pydflash.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    max_ctx: int = option(0, "context")
    kind: Literal["a", "b"] = option("a", "kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    temperature: float = option(0.5, "heat", flag="--temp")
    stop: tuple[str, ...] = option((), "stops")
    seed: int | None = option(None, "seed")
    loud: bool = option(False, "noise")


OPTIONS = {o.key: o for o in options_of(Outer)}


def test_options_of_names_flags_and_variables() -> None:
    named = [(o.flag, o.variable) for o in options_of(Outer)]
    assert named[:3] == [
        ("--max-ctx", "PYDFLASH_MAX_CTX"),
        ("--kind", "PYDFLASH_KIND"),
        ("--temp", "PYDFLASH_TEMP"),
    ]


@pytest.mark.parametrize("record", [EngineConfig, SamplingFlags])
def test_every_option_is_documented_and_unique(record: type) -> None:
    options = list(options_of(record))
    assert all(o.help for o in options)
    assert len({o.key for o in options}) == len(options)
    assert build(record, {}) == record()


def test_gather_lets_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text('max-ctx = 1\nkind = "b"\n[sampling]\ntemp = 1\nstop = ["x"]\nseed = 3\n')
    environment = {"PYDFLASH_MAX_CTX": "2", "PYDFLASH_SEED": "4", "PYDFLASH_LOUD": "yes"}
    given = gather(OPTIONS, {"max_ctx": 3}, environment, file)
    assert build(Outer, given) == Outer(
        inner=Inner(max_ctx=3, kind="b"), temperature=1.0, stop=("x",), seed=4, loud=True
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_ctxx = 1", "max_ctxx is not an option; did you mean max_ctx?"),
        ("max_ctx = 1.5", "max_ctx in .*: 1.5 is not a whole number"),
        ("max_ctx = true", "True is not a whole number"),
        ("kind = 'c'", "'c' is not one of a, b"),
        ("kind = [", "is not valid TOML"),
    ],
)
def test_gather_refuses_a_wrong_file(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "options.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")):
        gather(OPTIONS, {}, {}, file)


def test_gather_refuses_a_missing_file_and_a_wrong_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the options file"):
        gather(OPTIONS, {}, {}, tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="PYDFLASH_MAX_CTX: 'x' is not a whole number"):
        gather(OPTIONS, {}, {"PYDFLASH_MAX_CTX": "x"}, None)


@pytest.mark.parametrize(("word", "value"), [("1", True), ("off", False), ("", False)])
def test_convert_reads_yes_and_no(word: str, value: bool) -> None:
    assert convert(bool, word, "x") is value
    with pytest.raises(ConfigError, match="neither yes nor no"):
        convert(bool, "maybe", "x")


def test_configured_builds_records_for_the_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    @configured(outer=Outer)
    def verb(word: str, *, outer: Outer) -> None:
        """Say a word."""
        seen.append((word, outer))

    from cyclopts import App

    app = App(result_action="return_value")
    app.default(verb)
    monkeypatch.setenv("PYDFLASH_SEED", "9")
    app(["hi", "--temp", "2", "--stop", "a", "--stop", "b", "--loud"], exit_on_error=False)
    assert seen == [("hi", Outer(temperature=2.0, stop=("a", "b"), seed=9, loud=True))]


def test_sampling_flags_say_what_is_out_of_range() -> None:
    assert SamplingFlags(max_tokens=0).params().max_tokens is None
    with pytest.raises(ConfigError, match=r"top_p must be in \(0, 1\]"):
        SamplingFlags(top_p=0.0).params()


def test_every_sampling_parameter_has_a_flag() -> None:
    flags = {field.name for field in dataclasses.fields(SamplingFlags)}
    assert {field.name for field in dataclasses.fields(SamplingParams)} - flags == {"choice"}
    assert SamplingFlags(max_tokens=0).params() == SamplingParams()


def test_sampling_flags_read_biases() -> None:
    params = SamplingFlags(logit_bias=("13=-5", "7=0.5")).params()
    assert dict(params.logit_bias) == {13: -5.0, 7: 0.5}


@pytest.mark.parametrize("text", ["13", "=1", "x=1", "1=x", "1=nan", "-1=2"])
def test_sampling_flags_refuse_what_is_no_bias(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--logit-bias {text} is not ID=VALUE"):
        SamplingFlags(logit_bias=(text,)).params()


def test_convert_reads_the_members_of_a_list() -> None:
    assert convert(tuple[int, ...], ["1", 2], "x") == (1, 2)
    assert convert(tuple[int, ...], "3", "x") == (3,)
    with pytest.raises(ConfigError, match="x: 'a' is not a whole number"):
        convert(tuple[int, ...], ["a"], "x")


def test_verbs_point_at_modules_that_exist() -> None:
    from importlib.util import find_spec

    missing = [v for v, (target, _) in VERBS.items() if find_spec(target.split(":")[0]) is None]
    assert missing == []
