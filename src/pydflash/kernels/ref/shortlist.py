"""The tokens among which a draw must fall, by logit or by logit and noise together. The specification."""

import torch

Tensor = torch.Tensor

GOLDEN = 0x9E3779B97F4A7C15  # the counter and finaliser of sampling/noise.py
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


def shortlist(
    logits: Tensor, k: int, knobs: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """f32 [M, V] -> values f32 [M, K], ids int32 [M, K], marks f32 [M, K], totals f32 [M].

    knobs f32 [M, 2] are 1 / temperature and whether (1) or not (0) the row has noise; keys int64 [M] are
    the bits of `noise.key`. K = min(k, V) tokens stand by descending mark, of equals the lower id first.
    A mark is the logit itself, or with noise logit / temperature + gumbel. totals: logsumexp of logit /
    temperature, NaN or infinite when a logit is NaN or plus infinity.
    """
    inverse, noisy = knobs[:, :1].double(), knobs[:, 1:] != 0
    scaled = logits.double() * inverse
    marks = torch.where(noisy, (scaled + gumbel(keys, logits.shape[1])).float(), logits)
    ordered = marks.sort(stable=True, dim=-1, descending=True)
    ids = ordered.indices[:, :k]
    totals = scaled.logsumexp(-1).float()
    return logits.gather(1, ids), ids.int(), ordered.values[:, :k], totals


def gumbel(keys: Tensor, vocab: int) -> Tensor:
    """Noise f64 [M, V] of keys int64 [M]."""
    counter = torch.arange(1, vocab + 1, device=keys.device) * _signed(GOLDEN)
    z = counter + keys[:, None]  # wraps, as unsigned numbers do
    for shift, factor in ((30, MIX_1), (27, MIX_2)):
        z = (z ^ _shifted(z, shift)) * _signed(factor)
    z = z ^ _shifted(z, 31)
    u = (_shifted(z, 12).double() + 0.5) * 2.0**-52
    noise: Tensor = -(-u.log()).log()
    return noise


def _shifted(z: Tensor, count: int) -> Tensor:
    """A logical shift to the right."""
    moved: Tensor = (z >> count) & (2 ** (64 - count) - 1)
    return moved


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
