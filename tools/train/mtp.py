"""The multi-token-prediction layer of DeepSeek V3 and V3.2 behind a frozen trunk, in plain PyTorch.

Row i of use 1 takes token i+1 and the trunk's hidden state of token i (after the final norm), and predicts token i+2;
use s takes token i+s and the output of use s-1 for row i (after the layer's own norm), is at position i+s-1, and
predicts token i+s+1. Uses after the first read the keys of use 1 up to row i and those of their own row.
Names and formulas follow the published checkpoints: enorm, hnorm, eh_proj over [embedding, hidden], one decoder layer,
shared_head.norm; embedding and head are the trunk's.
"""

import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention import Packing, _index_scores, attend, index_loss, select
from export import stored_weights
from model import Layer, Linear, Model, MoE, RMSNorm, Router
from quantise import fake_kv, fp8_block_values


def sequence_ends(packing: Packing) -> torch.Tensor:
    """int64 [T]: the length of the sequence that a token belongs to."""
    lengths = packing.bounds.diff().long()
    return torch.repeat_interleave(lengths, lengths, output_size=len(packing.positions))


class MtpLayer(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        hidden = c["hidden_size"]
        self.config = c
        self.enorm, self.hnorm = RMSNorm(hidden), RMSNorm(hidden)
        self.eh_proj = Linear(2 * hidden, hidden)
        self.layer = Layer(c, c["num_hidden_layers"])
        self.norm = RMSNorm(hidden)

    def start_from(self, trunk: Model) -> None:
        """The trunk's last layer, fed with the mean of embedding and hidden state: a better start than noise."""
        self.layer.load_state_dict(trunk.layers[-1].state_dict())
        half = 0.5 * torch.eye(self.eh_proj.weight.shape[0], device=self.eh_proj.weight.device)
        self.eh_proj.weight.data.copy_(torch.cat((half, half), 1))

    def adam_parameters(self) -> list[nn.Parameter]:
        routers = [m.weight for m in self.modules() if isinstance(m, Router)]
        return [*routers, *(p for p in self.parameters() if p.ndim == 1)]

    def set_rounding(self, on: bool) -> None:
        """Fake-quantises what the checkpoint stores as fp8; eh_proj and the indexer's weights_proj stay bf16."""
        for name, module in self.layer.named_modules():
            if isinstance(module, (Linear, MoE)) and not name.endswith("weights_proj"):
                module.fp8 = on
        self.layer.self_attn.indexer.quantise = on

    def combine(self, embedded: torch.Tensor, hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        x = torch.cat((self.enorm(embedded.float()), self.hnorm(hidden.float())), -1).to(dtype)
        return self.eh_proj(x).float()


def trunk_states(trunk: Model, tokens: torch.Tensor, packing: Packing):
    """The layer's input from the trunk, and the hidden states behind the trunk's logits: here they are the same."""
    hidden = trunk(tokens, packing)
    return hidden, hidden


def published(mtp: MtpLayer) -> dict[str, torch.Tensor]:
    """The tensors under their published names, behind the last layer; fp8 except eh_proj and the usual few."""
    weights = {}
    prefix = f"model.layers.{mtp.config['num_hidden_layers']}."
    for name, value in mtp.state_dict().items():
        value = value.float().cpu()
        name = "shared_head.norm.weight" if name == "norm.weight" else name.removeprefix("layer.")
        stack = name.rpartition(".")[2]
        if stack in ("experts_gate", "experts_up", "experts_down"):
            for i, expert in enumerate(value):
                weights[prefix + name.replace(stack, f"experts.{i}.{stack.removeprefix('experts_')}_proj.weight")] = expert
        else:
            weights[prefix + name] = value
    eh = prefix + "eh_proj.weight"
    return stored_weights({n: v for n, v in weights.items() if n != eh}, True) | {
        eh: weights[eh].to(torch.bfloat16).contiguous()
    }


def _decoded(path: pathlib.Path) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors in float32, under the names of this folder's modules: experts are stacked."""
    stored = load_file(path)
    state: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for name, value in stored.items():
        if name.endswith("_scale_inv"):
            continue
        scale = stored.get(name + "_scale_inv")
        value = value.float() if scale is None else fp8_block_values(value, scale)
        name = name.removeprefix("model.")
        before, _, after = name.partition(".experts.")
        if after:
            number, kind, _ = after.split(".")
            experts.setdefault(f"{before}.experts_{kind.removesuffix('_proj')}", {})[int(number)] = value
        else:
            state["embed_tokens" if name == "embed_tokens.weight" else name] = value
    return state | {name: torch.stack([parts[i] for i in range(len(parts))]) for name, parts in experts.items()}


def load_trunk(folder: pathlib.Path, architecture: dict, device) -> Model:
    """The shipped checkpoint, decoded: what runs there, to the bit, in float32."""
    model = Model(architecture)
    model.load_state_dict(_decoded(folder / "model.safetensors"))
    model.sparse = True
    model.set_index_quantise(True)
    return model.to(device).requires_grad_(False)


def load_mtp(folder: pathlib.Path, architecture: dict, device) -> MtpLayer:
    """The layer of folder/mtp.safetensors, decoded."""
    prefix = f"layers.{architecture['num_hidden_layers']}."
    own = {"enorm.weight", "hnorm.weight", "eh_proj.weight"}
    state = {}
    for name, value in _decoded(folder / "mtp.safetensors").items():
        name = name.removeprefix(prefix)
        name = "norm.weight" if name == "shared_head.norm.weight" else name if name in own else "layer." + name
        state[name] = value
    mtp = MtpLayer(architecture)
    mtp.load_state_dict(state)
    mtp.layer.self_attn.indexer.quantise = True
    return mtp.to(device).requires_grad_(False)


def _attend_chain(q, keys, values, scale: float, packing: Packing, chosen):
    """Query row i over keys[0] as `chosen` (or causality) says, and over row i of each of keys[1:]."""
    outs = []
    for i, bucket in enumerate(packing.buckets):
        width = bucket.width
        mask = chosen[i] if chosen else None
        if mask is None:
            mask = torch.ones(width, width, dtype=torch.bool, device=q.device).tril()[None]
        own = torch.eye(width, dtype=torch.bool, device=q.device)[None].expand(mask.shape[0], -1, -1)
        mask = torch.cat([mask] + [own] * (len(keys) - 1), -1)
        bias = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, float("-inf"))
        bias = bias[:, None].expand(bucket.count, q.shape[1], -1, -1)
        k = torch.cat([bucket.take(k) for k in keys], 1).transpose(1, 2)
        v = torch.cat([bucket.take(v) for v in values], 1).transpose(1, 2)
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            out = F.scaled_dot_product_attention(bucket.take(q).transpose(1, 2), k, v, attn_mask=bias, scale=scale)
        outs.append(out.transpose(1, 2))
    return packing.pack(outs)


def run_uses(
    trunk: Model,
    mtp: MtpLayer,
    tokens: torch.Tensor,
    packing: Packing,
    hidden: torch.Tensor,
    uses: int,
    sparse: bool,
    index_rows: int = 0,
    stats: dict | None = None,
) -> list[torch.Tensor]:
    """Per use the normed hidden states [T, hidden] whose head logits predict token i+s+1 in row i.

    Rows whose tokens are past their sequence's end are meaningless.
    """
    layer, attention = mtp.layer, mtp.layer.self_attn
    embedded = F.embedding(tokens, trunk.embed_tokens)
    keys, values, outs, chosen = [], [], [], None
    for s in range(1, uses + 1):
        at = (packing.positions + (s - 1)).clamp_max(len(trunk.cos) - 1)
        cos, sin = trunk.cos[at], trunk.sin[at]
        h = mtp.combine(embedded.roll(-s, 0), hidden, trunk.dtype)
        x, q, q_lora, nope, rope = layer.before(h, cos, sin, trunk.dtype)
        nope, rope = fake_kv(trunk.cache, nope, rope)
        k, v = layer.expand(nope, rope)
        keys.append(k)
        values.append(v)
        if s == 1:
            if sparse or index_rows:
                index = attention.indexer(x.detach(), q_lora.detach(), cos, sin)
                if index_rows:
                    topk = mtp.config["index_topk"]
                    loss, mass = index_loss(q, k, attention.scale, index, topk, index_rows, packing)
                    stats["index_loss"], stats["index_mass"] = loss, mass
                if sparse:
                    chosen = select(index, mtp.config["index_topk"], packing)
            attended = attend(q, k, v, attention.scale, packing, chosen)
        else:
            attended = _attend_chain(q, keys, values, attention.scale, packing, chosen)
        h, load = layer.after(h, attended)
        if stats is not None:
            stats.setdefault("load", []).append(load)
        hidden = mtp.norm(h).to(trunk.dtype)
        outs.append(hidden)
    return outs


@torch.no_grad()
def draft(trunk: Model, mtp: MtpLayer, ids: list[int], uses: int, share: bool = False) -> tuple[list[int], torch.Tensor]:
    """Drafts as an engine does after a prompt: the trunk's token, then `uses` drafts by argmax, one row at a time.

    share: uses after the first read the keys that the indexer chose for its last row (GLM's index_share_for_mtp_iteration).
    Returns [the trunk's token, drafts...] and the drafts' logits [uses, vocabulary] float32.
    """
    device = trunk.embed_tokens.device
    tokens = torch.tensor(ids, device=device)
    hidden = trunk(tokens, Packing([len(ids)], device))
    given = [int(trunk.logits(hidden[-1:]).argmax())]
    layer, attention, topk = mtp.layer, mtp.layer.self_attn, mtp.config["index_topk"]
    held: list[list[torch.Tensor]] = [[], [], []]  # keys, values, index keys
    rows = torch.cat((tokens[1:], tokens.new_tensor(given)))
    at = torch.arange(len(ids), device=device)
    logits = []
    chosen = None
    for _ in range(uses):
        cos, sin = trunk.cos[at], trunk.sin[at]
        h = mtp.combine(F.embedding(rows, trunk.embed_tokens), hidden, trunk.dtype)
        x, q, q_lora, nope, rope = layer.before(h, cos, sin, trunk.dtype)
        index = attention.indexer(x, q_lora, cos, sin)
        for kept, part in zip(held, (*layer.expand(*fake_kv(trunk.cache, nope, rope)), index[1])):
            kept.append(part)
        k, v, index_keys = (torch.cat(kept) for kept in held)
        seen = torch.arange(len(k), device=device) <= at[:, None]
        if chosen is not None:
            seen = F.pad(chosen, (0, len(k) - len(chosen)))[None]
        elif len(k) > topk:
            scores = _index_scores(index[0][None], index_keys[None], index[2][None])[0]
            picks = scores.masked_fill(~seen, float("-inf")).topk(topk, -1).indices
            seen &= torch.zeros_like(seen).scatter_(-1, picks, True)
        if share and len(k) > topk:
            chosen = seen[-1]
        scores = torch.einsum("rhd,shd->hrs", q.float(), k.float()) * attention.scale
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        attended = torch.einsum("hrs,shd->rhd", weights, v.float()).to(trunk.dtype)
        hidden = mtp.norm(layer.after(h, attended)[0]).to(trunk.dtype)[-1:]
        logits.append(trunk.logits(hidden)[0].float())
        given.append(int(logits[-1].argmax()))
        rows, at = tokens.new_tensor(given[-1:]), at[-1:] + 1
    return given, torch.stack(logits)
