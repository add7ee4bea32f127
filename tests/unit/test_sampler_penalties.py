"""Penalties against a plain-Python oracle, over random histories and windows."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pydflash.sampling.params import SamplingParams
from pydflash.sampling.penalties import apply_bias, apply_penalties

V = 12
tokens = st.lists(st.integers(0, V - 1), max_size=20)
logit = st.floats(-20, 20, width=32)


def oracle(
    row: list[float], params: SamplingParams, generated: list[int], prompt: list[int]
) -> list[float]:
    history = (prompt if params.penalize_prompt else []) + generated
    if params.rep_window >= 0:
        history = history[-params.rep_window :] if params.rep_window else []
    out = list(row)
    for token in range(V):
        count = history.count(token)
        if count:
            x = out[token]
            p = params.repetition_penalty
            x = x / p if x > 0 else x * p
            out[token] = x - count * params.frequency_penalty - params.presence_penalty
    return out


@settings(max_examples=300, deadline=None)
@given(
    row=st.lists(logit, min_size=V, max_size=V),
    generated=tokens,
    prompt=tokens,
    window=st.integers(-1, 25),
    with_prompt=st.booleans(),
    repetition=st.floats(0.5, 2.0),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
)
def test_penalties_match_oracle(
    row: list[float],
    generated: list[int],
    prompt: list[int],
    window: int,
    with_prompt: bool,
    repetition: float,
    frequency: float,
    presence: float,
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        rep_window=window,
        penalize_prompt=with_prompt,
    )
    got = np.array(row, dtype=np.float32)
    apply_penalties(got, params, generated, prompt)
    want = np.array(oracle(row, params, generated, prompt), dtype=np.float32)
    np.testing.assert_array_equal(got, want)


def test_bias_adds() -> None:
    row = np.zeros(4, dtype=np.float32)
    apply_bias(row, {1: 2.5, 3: -100.0})
    assert row.tolist() == [0.0, 2.5, 0.0, -100.0]
