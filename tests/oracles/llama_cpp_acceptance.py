"""Does llama.cpp draft as well with the exported drafter in the box as we do with the original?

    python -m tests.oracles.llama_cpp_acceptance ours TARGET.gguf DIR      (here)
    python tests/oracles/llama_cpp_acceptance.py theirs TARGET.gguf DIR    (where llama-cpp-python is)
    python tests/oracles/llama_cpp_acceptance.py report DIR [TOOL.txt]

`ours` exports the drafter, answers 20 prompts greedily with chains of 15 in the engine, and saves prompts,
answers and rounds. `theirs` (llama-cpp-python 0.3.36 or later) drafts with llama.cpp's own graphs for target
and drafter, in the order of its `llama-speculative-simple`, which the package does not contain: once along
llama.cpp's own greedy text, once along ours, so that nothing but the drafts can differ. `report` prints a
table and saves DIR/report.json. Exit code 1 if llama.cpp's tokens a round are more than a tenth off ours.

TOOL.txt may bring what `llama-speculative-simple` itself said, in lines of "N rounds tokens" (it prints
n_predict, the tokens, and n_accept: rounds are the difference), run as
    llama-speculative-simple -m TARGET.gguf -md DIR/exported.gguf --spec-type draft-dflash
        --spec-draft-n-max 15 -f DIR/prompt-N.txt -n 127 --temp 0 -c 2048
"""

import ctypes
import json
import sys
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import numpy as np

PROMPTS = (("humaneval", 7), ("gsm8k", 7), ("mtbench", 6))
TOKENS = 128
BLOCK = 16
CTX = 2048
CHUNK = 512
WITHIN = 0.1
EXPORT = "exported.gguf"


def ours(target: Path, directory: Path) -> None:
    """Export the shipped drafter, and draft chains with it in the engine."""
    from importlib.resources import files

    from pydflash.bench.prompts import prompt_set
    from pydflash.config import EngineConfig, RuntimeConfig, SpecConfig, StateConfig
    from pydflash.draft.convert import convert_drafter
    from pydflash.sampling.params import SamplingParams
    from pydflash.service.llm import LLM, fold

    directory.mkdir(parents=True, exist_ok=True)
    shipped = Path(str(files("pydflash").joinpath("data", "smollm2-135m-dflash.gguf")))
    convert_drafter(shipped, directory / EXPORT, to="llama.cpp", target=target, force=True)
    config = EngineConfig(
        spec=SpecConfig(draft_chain=True, draft=str(shipped)),
        runtime=RuntimeConfig(threads=1),
        state=StateConfig(prefix_cache="off", max_ctx=CTX),
    )
    found = []
    with LLM(target, config=config) as llm:
        for task, count in PROMPTS:
            for case in prompt_set(task).pick(count).cases:
                prompt = llm.encode(list(case.messages))
                done = fold(llm.start(prompt, SamplingParams(temperature=0.0, max_tokens=TOKENS)))
                path = directory / f"prompt-{len(found)}.txt"
                path.write_text(llm.tokenizer.decode(prompt) + "\n")  # llama.cpp takes one off
                found.append(
                    {
                        "id": f"{task} {case.id}",
                        "prompt": prompt,
                        "answer": list(done.tokens),
                        "rounds": done.finish.draft.rounds,
                        "tokens": done.finish.draft.tokens,
                    }
                )
                print(found[-1]["id"], found[-1]["rounds"], found[-1]["tokens"], flush=True)
    (directory / "ours.json").write_text(json.dumps(found))


def theirs(target: Path, directory: Path) -> None:
    """The same prompts through llama.cpp."""
    import llama_cpp

    peer = _Peer(llama_cpp, target, directory / EXPORT)
    found = []
    for case in json.loads((directory / "ours.json").read_text()):
        free, text = peer.answer(case["prompt"], None)
        along, _ = peer.answer(case["prompt"], case["answer"])
        found.append({"id": case["id"], "free": free, "along": along, "answer": text})
        print(case["id"], free, along, flush=True)
    version = llama_cpp.__version__
    (directory / "theirs.json").write_text(json.dumps({"version": version, "cases": found}))


