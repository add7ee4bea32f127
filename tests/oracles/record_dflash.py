"""Record what z-lab's `dflash` package makes of random drafters, for tests/draft/test_golden.py.

Run from the repository's root: pip install 'dflash[local]==0.1.0' speculators==0.9.0 --no-deps (and torch,
transformers 5.15), then
    PYTHONPATH=. python tests/oracles/record_dflash.py tests/golden
The weights are made by `tests.draft.golden_cases`. One file a drafter: the last hidden states (after the
norm) and logits of every round's block; for DFlash2 the selector's candidates, conditional probabilities
and greedy path; for DSpark the heads of `speculators` along the greedy path.
"""

import argparse
import sys
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from dflash.model import DFlash2DraftModel, DFlashDraftModel, _crop_to, _make_cache
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

from tests.draft.golden_cases import ANCHORS, CASES, MASK, Case, features, weights

NAMES = {
    "dflash.fc.weight": "fc.weight",
    "dflash.hidden_norm.weight": "hidden_norm.weight",
    "output_norm.weight": "norm.weight",
    "dflash.selector.hproj.weight": "candidate_selector.hidden_projection.weight",
    "dflash.selector.pred_cb": "candidate_selector.predecessor_codebook.weight",
    "dflash.selector.succ_cb": "candidate_selector.successor_codebook.weight",
}
PARTS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_conv.base": "attention_conv.base_kernel",
    "attn_conv.proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_conv.base": "mlp_conv.base_kernel",
    "ffn_conv.proj.weight": "mlp_conv.kernel_projection.weight",
}


def theirs(name: str) -> str | None:
    """z-lab's name of a canonical one; None for what their model does not hold."""
    if name.startswith("blk."):
        _, layer, part = name.split(".", 2)
        return f"layers.{layer}.{PARTS[part]}"
    return NAMES.get(name)


def build(case: Case) -> DFlashDraftModel:
    window = next((w for w in case.windows if w is not None), None)
    types = ["full_attention" if w is None else "sliding_attention" for w in case.windows]
    config = Qwen3Config(
        vocab_size=case.vocab,
        hidden_size=case.hidden,
        intermediate_size=case.ffn,
        num_hidden_layers=len(case.windows),
        num_attention_heads=case.heads,
        num_key_value_heads=case.kv_heads,
        head_dim=case.head_dim,
        rms_norm_eps=case.eps,
        rope_theta=case.theta,
        max_position_embeddings=4096,
        use_sliding_window=window is not None,
        sliding_window=window,
        layer_types=types,
        attention_bias=False,
    )
    config.num_target_layers = 8
    config.dflash_config = {
        "target_layer_ids": list(range(1, 1 + case.taps)),
        "mask_token_id": MASK,
        "block_size": case.block_size,
        "conv_kernel_size": 2,
        "conv_group_size": case.group,
        "selector_rank": case.rank,
        "selector_top_k": case.top_k,
    }
    if len(set(case.causal)) == 1:
        config.is_causal = case.causal[0]
    config._attn_implementation = "sdpa"
    model = (DFlash2DraftModel if case.conv else DFlashDraftModel)(config).eval()
    assert model.rotary_emb.config.rope_parameters["rope_theta"] == case.theta
    for layer, window, causal in zip(model.layers, case.windows, case.causal, strict=True):
        assert layer.self_attn.is_causal == causal
        assert layer.self_attn.sliding_window == window
    mine = {theirs(name): torch.from_numpy(x) for name, x in weights(case).items()}
    missing, unexpected = model.load_state_dict(
        {name: x for name, x in mine.items() if name is not None}, strict=False
    )
    assert not unexpected, unexpected
    assert all("rotary" in name for name in missing), missing
    return model


