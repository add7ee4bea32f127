"""Records what other tokenizers make of the test strings, as one 3-byte hash per string.

python -m tests.oracles.tokenizer_golden smollm2 MODEL.gguf      (needs llama-cpp-python)
python -m tests.oracles.tokenizer_golden sentencepiece           (needs llama-cpp-python)
python -m tests.oracles.tokenizer_golden qwen3 TOKENIZER.json    (its truth is the file itself)
"""

import base64
import hashlib
import json
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pydflash.text.vocabulary import Vocabulary
from tests.oracles.tokenizer_strings import COUNT, SEED, strings
from tests.oracles.tokenizer_vocabularies import sentencepiece, sentencepiece_strings

GOLDEN = Path(__file__).parent.parent / "golden"
HASH_BYTES = 3
MODES: dict[str, dict[str, bool]] = {
    "parsed": {"add_special": False, "parse_special": True},
    "plain": {"add_special": False, "parse_special": False},
    "special": {"add_special": True, "parse_special": True},
}
# llama.cpp's cut under these names, on SmolLM2's merges; it does not know NFC.
OTHER_PRE = ("default", "gpt-2", "llama-bpe", "qwen2", "qwen35", "deepseek-v3")
SENTENCEPIECE_SEEDS = range(9)


def token_hash(tokens: Iterable[int]) -> bytes:
    """3 bytes that tell one list of token ids from another."""
    packed = b"".join(struct.pack("<I", token) for token in tokens)
    return hashlib.blake2b(packed, digest_size=HASH_BYTES).digest()


def pack(results: Iterable[Iterable[int]]) -> str:
    """All hashes of a run as one base64 text."""
    return base64.b64encode(b"".join(map(token_hash, results))).decode()


def unpack(text: str) -> Iterator[bytes]:
    """The hashes again, in order."""
    data = base64.b64decode(text)
    return (data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES))


def load(name: str) -> dict[str, Any]:
    """A recorded golden: "smollm2", "qwen3" or "sentencepiece"."""
    data: dict[str, Any] = json.loads((GOLDEN / f"tokenizer_{name}.json").read_text())
    return data


def _save(name: str, source: str, values: dict[str, Any]) -> None:
    data = {"source": source, "seed": SEED, "count": COUNT, **values}
    path = GOLDEN / f"tokenizer_{name}.json"
    path.write_text(json.dumps(data, indent=1) + "\n")
    print(path.name, path.stat().st_size)


def _llama_cpp(model: Path) -> Callable[..., list[int]]:
    import llama_cpp

    llama = llama_cpp.Llama(str(model), vocab_only=True, verbose=False)

    def tokenize(text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens: list[int] = llama.tokenize(
            text.encode(), add_bos=add_special, special=parse_special
        )
        return tokens

    return tokenize


def _llama_cpp_version() -> str:
    import llama_cpp

    return f"llama.cpp of llama-cpp-python {llama_cpp.__version__}"


def _write(path: Path, vocabulary: Vocabulary) -> None:
    """A GGUF file that holds a vocabulary and nothing else llama.cpp would miss."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(1)
    writer.add_rope_dimension_count(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_token_list(list(vocabulary.tokens))
    if vocabulary.pre:
        writer.add_tokenizer_pre(vocabulary.pre)
    if vocabulary.token_types is not None:
        writer.add_token_types(list(vocabulary.token_types))
    if vocabulary.scores is not None:
        writer.add_token_scores(list(vocabulary.scores))
    if vocabulary.merges is not None:
        writer.add_token_merges(list(vocabulary.merges))
    if vocabulary.bos is not None:
        writer.add_bos_token_id(vocabulary.bos)
    if vocabulary.eos is not None:
        writer.add_eos_token_id(vocabulary.eos)
    if vocabulary.add_bos is not None:
        writer.add_add_bos_token(vocabulary.add_bos)
    if vocabulary.add_space_prefix is not None:
        writer.add_add_space_prefix(vocabulary.add_space_prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _smollm2(model: Path) -> None:
    import dataclasses

    from pydflash.checkpoint.files import open_checkpoint
    from pydflash.checkpoint.meta import read_vocabulary

    texts = strings()
    tokenize = _llama_cpp(model)
    modes = {name: pack(tokenize(text, **mode) for text in texts) for name, mode in MODES.items()}
    base = Vocabulary(**read_vocabulary(open_checkpoint(model).meta))
    other: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for pre in OTHER_PRE:
            path = Path(folder) / f"{pre}.gguf"
            _write(path, dataclasses.replace(base, pre=pre))
            cut = _llama_cpp(path)
            other[pre] = pack(cut(text, **MODES["parsed"]) for text in texts[::4])
    _save("smollm2", _llama_cpp_version(), {"modes": modes, "other_pre": other})


def _sentencepiece() -> None:
    runs: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SENTENCEPIECE_SEEDS:
            path = Path(folder) / f"{seed}.gguf"
            _write(path, sentencepiece(seed))
            tokenize, texts = _llama_cpp(path), sentencepiece_strings(seed)
            runs[str(seed)] = {
                name: pack(tokenize(text, **mode) for text in texts)
                for name, mode in MODES.items()
                if name != "plain"
            }
    _save("sentencepiece", _llama_cpp_version(), {"runs": runs})


def _qwen3(path: Path) -> None:
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(str(path))
    texts = strings()
    modes: dict[str, str] = {}
    for name in ("parsed", "plain"):
        backend.encode_special_tokens = not MODES[name]["parse_special"]
        modes[name] = pack(backend.encode(text, add_special_tokens=False).ids for text in texts)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    source = f"Qwen3's tokenizer.json (sha256 {digest}) run by tokenizers {tokenizers.__version__}"
    _save("qwen3", source, {"sha256": digest, "modes": modes})


def main(arguments: list[str]) -> None:
    """Runs one recording."""
    match arguments:
        case ["smollm2", model]:
            _smollm2(Path(model))
        case ["sentencepiece"]:
            _sentencepiece()
        case ["qwen3", path]:
            _qwen3(Path(path))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