class _Peer:
    """llama.cpp's target and drafter, and the loop of its example around them."""

    def __init__(self, lib: Any, target: Path, drafter: Path) -> None:
        self._lib = lib
        lib.llama_backend_init()
        self._silent = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self._silent, ctypes.c_void_p(0))
        self._model, self._target = self._open(target, None)
        draft_model, self._draft = self._open(drafter, self._target)
        self._vocab = lib.llama_model_get_vocab(self._model)
        self._words = lib.llama_vocab_n_tokens(self._vocab)
        self._width = lib.llama_model_n_embd(self._model)
        self._mask = lib.llama_vocab_mask(lib.llama_model_get_vocab(draft_model))
        self._bind(draft_model)
        for layer in self._taps:
            self._extract(self._target, layer, True)
        self._want_lattice(self._draft, True, False)
        lib.llama_set_causal_attn(self._draft, True)  # dflash.attention.causal of our file

    def answer(self, prompt: list[int], truth: list[int] | None) -> tuple[list[int], list[int]]:
        """Tokens of each round, and the text: the target's greedy one, or `truth` where it is given."""
        lib = self._lib
        for context in (self._target, self._draft):
            lib.llama_memory_clear(lib.llama_get_memory(context), True)
        for start in range(0, len(prompt), CHUNK):
            logits = self._verify(prompt[start : start + CHUNK], start, last=True)
        first = int(logits[-1].argmax()) if truth is None else truth[0]
        text, rounds, past = [first], [], len(prompt)
        while len(text) < TOKENS and not lib.llama_vocab_is_eog(self._vocab, text[-1]):
            if truth is not None and len(text) == len(truth):
                break
            room = (TOKENS if truth is None else len(truth)) - len(text) - 1
            draft = self._propose(text[-1], past)[: max(room, 0)]
            logits = self._verify([text[-1], *draft], past)
            drawn: list[int] = []
            for slot in range(len(draft) + 1):
                right = int(logits[slot].argmax()) if truth is None else truth[len(text)]
                text.append(right)
                drawn.append(right)
                if lib.llama_vocab_is_eog(self._vocab, right) or len(text) == len(truth or []):
                    break
                if slot == len(draft) or draft[slot] != right:
                    break
            past += len(drawn)
            self._forget(past)
            rounds.append(len(drawn))
        return rounds, text

    def _propose(self, anchor: int, past: int) -> list[int]:
        """The greedy path through the selector's scores: of each slot k ids and k x k scores."""
        self._run(self._draft, [anchor] + [self._mask] * (BLOCK - 1), past, logits=())
        lattice = np.ctypeslib.as_array(self._lattice(self._draft), (BLOCK, self._width))
        k, before, path = self._top_k, 0, []
        for row in lattice[1:]:
            before = int(row[k : k + k * k].reshape(k, k)[before].argmax())
            path.append(int(row[before]))
        self._forget(past)
        return path

    def _verify(self, tokens: list[int], past: int, *, last: bool = False) -> np.ndarray:
        """The target's logits f32 [n, V], or the last's; its features go into the drafter's cache."""
        wanted = range(len(tokens))[-1 if last else 0 :]
        self._run(self._target, tokens, past, logits=wanted)
        rows = self._lib.llama_get_logits(self._target)
        logits = np.ctypeslib.as_array(rows, (len(wanted), self._words)).copy()
        taps = [
            np.ctypeslib.as_array(self._features(self._target, t), (len(tokens), self._width))
            for t in self._taps
        ]
        features = np.concatenate(taps, 1)
        batch = self._lib.llama_batch_init(*features.shape, 1)
        ctypes.memmove(batch.embd, features.ctypes.data, features.nbytes)
        self._decode(self._draft, batch, len(tokens), past, logits=())
        return logits

    def _run(self, context: Any, tokens: list[int], past: int, *, logits: Container[int]) -> None:
        batch = self._lib.llama_batch_init(len(tokens), 0, 1)
        for i, token in enumerate(tokens):
            batch.token[i] = token
        self._decode(context, batch, len(tokens), past, logits=logits)

    def _decode(
        self, context: Any, batch: Any, count: int, past: int, *, logits: Container[int]
    ) -> None:
        batch.n_tokens = count
        for i in range(count):
            batch.pos[i], batch.n_seq_id[i], batch.logits[i] = past + i, 1, i in logits
            batch.seq_id[i][0] = 0
        status = self._lib.llama_decode(context, batch)
        self._lib.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def _forget(self, past: int) -> None:
        for context in (self._target, self._draft):
            memory = self._lib.llama_get_memory(context)
            self._lib.llama_memory_seq_rm(memory, 0, past, -1)

    def _open(self, path: Path, other: Any) -> tuple[Any, Any]:
        lib, params = self._lib, self._lib.llama_context_default_params()
        model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        if not model:
            raise RuntimeError(f"llama.cpp refuses {path}")
        params.n_ctx, params.n_batch, params.n_ubatch = CTX, CHUNK, CHUNK
        params.n_threads = params.n_threads_batch = 1
        if other is not None:
            params.ctx_other = other
        return model, lib.llama_init_from_model(model, params)

    def _bind(self, model: Any) -> None:
        """Functions of llama-ext.h, which the package does not bind."""
        floats, pointer, number = ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_uint32

        def bind(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
            function: Any = self._lib.llama_cpp._lib[name]
            function.restype, function.argtypes = result, arguments
            return function  # type: ignore[no-any-return]

        flag = ctypes.c_bool
        self._extract = bind(
            "_Z30llama_set_embeddings_layer_inpP13llama_contextjb", None, pointer, number, flag
        )
        self._features = bind(
            "_Z30llama_get_embeddings_layer_inpP13llama_contextj", floats, pointer, number
        )
        self._want_lattice = bind(
            "_Z26llama_set_embeddings_nextnP13llama_contextbb", None, pointer, flag, flag
        )
        self._lattice = bind("_Z26llama_get_embeddings_nextnP13llama_context", floats, pointer)
        self._top_k = int(
            bind("_Z33llama_model_dflash_selector_top_kPK11llama_model", number, pointer)(model)
        )
        ids = ctypes.POINTER(ctypes.c_int32)
        taps = bind("_Z28llama_model_target_layer_idsPK11llama_model", ids, pointer)(model)
        count = bind("_Z30llama_model_target_layer_ids_nPK11llama_model", number, pointer)(model)
        self._taps = [int(taps[i]) for i in range(count)]


def report(directory: Path, tool: Path | None) -> bool:
    """Print Markdown and save DIR/report.json; whether all ratios lie within a tenth."""
    mine = json.loads((directory / "ours.json").read_text())
    peer = json.loads((directory / "theirs.json").read_text())
    ways: dict[str, Callable[[int], tuple[int, int]]] = {
        "ours": lambda i: (mine[i]["rounds"], mine[i]["tokens"]),
        "llama.cpp, its own text": lambda i: _count(peer["cases"][i]["free"]),
        "llama.cpp, our text": lambda i: _count(peer["cases"][i]["along"]),
    }
    if tool is not None:
        said = [line.split() for line in tool.read_text().splitlines() if line.strip()]
        counts = {int(i): (int(rounds), int(tokens)) for i, rounds, tokens in said}
        ways["llama-speculative-simple"] = lambda i: counts[i]
    tasks = {"all": range(len(mine))} | {
        task: [i for i, case in enumerate(mine) if case["id"].startswith(task)]
        for task, _ in PROMPTS
    }
    table = {
        way: {task: _rate(map(count, rows)) for task, rows in tasks.items()}
        for way, count in ways.items()
    }
    print(f"| tokens a round | {' | '.join(tasks)} | of ours |")
    print("|---" * (len(tasks) + 2) + "|")
    for way, row in table.items():
        ratio = row["all"] / table["ours"]["all"]
        print(f"| {way} | {' | '.join(f'{v:.2f}' for v in row.values())} | {ratio:.3f} |")
    saved = {
        "block": BLOCK,
        "max_tokens": TOKENS,
        "llama_cpp_python": peer["version"],
        "tokens_a_round": table,
        "prompts": [
            {"id": case["id"]} | {way: count(i) for way, count in ways.items()}
            for i, case in enumerate(mine)
        ],
    }
    (directory / "report.json").write_text(json.dumps(saved, indent=1) + "\n")
    ratios = [row["all"] / table["ours"]["all"] for row in table.values()]
    return all(abs(ratio - 1) <= WITHIN for ratio in ratios)


def _count(rounds: list[int]) -> tuple[int, int]:
    return len(rounds), sum(rounds)


def _rate(counts: Iterator[tuple[int, int]]) -> float:
    rounds, tokens = map(sum, zip(*counts, strict=True))
    return round(tokens / rounds, 4)


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    if command == "report":
        sys.exit(not report(Path(paths[0]), Path(paths[1]) if len(paths) > 1 else None))
    {"ours": ours, "theirs": theirs}[command](Path(paths[0]), Path(paths[1]))