def selector(
    model: DFlash2DraftModel, hidden: torch.Tensor, logits: torch.Tensor, anchor: int
) -> dict:
    """Candidates int32 [S, K], log-probabilities f32 [S, K, K] after each predecessor, and the path."""
    select = model.candidate_selector
    unary, tokens = torch.topk(logits, select.top_k, dim=-1)
    before = torch.cat((torch.full((1, select.top_k), anchor), tokens[:-1]))
    pair = torch.einsum(
        "sar,sr,sbr->sab",
        select.predecessor_codebook(before),
        select.hidden_projection(hidden),
        select.successor_codebook(tokens),
    )
    path, _, _ = select.select(hidden[None], logits[None], torch.tensor([anchor]), 0.0)
    return {
        "tokens": tokens.int().numpy(),
        "pair": (pair + unary[:, None]).log_softmax(-1).numpy(),
        "path": path[0].int().numpy(),
    }


def speculators_heads() -> ModuleType:
    """The file of the heads alone: the package itself wants a server's client to be imported."""
    path = metadata.distribution("speculators").locate_file(
        "speculators/models/dspark/model_definitions.py"
    )
    spec = spec_from_file_location("dspark_heads", str(path))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dspark(case: Case, hidden: torch.Tensor, logits: torch.Tensor, anchor: int) -> dict:
    """Corrected logits f32 [S, V], path int32 [S] and confidence f32 [S] along the greedy path."""
    heads = speculators_heads()
    w = {n.removeprefix("dflash.dspark."): torch.from_numpy(x) for n, x in weights(case).items()}
    head = heads.MarkovHead(
        verifier_vocab_size=case.vocab,
        draft_vocab_size=case.vocab,
        markov_rank=case.rank,
        hidden_size=case.hidden,
    )
    head.load_state_dict({f"markov_w{i}.weight": w[f"markov.w{i}"] for i in (1, 2)})
    trust = heads.ConfidenceHead(case.hidden + case.rank)
    trust.load_state_dict(
        {"proj.weight": w["confidence.weight"], "proj.bias": w["confidence.bias"]}
    )
    corrected, path = [], [anchor]
    for slot, own in enumerate(logits):
        previous = torch.tensor([[path[-1]]])
        bias = head.block_bias(prev_token_ids=previous, hidden_states=hidden[None, slot : slot + 1])
        corrected.append(own + bias[0, 0])
        path.append(int(corrected[-1].argmax()))
        rank = int((own > own[path[-1]]).sum())
        assert rank < 32, f"the best token is only the network's {rank}th: choose another seed"
    embedded = head.prev_embeddings(torch.tensor(path[:-1]))
    confidence = trust(torch.cat((hidden, embedded), -1)).sigmoid()
    return {
        "corrected": torch.stack(corrected).numpy(),
        "path": np.array(path[1:], np.int32),
        "confidence": confidence.numpy(),
    }


@torch.inference_mode()
def record(case: Case) -> dict[str, np.ndarray]:
    model, w = build(case), weights(case)
    embd = torch.from_numpy(w["token_embd.weight"])
    output = torch.from_numpy(w["target.output.weight"])
    known = torch.from_numpy(features(case))[None]
    cache = _make_cache(model.config)
    out: dict[str, list[np.ndarray]] = {"hidden": [], "logits": []}
    start = 0
    for count, anchor in zip(case.rounds, ANCHORS, strict=True):
        end = start + count
        ids = torch.tensor([anchor] + [MASK] * (case.block_size - 1))
        hidden = model(
            target_hidden=known[:, start:end],
            noise_embedding=embd[ids][None],
            position_ids=torch.arange(start, end + case.block_size)[None],
            past_key_values=cache,
            use_cache=True,
        )[0]
        _crop_to(cache, end)
        start = end
        drafted = hidden if case.markov else hidden[1:]
        logits = drafted @ output.T
        out["hidden"].append(drafted.numpy())
        out["logits"].append(logits.numpy())
        more = {}
        if case.conv:
            more = selector(model, drafted, logits, anchor)
        elif case.markov:
            more = dspark(case, drafted, logits, anchor)
        for key, value in more.items():
            out.setdefault(key, []).append(value)
    return {key: np.stack(values) for key, values in out.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    for case in CASES.values():
        path = args.out / f"dflash_{case.name}.npz"
        np.savez_compressed(path, **record(case))
        print(path, path.stat().st_size, file=sys.stderr)


if __name__ == "__main__":
    main()
