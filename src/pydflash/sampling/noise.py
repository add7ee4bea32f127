"""Position-keyed noise: a number for every (seed, choice, position, token id), from a counter.

No state, so the draw at a position is the same whoever asks, in whatever order and company. That is what
lets speculation verify many positions at once and still write the text plain decoding would.
"""

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, made odd: Weyl increment of SplitMix64
_MIX_1 = (
    0xBF58476D1CE4E5B9  # finaliser of SplitMix64 (Steele, Lea, Flood 2014, variant 13 of Stafford)
)
_MIX_2 = 0x94D049BB133111EB
_MASK = 2**64 - 1

# Noise above _RARE_U comes to one token in a hundred; `race` looks at those first.
_RARE_U = 0.99
_RARE_GUMBEL = 4.60014922677  # -log(-log(0.99))
_SLACK = 1e-3  # far above the rounding of a log, so that pruning never changes the winner


def key(seed: int, choice: int, position: int) -> int:
    """Hash of everything but the token id, 64 bits. `seed` in [0, 2**64)."""
    mixed = 0
    for word in (seed, choice, position):
        mixed = _mix((mixed + _GOLDEN + word) & _MASK)
    return mixed


def weyl(vocab_size: int) -> U64:
    """The part of the counter that depends on the token id alone: uint64 [vocab_size]."""
    return counters(np.arange(vocab_size, dtype=np.int64))


def counters(ids: Ids) -> U64:
    """That part for some tokens."""
    return (ids + 1).astype(np.uint64) * np.uint64(_GOLDEN)


def uniforms(counter: U64, noise_key: int) -> F64:
    """Uniforms in the open interval (0, 1), 52 bits each; `counter` is `weyl(V)` or some of it."""
    z = counter + np.uint64(noise_key)
    t: U64 = np.empty_like(z)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        np.right_shift(z, np.uint64(shift), out=t)
        np.bitwise_xor(z, t, out=z)
        np.multiply(z, np.uint64(factor), out=z)
    np.right_shift(z, np.uint64(31), out=t)
    np.bitwise_xor(z, t, out=z)
    np.right_shift(z, np.uint64(12), out=z)
    u = z.astype(np.float64)
    u += 0.5  # never 0 and never 1: 2**52 midpoints
    u *= 2.0**-52
    return u


def race(scores: F64, u: F64) -> int:
    """Index of the largest `scores + gumbel(u)`, the lowest index among equals.

    Logs are taken only where the noise is rare or the score is close enough to win: the result is that
    of taking them everywhere, at a tenth of the time for a whole vocabulary.
    """
    if len(scores) < 2048:
        return int(np.argmax(scores + gumbel(u)))
    rare = np.flatnonzero(u > _RARE_U)
    likely = int(np.argmax(scores))
    first = np.append(rare, likely)
    bound = float(np.max(scores[first] + gumbel(u[first])))
    able = np.flatnonzero(scores >= bound - _RARE_GUMBEL - _SLACK)
    runners = np.union1d(rare, able)
    return int(runners[np.argmax(scores[runners] + gumbel(u[runners]))])


def gumbel(u: F64) -> F64:
    """Standard Gumbel noise of uniforms: minus the log of an exponential variate."""
    noise: F64 = np.negative(np.log(np.negative(np.log(u))))
    return noise


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)
