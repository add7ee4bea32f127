"""Meta: typed reads of a checkpoint's metadata that fail loudly, and know which keys nobody read.

`{arch}.` at the start of a key stands for the file's own architecture. Values are decoded on first ask.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar, overload

from pydflash.checkpoint.gguf_values import Buffer, Entry, ValueType, decode_value
from pydflash.errors import CheckpointError

T = TypeVar("T")
V = TypeVar("V")

_REQUIRED: Any = object()
_INTEGERS = frozenset(
    t for t in ValueType if t.name.removeprefix("U") in ("INT8", "INT16", "INT32", "INT64")
)
_FLOATS = frozenset({ValueType.FLOAT32, ValueType.FLOAT64})
_BOOLS = frozenset({ValueType.BOOL})
_STRINGS = frozenset({ValueType.STRING})


_KEEP_ITEMS = 4096  # a vocabulary is decoded for whoever asks: two copies of one cost megabytes


class Reader(Generic[V]):
    """Reads keys of one type. Without `default` a missing key is a CheckpointError."""

    def __init__(
        self, meta: "Meta", wanted: str, accepts: frozenset[ValueType], *, array: bool
    ) -> None:
        self._meta = meta
        self._wanted = wanted
        self._accepts = accepts
        self._array = array

    @overload
    def __call__(self, key: str) -> V: ...
    @overload
    def __call__(self, key: str, *, default: T) -> V | T: ...
    def __call__(self, key: str, *, default: Any = _REQUIRED) -> Any:
        entry = self._meta.find(key, required=default is _REQUIRED)
        if entry is None:
            return default
        kind = entry.item if self._array else entry.type
        if (entry.type is ValueType.ARRAY) is not self._array or (
            # An empty array is empty whatever it claims to hold.
            kind not in self._accepts and not (self._array and not entry.count)
        ):
            raise self._meta.wrong(entry, self._wanted)
        return self._meta.value(entry)


class Meta:
    """The metadata of the file called `name`. Reading a key marks it as consumed."""

    def __init__(self, name: str, buffer: Buffer, entries: Mapping[str, Entry]) -> None:
        self.name = name
        self._buffer = buffer
        self._entries = dict(entries)
        self._values: dict[str, Any] = {}
        self._consumed: set[str] = set()
        self.int = Reader[int](self, "an integer", _INTEGERS, array=False)
        self.float = Reader[float](self, "a float", _FLOATS, array=False)
        self.bool = Reader[bool](self, "a boolean", _BOOLS, array=False)
        self.str = Reader[str](self, "a string", _STRINGS, array=False)
        self.ints = Reader[list[int]](self, "an array of integers", _INTEGERS, array=True)
        self.floats = Reader[list[float]](self, "an array of floats", _FLOATS, array=True)
        self.bools = Reader[list[bool]](self, "an array of booleans", _BOOLS, array=True)
        self.strs = Reader[list[str]](self, "an array of strings", _STRINGS, array=True)

    @classmethod
    def from_values(cls, name: str, values: Mapping[str, object]) -> "Meta":
        """Metadata from plain Python values (tests, safetensors): ints are INT64, floats FLOAT64."""
        meta = cls(name, b"", {key: _entry_of(key, value) for key, value in values.items()})
        meta._values.update(values)
        return meta

    @property
    def arch(self) -> str:
        """`general.architecture`."""
        return self.str("general.architecture")

    def keys(self) -> list[str]:
        return list(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: str) -> bool:
        return self._expand(key) in self._entries

    def get(self, key: str) -> Any:
        """The value of any key, whatever its type; None when missing."""
        entry = self.find(key, required=False)
        return None if entry is None else self.value(entry)

    def entry(self, key: str) -> Entry:
        """Type and place of a key, without consuming it."""
        return self._entries[self._expand(key)]

    def raw(self, key: str) -> bytes | None:
        """The bytes of a value as the file stores them; None when it did not come from a GGUF file."""
        entry = self.entry(key)
        return bytes(self._buffer[entry.start : entry.stop]) if entry.stop else None

    def per_layer_int(
        self, key: str, layers: int, *, default: int | None = None
    ) -> tuple[int, ...]:
        """One integer per layer: a scalar counts for all of them, an array must have `layers` items."""
        return self._per_layer(key, layers, default, self.int, self.ints)

    def per_layer_float(
        self, key: str, layers: int, *, default: float | None = None
    ) -> tuple[float, ...]:
        return self._per_layer(key, layers, default, self.float, self.floats)

    def per_layer_bool(
        self, key: str, layers: int, *, default: bool | None = None
    ) -> tuple[bool, ...]:
        return self._per_layer(key, layers, default, self.bool, self.bools)

    def ignore(self, *patterns: str) -> None:
        """Count keys as read on purpose; `*` matches any run of characters."""
        for pattern in map(self._expand, patterns):
            self._consumed.update(key for key in self._entries if fnmatchcase(key, pattern))

    def unread(self) -> list[str]:
        """Keys of the architecture that nobody has read or ignored: settings that would be lost."""
        prefix = f"{self.arch}."
        return [k for k in self._entries if k.startswith(prefix) and k not in self._consumed]

    def find(self, key: str, *, required: bool) -> Entry | None:
        """Look a key up and mark it as consumed."""
        key = self._expand(key)
        self._consumed.add(key)
        entry = self._entries.get(key)
        if entry is None and required:
            raise CheckpointError(
                f"{self.name} lacks the metadata key {key}; fetch or convert the model again"
            )
        return entry

    def value(self, entry: Entry) -> Any:
        if entry.key in self._values:
            return self._values[entry.key]
        value = decode_value(self._buffer, entry, self.name)
        if entry.count <= _KEEP_ITEMS:
            self._values[entry.key] = value
        return value

    def wrong(self, entry: Entry, wanted: str) -> CheckpointError:
        found = entry.type.name
        if entry.item is not None:
            found = f"an array of {entry.count} {entry.item.name}"
        return CheckpointError(
            f"{self.name}: metadata key {entry.key} should be {wanted} but is {found}; "
            "fetch or convert the model again"
        )

    def _per_layer(
        self,
        key: str,
        layers: int,
        default: V | None,
        one: Reader[V],
        many: Reader[list[V]],
    ) -> tuple[V, ...]:
        entry = self.find(key, required=default is None)
        if entry is None:
            assert default is not None
            return (default,) * layers
        if entry.type is not ValueType.ARRAY:
            return (one(key),) * layers
        values = many(key)
        if len(values) != layers:
            raise self.wrong(entry, f"one value, or one for each of {layers} layers,")
        return tuple(values)

    def _expand(self, key: str) -> str:
        return self.arch + key[6:] if key.startswith("{arch}") else key


def _entry_of(key: str, value: object) -> Entry:
    kind, item, count = _type_of(value), None, 1
    if isinstance(value, (list, tuple)):
        item = _type_of(value[0]) if value else ValueType.STRING
        count = len(value)
    return Entry(key=key, type=kind, item=item, count=count, start=0, stop=0)


def _type_of(value: object) -> ValueType:
    for python, kind in _PYTHON_TYPES:
        if isinstance(value, python):
            return kind
    raise TypeError(f"no metadata type holds {type(value).__name__}")


_PYTHON_TYPES: tuple[tuple[type, ValueType], ...] = (
    (bool, ValueType.BOOL),
    (int, ValueType.INT64),
    (float, ValueType.FLOAT64),
    (str, ValueType.STRING),
    (list, ValueType.ARRAY),
    (tuple, ValueType.ARRAY),
)

# Token types of `tokenizer.ggml.token_type` that mark a token as more than text.
_SPECIAL_TYPES = (3, 4)

# Names that end a turn, or begin another document, whatever `eos_token_id` says (llama.cpp keeps the
# same list: files that name only one of several ends are common).
_END_NAMES = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "</s>",
        "<eos>",
        "<EOT>",
        "_<EOT>",
        "<end_of_utterance>",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    }
)
_END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


def read_vocabulary(meta: Meta) -> dict[str, Any]:
    """The keyword arguments of `pydflash.text.vocabulary.Vocabulary`, checked against one another."""
    tokens = meta.strs("tokenizer.ggml.tokens")
    types = meta.ints("tokenizer.ggml.token_type", default=None)
    scores = meta.floats("tokenizer.ggml.scores", default=None)
    for what, values in (("token_type", types), ("scores", scores)):
        if values is not None and len(values) != len(tokens):
            raise CheckpointError(
                f"{meta.name}: tokenizer.ggml.{what} has {len(values)} entries for "
                f"{len(tokens)} tokens; fetch or convert the model again"
            )
    special = _special_id(meta, len(tokens))
    ends = {token for name in _END_KEYS if (token := special(name)) is not None}
    ends |= _named_ends(tokens, types)
    return {
        "model": meta.str("tokenizer.ggml.model"),
        "pre": meta.str("tokenizer.ggml.pre", default=None),
        "tokens": tokens,
        "token_types": types,
        "scores": scores,
        "merges": meta.strs("tokenizer.ggml.merges", default=None),
        "bos": special("bos"),
        "eos": special("eos"),
        "eot": special("eot"),
        "eog": tuple(sorted(ends)),
        "pad": special("padding"),
        "unk": special("unknown"),
        "add_bos": meta.bool("tokenizer.ggml.add_bos_token", default=None),
        "add_eos": meta.bool("tokenizer.ggml.add_eos_token", default=None),
        "add_space_prefix": meta.bool("tokenizer.ggml.add_space_prefix", default=None),
    }


def _special_id(meta: Meta, num_tokens: int) -> Callable[[str], int | None]:
    def read(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        token = meta.int(key, default=None)
        # -1, signed or not, is how some converters write "none".
        if token is None or token in (-1, 0xFFFFFFFF):
            return None
        if not 0 <= token < num_tokens:
            raise CheckpointError(
                f"{meta.name}: {key} is {token}, but the vocabulary has {num_tokens} tokens; "
                "fetch or convert the model again"
            )
        return token

    return read


def _named_ends(tokens: Iterable[str], types: list[int] | None) -> set[int]:
    found = {
        name: index
        for index, name in enumerate(tokens)
        if name in _END_NAMES and (types is None or types[index] in _SPECIAL_TYPES)
    }
    # Harmony: <|end|> closes a message there, and the turn goes on.
    if "<|return|>" in found and "<|call|>" in found:
        found.pop("<|end|>", None)
    return set(found.values())
