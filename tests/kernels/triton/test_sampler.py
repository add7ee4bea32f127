"""argmax, top and shortlist in Triton: against their references, ties and odd numbers included."""

import math

import numpy as np
import pytest
import torch

from pydflash.kernels.ref import argmax as ref_argmax
from pydflash.kernels.ref import shortlist as ref_shortlist
from pydflash.kernels.ref import top as ref_top
from pydflash.kernels.triton.argmax import argmax
from pydflash.kernels.triton.shortlist import shortlist
from pydflash.kernels.triton.top import top
from pydflash.sampling import noise
from tests.backends import large

SHAPES = [(1, 1), (3, 15), (2, 300), (2, 5001)]
REAL = [(1, 49152), (24, 248320), (64, 248320)]


def shapes(device: torch.device) -> list[tuple[int, int]]:
    return SHAPES + (REAL if large(device) else [])


def random_logits(rows: int, vocab: int, device: torch.device) -> torch.Tensor:
    """Rows at a distance beyond their length; some with ties, signed zeros and minus infinity."""
    wide = torch.full((rows, vocab + 3), math.nan, device=device)
    out = wide[:, :vocab]
    out.copy_(torch.randn(rows, vocab) * 3)
    out[::2] = out[::2].round()
    out[::2][out[::2] == 0] *= -1.0
    out[::3, ::2] = -math.inf
    return out


def test_argmax(device: torch.device) -> None:
    for rows, vocab in shapes(device):
        logits = random_logits(rows, vocab, device)
        tokens, values, sound = argmax(logits)
        want = ref_argmax.argmax(logits)
        assert tokens.dtype == torch.int32
        assert torch.equal(tokens, want[0])
        assert torch.equal(values, want[1])
        assert sound.all()


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_argmax_says_which_rows_are_sound(device: torch.device, poison: float) -> None:
    for vocab in (5, 9001):
        for at in (0, vocab // 2, vocab - 1):
            logits = random_logits(4, vocab, device)
            logits[2, at] = poison
            tokens, _, sound = argmax(logits)
            assert sound.tolist() == [True, True, False, True]
            clean = [0, 1, 3]
            assert torch.equal(tokens[clean], ref_argmax.argmax(logits)[0][clean])


@pytest.mark.parametrize("k", [1, 8, 33, 300])
def test_top(device: torch.device, k: int) -> None:
    for rows, vocab in shapes(device):
        if k == 300 and not large(device) and vocab > 300:
            continue
        logits = random_logits(rows, vocab, device)
        values, ids, totals = top(logits, k)
        want = ref_top.top(logits, k)
        assert torch.equal(values, want[0])
        assert torch.equal(ids, want[1])
        torch.testing.assert_close(
            totals, logits.double().logsumexp(-1).float(), rtol=1e-6, atol=2e-6
        )


def test_top_of_extreme_and_stray_numbers(device: torch.device) -> None:
    logits = torch.full((4, 3000), -math.inf, device=device)
    logits[0, 40], logits[1] = 3e38, -3e38
    logits[3] = torch.randn(3000)
    logits[3, ::3] = math.nan
    values, ids, totals = top(logits, 4)
    assert values[0].tolist() == [logits[0, 40].item(), *[-math.inf] * 3]
    assert ids.tolist()[:3] == [[40, 0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert totals.tolist()[:3] == pytest.approx([3e38, -3e38, -math.inf])
    assert values[3].isfinite().all()
    assert totals[3].isnan()


def test_a_row_has_the_same_bits_in_any_company(device: torch.device) -> None:
    logits = random_logits(5, 3001, device)
    knobs, keys = _noise(5, device)
    together = [*top(logits, 8), *shortlist(logits, 8, knobs, keys)]
    for row in range(5):
        own = slice(row, row + 1)
        alone = [*top(logits[own], 8), *shortlist(logits[own], 8, knobs[own], keys[own])]
        assert all(torch.equal(a, b[own]) for a, b in zip(alone, together, strict=True))


def test_noise_is_the_hosts(device: torch.device) -> None:
    rows, vocab = (24, 248320) if large(device) else (2, 3000)
    knobs, keys = _noise(rows, device)
    knobs[:, 1] = 1.0
    logits = torch.zeros(rows, vocab, device=device)
    _, ids, marks, _ = shortlist(logits, 64, knobs, keys)
    for row in range(rows):
        key = int(keys[row]) % 2**64
        host = noise.gumbel(noise.uniforms(noise.weyl(vocab), key))
        assert np.abs(host[ids[row].cpu().numpy()] - marks[row].cpu().numpy()).max() < 1e-5
        assert marks[row, -1] >= np.sort(host)[-64] - 1e-5


def test_noise_at_the_ends_of_the_interval(device: torch.device) -> None:
    """Every size of uniform, the least and the largest too: keys are made to give them."""
    last = 2**52 - 1
    words = [0, 1, 2**20, 2**50, 2**51 - 1, 2**51, last - 2**45, last - 2**20, last - 1, last]
    odd = [_key_giving(word << 12) for word in words]
    keys = torch.tensor([k - 2**64 if k >= 2**63 else k for k in odd], device=device)
    knobs = torch.ones(len(odd), 2, device=device)
    _, _, marks, _ = shortlist(torch.zeros(len(odd), 1, device=device), 1, knobs, keys)
    want = [noise.gumbel(noise.uniforms(noise.weyl(1), k))[0] for k in odd]
    assert max(want) > 36
    assert min(want) < -3.6
    assert np.abs(np.array(want) - marks[:, 0].cpu().numpy()).max() < 1e-5


def test_shortlist(device: torch.device) -> None:
    for rows, vocab in shapes(device):
        logits = random_logits(rows, vocab, device)
        knobs, keys = _noise(rows, device)
        values, ids, marks, totals = shortlist(logits, 8, knobs, keys)
        want = ref_shortlist.shortlist(logits, 8, knobs, keys)
        torch.testing.assert_close(totals, want[3], rtol=1e-6, atol=5e-6)
        torch.testing.assert_close(marks, want[2], rtol=1e-6, atol=2e-5)
        assert torch.equal(values, logits.gather(1, ids.long()))
        quiet = knobs[:, 1] == 0
        assert torch.equal(ids[quiet], want[1][quiet])
        assert torch.equal(marks[quiet], values[quiet])


def _noise(rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    knobs = torch.stack([torch.rand(rows) * 2 + 0.3, (torch.arange(rows) % 3 != 1).float()], 1)
    keys = torch.randint(-(2**63), 2**63 - 1, (rows,))
    return knobs.to(device), keys.to(device)


def _key_giving(mixed: int) -> int:
    """The key whose noise for token 0 has `mixed` for its finalised word: the finaliser run backwards."""
    z = mixed
    for shift, factor in ((31, 1), (27, 0x94D049BB133111EB), (30, 0xBF58476D1CE4E5B9)):
        z = z * pow(factor, -1, 2**64) % 2**64 if factor != 1 else z
        back = z
        for _ in range(64 // shift + 1):
            back = z ^ (back >> shift)
        z = back
    return (z - 0x9E3779B97F4A7C15) % 2**64
