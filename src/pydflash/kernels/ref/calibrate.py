"""What a drafter's scores are worth, by the map that `spec.calibration` learned. The specification."""

import torch

Tensor = torch.Tensor


def calibrate(values: Tensor, totals: Tensor, shift: Tensor, low: int) -> Tensor:
    """Logits f32 [R, S, K], their logsumexp f32 [R, S], shift f64 [D + 1, B] -> logp f32 [2, R, S, K].

    shift[d] is added to the log-odds of slot min(d, D - 1), by what lies between the two nearest of the
    knots low, low + 1, ..; it gives the first half. The second half is for parents off the best path, by
    shift[D]. What is no number never comes.
    """
    logp = (values - totals[..., None]).nan_to_num(
        nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf
    )
    wide = logp.double().clamp(-60.0, -1e-5)
    odds = wide - torch.log(-torch.expm1(wide))
    bins = shift.shape[1]
    place = odds.clamp(low, low + bins - 1) - low
    knot = place.long().clamp(max=bins - 2)
    line = torch.arange(values.shape[1], device=values.device).clamp(max=len(shift) - 2)
    out = []
    for lines in (line[:, None].expand(*values.shape), torch.full_like(knot, len(shift) - 1)):
        left = shift[lines, knot]
        moved = odds + left + (shift[lines, knot + 1] - left) * (place - knot)
        out.append(torch.where(logp == -torch.inf, logp, -torch.log1p(torch.exp(-moved)).float()))
    return torch.stack(out)
