"""Gated DeltaNet between its projections: convolution, gates, recurrence, gated norm. The specification.

Exact rows go token by token from the parent's state, each token with the same shapes, so that a node of a
tree, a recomputed token and a decoded one are the same operations. Prefill rows use the chunked (WY) form on
the grid of absolute positions (Yang et al., "Gated Delta Networks", section 3; Qwen3.5's own code agrees).
"""

from dataclasses import dataclass

import torch

from pydflash.kernels.ops import DELTA_CHUNK, DeltaArgs, Paths, Recurrent, RowKind, StepBatch, Tape
from pydflash.kernels.ref.pointwise import rms_norm

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class _Tokens:
    """n tokens after convolution and gates: q, k [n, Hk, Dk]; v [n, Hv, Dv]; log_decay, beta [n, Hv]."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    beta: Tensor


def delta(mixed: Tensor, recurrent: Recurrent, args: DeltaArgs, batch: StepBatch) -> Tensor:
    """mixed f32 [T, C + Hv * Dv + 2 Hv] -> f32 [T, Hv * Dv]. Advances slots or fills the tape."""
    out = mixed.new_empty(mixed.shape[0], args.inner)
    recurrent.tape = None
    slots = batch.slots.tolist()
    for row, kind in enumerate(batch.kinds):
        start, stop = batch.cu_q[row], batch.cu_q[row + 1]
        rows = mixed[start:stop]
        if start == stop:
            continue  # a row of padding
        if kind is RowKind.PREFILL:
            out[start:stop] = _prefill(rows, recurrent, slots[row], args, int(batch.base[row]))
        elif stop - start == 1:
            out[start] = _advance_slot(rows, recurrent, slots[row], args)
        else:
            tape = _tape(recurrent, args, batch)
            out[start:stop] = _tree(rows, recurrent, slots[row], args, batch, tape, start)
    return out


def delta_commit(recurrent: Recurrent, paths: Paths) -> None:
    """Advance each slot along its accepted tokens by the operands on the tape."""
    tape = recurrent.tape
    assert tape is not None, "a commit without the step it belongs to"
    nodes = paths.nodes.tolist()
    for i, slot in enumerate(paths.slots.tolist()):
        for t in nodes[paths.cu[i] : paths.cu[i + 1]]:
            recurrent.state[slot] = _update(
                recurrent.state[slot], tape.k[t], tape.delta[t], tape.decay[t]
            )
            recurrent.conv[slot] = torch.cat((recurrent.conv[slot, 1:], tape.rows[t : t + 1]))


def _advance_slot(row: Tensor, recurrent: Recurrent, slot: int, args: DeltaArgs) -> Tensor:
    """One token in place. row f32 [1, ...] -> f32 [Hv * Dv]."""
    window = torch.cat((recurrent.conv[slot], row[:, : args.channels]))
    token = _tokens(window[None], row, args)
    out, state, _ = _step(recurrent.state[slot], token, args)
    recurrent.state[slot] = state
    recurrent.conv[slot] = window[1:]
    return _gated_norm(out, row[0], args)


def _tree(
    rows: Tensor,
    recurrent: Recurrent,
    slot: int,
    args: DeltaArgs,
    batch: StepBatch,
    tape: Tape,
    start: int,
) -> Tensor:
    """Nodes of one row, depth first, so that a state lives only while its subtree is walked."""
    count = len(rows)
    parents = list(range(-1, count - 1))
    if batch.parents is not None:
        parents = [int(p) - start if p >= 0 else -1 for p in batch.parents[start : start + count]]
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    out = rows.new_empty(count, args.inner)
    first = (recurrent.state[slot], recurrent.conv[slot])
    stack = [(node, *first) for node in reversed(children[-1])]
    while stack:
        node, state, conv = stack.pop()
        row = rows[node : node + 1]
        window = torch.cat((conv, row[:, : args.channels]))
        token = _tokens(window[None], row, args)
        result, after, delta = _step(state, token, args)
        t = start + node
        tape.k[t], tape.delta[t], tape.rows[t] = token.k[0], delta, row[0, : args.channels]
        tape.decay[t] = token.log_decay[0].exp()
        out[node] = _gated_norm(result, row[0], args)
        stack += [(child, after, window[1:]) for child in reversed(children.get(node, []))]
    return out


def _prefill(
    rows: Tensor, recurrent: Recurrent, slot: int, args: DeltaArgs, position: int
) -> Tensor:
    """A prompt chunk from `position` on, in pieces that end on the grid; advances the slot."""
    width = args.conv.shape[1]
    raw = torch.cat((recurrent.conv[slot], rows[:, : args.channels]))
    out = []
    start = 0
    while start < len(rows):
        room = DELTA_CHUNK - (position + start) % DELTA_CHUNK
        stop = min(start + room, len(rows))
        windows = raw[start : stop + width - 1].unfold(0, width, 1).transpose(1, 2)  # [n, W, C]
        tokens = _tokens(windows, rows[start:stop], args)
        result, recurrent.state[slot] = _chunk(recurrent.state[slot], tokens, args)
        out.append(_gated_norm(result, rows[start:stop], args))
        start = stop
    recurrent.conv[slot] = raw[len(raw) - width + 1 :]
    return torch.cat(out)


def _tokens(windows: Tensor, rows: Tensor, args: DeltaArgs) -> _Tokens:
    """Convolution over windows f32 [n, W, C], silu, l2 norms; gates from rows f32 [n, ...]."""
    n, Hk, Hv = len(rows), args.k_heads, args.v_heads
    mixed = torch.nn.functional.silu((windows * args.conv.T).sum(1))
    q, k, v = torch.split(mixed, [Hk * args.k_dim, Hk * args.k_dim, args.inner], -1)
    alpha, beta = rows[:, -2 * Hv : -Hv], rows[:, -Hv:]
    return _Tokens(
        q=_l2_norm(q.reshape(n, Hk, args.k_dim), args.eps) * args.k_dim**-0.5,
        k=_l2_norm(k.reshape(n, Hk, args.k_dim), args.eps),
        v=v.reshape(n, Hv, args.v_dim),
        log_decay=torch.nn.functional.softplus(alpha + args.dt_bias) * args.a,
        beta=beta.sigmoid(),
    )


def _step(state: Tensor, token: _Tokens, args: DeltaArgs) -> tuple[Tensor, Tensor, Tensor]:
    """One token from `state` [Hv, Dk, Dv]: result [Hv, Dv], the state after it, delta [Hv, Dv]."""
    q, k = _tiled(token.q[0], args.v_heads), _tiled(token.k[0], args.v_heads)
    decay = token.log_decay[0].exp()
    seen = (state * k[:, :, None]).sum(1)
    delta = (token.v[0] - decay[:, None] * seen) * token.beta[0][:, None]
    after = _update(state, token.k[0], delta, decay)
    return (after * q[:, :, None]).sum(1), after, delta


def _update(state: Tensor, k: Tensor, delta: Tensor, decay: Tensor) -> Tensor:
    """decay * state + k delta^T. state [Hv, Dk, Dv], k [Hk, Dk], delta [Hv, Dv], decay [Hv]."""
    k = _tiled(k, len(state))
    return state * decay[:, None, None] + k[:, :, None] * delta[:, None, :]


def _chunk(state: Tensor, tokens: _Tokens, args: DeltaArgs) -> tuple[Tensor, Tensor]:
    """n tokens at once: results [n, Hv, Dv] and the state after them.

    With g the running sum of log decays, the deltas solve (I + L) delta = beta (v - e^g S0^T k), where
    L[t, s] = beta_t e^(g_t - g_s) k_t . k_s below the diagonal. Every exponent is at most 0.
    """
    q = _tiled(tokens.q, args.v_heads).transpose(0, 1)  # [Hv, n, Dk]
    k = _tiled(tokens.k, args.v_heads).transpose(0, 1)
    v, beta = tokens.v.transpose(0, 1), tokens.beta.T[:, :, None]
    g = tokens.log_decay.T.cumsum(-1)  # [Hv, n]
    lower = torch.ones(len(tokens.v), len(tokens.v), dtype=torch.bool, device=v.device).tril()
    between = (g[:, :, None] - g[:, None, :]).masked_fill(~lower, float("-inf")).exp()
    since = g.exp()[:, :, None]
    solved = torch.linalg.solve_triangular(
        (beta * between * (k @ k.mT)).tril(-1),
        beta * (v - since * (k @ state)),
        upper=False,
        unitriangular=True,
    )
    out = since * (q @ state) + (between * (q @ k.mT)) @ solved
    left = (g[:, -1:] - g).exp()[:, :, None]
    after = state * g[:, -1, None, None].exp() + (left * k).mT @ solved
    return out.transpose(0, 1), after


def _gated_norm(result: Tensor, rows: Tensor, args: DeltaArgs) -> Tensor:
    """rms norm of each value head of result [..., Hv, Dv], times silu(z) -> [..., Hv * Dv]."""
    z = rows[..., args.channels : args.channels + args.inner]
    return rms_norm(result, args.norm, args.eps).flatten(-2) * torch.nn.functional.silu(z)


def _l2_norm(x: Tensor, eps: float) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=eps)


def _tiled(x: Tensor, heads: int) -> Tensor:
    """Key heads [..., Hk, Dk] under value heads: head h is key head h mod Hk."""
    return x.repeat(*[1] * (x.dim() - 2), heads // x.shape[-2], 1)


def _tape(recurrent: Recurrent, args: DeltaArgs, batch: StepBatch) -> Tape:
    """The step's tape, made when the first row needs it."""
    if recurrent.tape is None:
        exact = sum(kind is RowKind.EXACT for kind in batch.kinds)
        T, like = batch.cu_q[exact], recurrent.state
        recurrent.tape = Tape(
            k=like.new_empty(T, args.k_heads, args.k_dim),
            delta=like.new_empty(T, args.v_heads, args.v_dim),
            decay=like.new_empty(T, args.v_heads),
            rows=like.new_empty(T, args.channels),
        )
    return recurrent.tape
