"""What changes a row of logits before anything is filtered: penalties, then bias, then the mask."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pydflash.errors import RequestError
from pydflash.sampling.params import SamplingParams

F32 = npt.NDArray[np.float32]


def has_penalties(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
    )


def apply_penalties(
    row: F32, params: SamplingParams, generated: Sequence[int], prompt: Sequence[int]
) -> None:
    """Lower (or raise) the tokens of the window in place: repetition, then frequency, then presence.

    The window is the last `rep_window` generated tokens; with `penalize_prompt`, of prompt and answer
    together. Arithmetic in float64, rounded once to float32.
    """
    counts = Counter(_window(params, generated, prompt))
    if not counts:
        return
    ids = np.fromiter(counts.keys(), dtype=np.int64, count=len(counts))
    times = np.fromiter(counts.values(), dtype=np.float64, count=len(counts))
    values = row[ids].astype(np.float64)
    factor = params.repetition_penalty
    values = np.where(values > 0.0, values / factor, values * factor)
    values = values - times * params.frequency_penalty - params.presence_penalty
    with np.errstate(over="ignore"):  # an infinity here is the sampler's error to tell
        row[ids] = values.astype(np.float32)


def apply_bias(row: F32, bias: Mapping[int, float]) -> None:
    """Add a number to some logits in place."""
    for token, value in bias.items():
        with np.errstate(over="ignore"):
            row[token] += np.float32(value)


def check_bias(bias: Mapping[int, float], vocab_size: int) -> None:
    """Raise RequestError unless every id is in the vocabulary and every number finite."""
    for token, value in bias.items():
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"logit_bias names token {token}; this model has tokens 0 to {vocab_size - 1}",
                param="logit_bias",
            )
        if not np.isfinite(np.float32(value)):
            raise RequestError(
                f"logit_bias of token {token} is {value}; it must be a finite number",
                param="logit_bias",
            )


def _window(
    params: SamplingParams, generated: Sequence[int], prompt: Sequence[int]
) -> Sequence[int]:
    size = params.rep_window
    earlier: Sequence[int] = prompt if params.penalize_prompt else ()
    if size < 0:
        return [*earlier, *generated]
    if size == 0:
        return []
    missing = size - len(generated)
    if missing <= 0:
        return generated[-size:]
    return [*earlier[max(0, len(earlier) - missing) :], *generated]
