"""Options from records: a field of a config dataclass is a flag, a variable and a file key at once.

`max_ctx` is `--max-ctx`, `PYDFLASH_MAX_CTX` and `max_ctx` in the file of `--config`. Three sources,
one order: file < environment < flags. Resolved once, into frozen records.
"""

import dataclasses
import difflib
import inspect
import os
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter

from pydflash.errors import ConfigError

ENV_PREFIX = "PYDFLASH_"
_EPILOGUE = (
    "Every option of a record can also stand in the environment (--max-ctx as PYDFLASH_MAX_CTX) "
    "or in a TOML file (max_ctx = 4096); flags win over the environment, that over the file."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One field of a record, as the outside names it."""

    field: str
    flag: str
    type: Any
    default: Any
    help: str

    @property
    def key(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.key.upper()


def options_of(record: type) -> Iterator[Option]:
    """The options of a config dataclass and of the records within it, in order."""
    hints = get_type_hints(record)
    for field in dataclasses.fields(record):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            yield from options_of(typing.cast("type", kind))
            continue
        flag = field.metadata.get("flag") or "--" + field.name.replace("_", "-")
        yield Option(
            field=field.name,
            flag=flag,
            type=kind,
            default=field.default,
            help=field.metadata.get("help", ""),
        )


def configured(**records: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a verb the options of `records`; it is called with one built record per keyword."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        options = {option.key: option for r in records.values() for option in options_of(r)}

        def verb(*args: Any, **kwargs: Any) -> Any:
            flags = {key: kwargs.pop(key) for key in options if kwargs.get(key) is not None}
            for key in options:
                kwargs.pop(key, None)
            file = kwargs.pop("config", None) or os.environ.get(ENV_PREFIX + "CONFIG")
            given = gather(options, flags, os.environ, Path(file) if file else None)
            built = {name: build(record, given) for name, record in records.items()}
            return function(*args, **kwargs, **built)

        signature = _signature(function, records)
        verb.__signature__ = signature  # type: ignore[attr-defined]
        verb.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        verb.__name__, verb.__module__ = function.__name__, function.__module__
        verb.__doc__ = f"{inspect.getdoc(function)}\n\n{_EPILOGUE}"
        return verb

    return decorate


def gather(
    options: Mapping[str, Option],
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Path | None,
) -> dict[str, Any]:
    """Values by option key from the three sources, later ones winning. Raises ConfigError."""
    given: dict[str, Any] = {}
    for key, value in (_read_file(file) if file else {}).items():
        if key not in options:
            close = difflib.get_close_matches(key, options, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{file}: {key} is not an option{hint}")
        given[key] = convert(options[key].type, value, f"{key} in {file}")
    for key, option in options.items():
        if (text := environment.get(option.variable)) is not None:
            given[key] = convert(option.type, text, option.variable)
    return given | {key: convert(options[key].type, flags[key], key) for key in flags}


def build(record: type, given: Mapping[str, Any]) -> Any:
    """The record, its nested records too, from values by option key; defaults for the rest."""
    hints = get_type_hints(record)
    own = {option.field: option for option in options_of(record)}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        if dataclasses.is_dataclass(hints[field.name]):
            values[field.name] = build(hints[field.name], given)
        elif own[field.name].key in given:
            values[field.name] = given[own[field.name].key]
    return record(**values)


def convert(kind: Any, value: Any, where: str) -> Any:
    """A value of a file, a variable's text or a parsed flag as the field's type; else ConfigError."""
    if isinstance(kind, types.UnionType):
        kind = next(member for member in get_args(kind) if member is not types.NoneType)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            choices = ", ".join(map(str, get_args(kind)))
            raise ConfigError(f"{where}: {value!r} is not one of {choices}")
        return value
    if get_origin(kind) is tuple:
        member = get_args(kind)[0]
        values = value if isinstance(value, list | tuple) else (value,)
        return tuple(convert(member, one, where) for one in values)
    if kind is bool:
        word = str(value).lower()
        if word in {"1", "true", "yes", "on"}:
            return True
        if word in {"0", "false", "no", "off", ""}:
            return False
        raise ConfigError(f"{where}: {value!r} is neither yes nor no")
    if isinstance(value, bool) or (kind is int and isinstance(value, float)):
        raise ConfigError(f"{where}: {value!r} is not {_article(kind)}")
    try:
        return kind(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {value!r} is not {_article(kind)}") from error


def _signature(function: Callable[..., Any], records: Mapping[str, type]) -> inspect.Signature:
    signature = inspect.signature(function)
    hints = get_type_hints(function, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in signature.parameters.items()
        if name not in records
    ]
    for order, (name, record) in enumerate(records.items()):
        group = Group(f"{name.capitalize()} options", sort_key=order + 1)
        parameters += [_parameter(option, group) for option in options_of(record)]
    note = Parameter(name="--config", help="TOML file of options")
    parameters.append(_keyword("config", Annotated[str | None, note]))
    return inspect.Signature(parameters)


def _parameter(option: Option, group: Group) -> inspect.Parameter:
    kind = option.type
    if get_origin(kind) is tuple:
        kind = list[get_args(kind)[0]]  # type: ignore[misc]
    shown = option.default not in (None, (), "") and option.type is not bool
    help_text = f"{option.help} [default: {option.default}]" if shown else option.help
    note = Parameter(name=option.flag, help=help_text, group=group, negative="", show_default=False)
    return _keyword(option.key, Annotated[kind | None, note])


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _read_file(file: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the options file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    flat: dict[str, Any] = {}
    for key, value in table.items():  # tables only group keys for the reader
        flat |= value if isinstance(value, dict) else {key: value}
    return {key.replace("-", "_"): value for key, value in flat.items()}


def _article(kind: Any) -> str:
    return {int: "a whole number", float: "a number"}.get(kind, f"a {kind.__name__}")
