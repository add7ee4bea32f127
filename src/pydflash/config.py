"""Every option, once: default, help and command-line flag. Frozen; resolved once and printed at start."""

from dataclasses import dataclass, field
from typing import Any, Literal

KvFormat = Literal["f32", "f16", "bf16", "q8_0"]
PrefixChoice = Literal["on", "prompts", "off"]
OpsChoice = Literal["auto", "triton", "cpu", "ref"]
EmbeddingsChoice = Literal["auto", "device", "host"]


def option(default: Any, help: str, *, flag: str | None = None) -> Any:
    """A dataclass field that knows its help text and flag (default: the field's name with dashes)."""
    metadata = {"help": help} | ({"flag": flag} if flag else {})
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """Where and how the model runs."""

    target_device: str = option(
        "auto",
        "device of the target model: cpu, cuda:N, hip:N, or auto (a GPU that the kernels serve and the "
        "model fits, else the CPU)",
    )
    draft_device: str = option(
        "auto", "device of the drafter: auto is the target's, where it shares"
    )
    threads: int = option(0, "CPU threads; 0 means one per physical core this process may use")
    ops: OpsChoice = option(
        "auto", "kernels: auto, triton (GPUs), cpu (compiled C++) or ref (pure PyTorch)"
    )
    embeddings: EmbeddingsChoice = option(
        "auto",
        "where a GPU finds the embedding table: device, host (page-locked memory, read over the bus) or "
        "auto (the host, unless the table is the output head too or three times its size is not free there)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateConfig:
    """How much the engine may remember."""

    max_ctx: int = option(0, "context length; 0 means the model's own, as far as memory allows")
    cache_type_k: KvFormat = option("f16", "format of attention keys")
    cache_type_v: KvFormat = option("f16", "format of attention values")
    kv_pages: int = option(
        0, "KV pages of 32 positions; 0 means enough for every sequence at max_ctx"
    )
    max_concurrency: int = option(1, "sequences that may run at once")
    prefix_cache: PrefixChoice = option(
        "on",
        "start from what earlier requests stored of the same beginning: on, prompts (only what is "
        "bit-equal to reading it again, so no generated turns) or off",
    )
    captures: int = option(1, "recurrent states that each sequence may leave to start from")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """What one step may contain."""

    prefill_chunk: int = option(
        0,
        "prompt tokens of one sequence computed in a step, a multiple of 32; 0 means 256 on the CPU and "
        "1024 on a GPU",
    )
    max_exact_rows: int = option(64, "rows recomputed per step after a preemption")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecConfig:
    """How drafts are made and verified. None of it changes a token of the text."""

    draft: str = option(
        "auto",
        "drafter: a file, lookup (repetitions within the text), none, or auto (the drafter made for "
        "this model where there is one, else lookup)",
    )
    no_speculation: bool = option(False, "decode without drafts")
    ddtree: bool = option(False, "draft trees; as that is the default, it only forbids chains")
    ddtree_budget: int = option(
        0, "nodes drafted in a round; 0 means chosen every round from measured costs"
    )
    ddtree_tau: float | None = option(
        None, "leave out nodes this much (natural log) less likely than the likeliest first token"
    )
    ddtree_chain_seed: bool = option(
        False, "a fixed budget begins with the likeliest chain, whatever else is likelier"
    )
    draft_chain: bool = option(False, "draft one chain instead of a tree")
    draft_block_size: int = option(
        0, "tokens of a draft block, the pending one included; 0 means the drafter's own"
    )
    draft_ctx_max: int = option(4096, "positions that the drafter remembers")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All of it."""

    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    state: StateConfig = field(default_factory=StateConfig)
    step: StepConfig = field(default_factory=StepConfig)
    spec: SpecConfig = field(default_factory=SpecConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeStateConfig(StateConfig):
    """A server's memory: several sequences at once."""

    max_concurrency: int = option(8, "sequences that may run at once")
    # For the next turn, and after system prompt and tools.
    captures: int = option(2, "recurrent states that each sequence may leave to start from")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeEngineConfig(EngineConfig):
    """The engine of a server."""

    state: ServeStateConfig = field(default_factory=ServeStateConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP server, and what requests get that do not say. 0 means the model card's figure."""

    host: str = option("127.0.0.1", "address to listen at; 0.0.0.0 for every interface")
    port: int = option(8080, "port to listen at; 0 takes a free one")
    model_name: str = option("", "the model's name in replies; default: its file's name")
    api_key: str = option("", "key that clients must send; without one everybody may ask")
    no_cors: bool = option(False, "do not allow pages of other sites to ask")
    default_max_tokens: int = option(0, "tokens of an answer when the request does not say")
    max_tokens: int = option(0, "an older name of --default-max-tokens, which goes first")
    max_queue: int = option(256, "requests under way or waiting; more are refused with 503")
    chat_template_file: str = option("", "Jinja file to use in place of the model's chat template")
    think_max_tokens: int = option(0, "tokens of the longest thought")
    hard_limit_reply_budget: int = option(0, "tokens kept for the answer when a thought is cut off")
    reasoning_effort_low: int = option(0, "tokens of a thought at effort low")
    reasoning_effort_medium: int = option(0, "tokens of a thought at effort medium")
    reasoning_effort_high: int = option(0, "tokens of a thought at effort high")
    reasoning_effort_x_high: int = option(0, "tokens of a thought at effort x-high")
    reasoning_effort_max: int = option(0, "tokens of a thought at effort max")
    degenerate_run_tokens: int = option(
        0, "end an answer that says one token so many times in a row; 0 means never"
    )
    admission_coalesce_ms: int = option(
        0, "milliseconds that an idle engine waits for more requests after a first one, 0 to 1000"
    )
    ssl_certfile: str = option("", "certificate (PEM), for https")
    ssl_keyfile: str = option("", "the certificate's private key (PEM)")
    log_json: bool = option(False, "log one JSON object a line")
    shutdown_s: float = option(
        20.0, "seconds that running answers get to end when the server is stopped"
    )
