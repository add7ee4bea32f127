"""Tokenizer: text to token ids and back, built from a GGUF vocabulary alone.

Ids are those of the model's own tokenizer, token for token. Bytes are the common ground: each token
stands for some bytes, and text is what those bytes say in UTF-8.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydflash.errors import CheckpointError, RequestError, UnsupportedError
from pydflash.text.bytelevel import ByteLevelModel, alphabet_bytes
from pydflash.text.pretokenizers import pretokenizer_spec
from pydflash.text.sentencepiece import SPACE, SentencePieceModel
from pydflash.text.specials import SpecialSplitter
from pydflash.text.texts import TokenTexts
from pydflash.text.vocabulary import Vocabulary

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """Encodes and decodes with one vocabulary. Immutable after construction; threads may share it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises UnsupportedError (model or pre-tokenizer unknown) or CheckpointError (broken)."""
        tokens = vocabulary.tokens
        self.vocab_size = len(tokens)
        self._tokens = TokenTexts(tokens)
        self._check_ids(vocabulary)
        self.bos = vocabulary.bos
        self.eos = vocabulary.eos
        ends = (*vocabulary.eog, vocabulary.eos, vocabulary.eot)
        self.eog: frozenset[int] = frozenset(token for token in ends if token is not None)
        ids = {text: token for token, text in enumerate(tokens)}
        self._kinds = self._read_kinds(vocabulary, ids)
        self._bytes: dict[int, bytes] = {}
        self.sentencepiece = vocabulary.model == "llama"

        self._special = {t for t, kind in enumerate(self._kinds) if kind in (_UNKNOWN, _CONTROL)}
        users = {tokens[t]: t for t, kind in enumerate(self._kinds) if kind == _USER_DEFINED}
        self._split_users = SpecialSplitter(users)
        self._split_all = SpecialSplitter({tokens[t]: t for t in self._special} | users)

        self._model: ByteLevelModel | SentencePieceModel
        if self.sentencepiece:
            self._model = self._build_sentencepiece(vocabulary, ids)
            add_bos, add_space = True, vocabulary.add_space_prefix is not False
        elif vocabulary.model == "gpt2":
            spec = pretokenizer_spec(vocabulary.pre)
            if vocabulary.merges is None:
                raise CheckpointError("the model file has no tokenizer.ggml.merges; fetch it again")
            self._model = ByteLevelModel(ids, vocabulary.merges, spec)
            add_bos, add_space = spec.add_bos, False
        else:
            raise UnsupportedError(
                f"the tokenizer model {vocabulary.model!r} is not known to this build; "
                "known are: gpt2, llama"
            )
        self._add_space_prefix = add_space
        self.add_bos = add_bos if vocabulary.add_bos is None else vocabulary.add_bos
        self.add_eos = vocabulary.add_eos is True
        if self.add_bos and self.bos is None:
            self._require(vocabulary.add_bos is not True, "add_bos_token", "bos_token_id")
            self.add_bos = False
        self._require(not (self.add_eos and self.eos is None), "add_eos_token", "eos_token_id")

    def encode(
        self, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text.

        `add_special` adds the begin and end tokens the file asks for; `parse_special` reads control
        tokens written in the text ("<|im_end|>") as tokens, else they are ordinary characters
        (user-defined tokens are read as tokens either way). Lone surrogates become U+FFFD.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            text = re.sub("[\ud800-\udfff]", "\ufffd", text)
        tokens: list[int] = []
        if add_special and self.add_bos and self.bos is not None:
            tokens.append(self.bos)
        after_special = True
        for piece in (self._split_all if parse_special else self._split_users).split(text):
            if isinstance(piece, int):
                tokens.append(piece)
                after_special = True
                continue
            if self.sentencepiece:
                prefix = SPACE if self._add_space_prefix and after_special else ""
                piece = prefix + piece.replace(" ", SPACE)
            tokens += self._model.encode(piece)
            after_special = False
        if add_special and self.add_eos and self.eos is not None:
            tokens.append(self.eos)
        return tokens

    def decode(
        self, tokens: Iterable[int], *, skip_special: bool = False, continuing: bool = False
    ) -> str:
        """The text of some tokens; bytes that are no UTF-8 become U+FFFD.

        `continuing`: the tokens follow others, so a SentencePiece leading space is kept.
        """
        strip = self.strips_leading_space and not continuing
        parts: list[bytes] = []
        for token in tokens:
            special = self.is_special(token)
            if special and skip_special:
                continue
            piece = self.token_bytes(token)
            if strip and not special:
                piece, strip = piece.removeprefix(b" "), False
            parts.append(piece)
        return b"".join(parts).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for (special tokens: their name). RequestError when no such id."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._bytes_of(self._check(token))
        return known

    def is_special(self, token: int) -> bool:
        """True for control and unknown tokens: they steer the model and are no text."""
        return token in self._special

    def token_id(self, text: str) -> int | None:
        """The id of the token written exactly so in the vocabulary, or None."""
        return self._model.token_id(text)

    def token_text(self, token: int) -> str:
        """The token as the vocabulary writes it (byte-level or U+2581 alphabet)."""
        return self._tokens[self._check(token)]

    def pieces(self) -> Iterator[bytes]:
        """What each token stands for, by id."""
        return map(
            self._bytes_of, range(self.vocab_size)
        )  # not kept, as those of `token_bytes` are

    def cut(self, text: str) -> list[str | int]:
        """The text in pieces: control tokens written in it as their ids, what is between them as it is."""
        found: list[str | int] = []
        for piece in self._split_all.split(text):
            if isinstance(piece, int) and not self.is_special(piece):
                piece = self._tokens[piece]
            if isinstance(piece, str) and found and isinstance(found[-1], str):
                found[-1] += piece
            else:
                found.append(piece)
        return found

    @property
    def strips_leading_space(self) -> bool:
        """True when encoding puts a space before the text, which decoding takes away again."""
        return self._add_space_prefix

    def _check(self, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            raise RequestError(
                f"token id {token} is outside the vocabulary; ids go from 0 to {self.vocab_size - 1}",
                code="token_out_of_range",
                param="tokens",
            )
        return token

    def _bytes_of(self, token: int) -> bytes:
        text, kind = self._tokens[token], self._kinds[token]
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED):
            return text.encode()
        if not self.sentencepiece:
            return alphabet_bytes(text)
        if kind == _BYTE and (byte := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(byte[1], 16)])
        return text.replace(SPACE, " ").encode()

    def _build_sentencepiece(
        self, vocabulary: Vocabulary, ids: Mapping[str, int]
    ) -> SentencePieceModel:
        if vocabulary.scores is None or len(vocabulary.scores) != self.vocab_size:
            raise CheckpointError(
                "the model file has no tokenizer.ggml.scores for each token; fetch it again"
            )
        byte_ids = [ids.get(f"<0x{byte:02X}>") for byte in range(256)]
        return SentencePieceModel(ids, vocabulary.scores, byte_ids, vocabulary.unk)

    def _read_kinds(self, vocabulary: Vocabulary, ids: Mapping[str, int]) -> Sequence[int]:
        if vocabulary.token_types is None:
            kinds = [_NORMAL] * self.vocab_size
            if vocabulary.model == "llama":
                for byte in range(256):
                    if (token := ids.get(f"<0x{byte:02X}>")) is not None:
                        kinds[token] = _BYTE
        else:
            kinds = list(vocabulary.token_types)
        if len(kinds) != self.vocab_size:
            raise CheckpointError(
                f"the model file has {len(kinds)} token types for {self.vocab_size} tokens; "
                "fetch it again"
            )
        # Some files mark their turn tokens as ordinary text; they never are.
        for token in (vocabulary.bos, *self.eog):
            if token is not None and kinds[token] == _NORMAL:
                kinds[token] = _CONTROL
        return array("b", (kind if 0 < kind <= _BYTE else _NORMAL for kind in kinds))

    def _check_ids(self, vocabulary: Vocabulary) -> None:
        named = {
            name: getattr(vocabulary, name) for name in ("bos", "eos", "eot", "pad", "unk")
        } | {f"eog[{index}]": token for index, token in enumerate(vocabulary.eog)}
        for name, token in named.items():
            if token is not None and not 0 <= token < self.vocab_size:
                raise CheckpointError(
                    f"the tokenizer's {name} token id {token} is outside its vocabulary of "
                    f"{self.vocab_size}; the model file is damaged, fetch it again"
                )

    @staticmethod
    def _require(holds: bool, flag: str, key: str) -> None:
        if not holds:
            raise CheckpointError(
                f"the model file sets tokenizer.ggml.{flag} but has no tokenizer.ggml.{key}"
            )
