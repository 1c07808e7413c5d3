"""The two architectures in plain PyTorch, on flat packed rows of tokens.

Every module takes tokens as [T, ...], several sequences one after the other; only attention.py knows where they end.
Formulas follow Hugging Face's DeepseekV32ForCausalLM and Qwen3ForCausalLM, and check_export.py compares the logits
with theirs. Master weights are float32; arithmetic is in `Model.dtype` (bf16 in training), the residual stream in
float32.
"""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn

from attention import Packing, attend, index_loss, select
from quantise import GROUPED_CACHES, LATENT_CACHES, fake_fp8_block, fake_fp8_rows_pow2, fake_kv

# How often training passes keys and values through each cache, by whether they are latents.
CACHE_SHARES = {
    True: {"none": 0.3, "fp8": 0.25, "fp8_block": 0.2, "fp4": 0.25},
    False: {"none": 0.5, "fp8": 0.5},
}


class Linear(nn.Module):
    """y = x W^T with W cast to x's dtype; with `fp8`, W goes through e4m3 128x128 blocks first (straight-through)."""

    def __init__(self, inputs: int, outputs: int, std: float = 0.02):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * std)
        self.fp8 = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = fake_fp8_block(self.weight) if self.fp8 else self.weight
        return F.linear(x, weight.to(x.dtype))


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps))


def rope_table(dim: int, theta: float, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, [positions, dim / 2] float32."""
    frequency = 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)
    angle = torch.arange(positions).float()[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Interleaved RoPE: rotates dims (2i, 2i+1). x [T, H, D]; cos, sin [T, D/2]."""
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)


def rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Split-half RoPE: rotates dims (i, i + D/2). x [T, H, D]; cos, sin [T, D/2]."""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class MLP(nn.Module):
    def __init__(self, hidden: int, inner: int, std_out: float):
        super().__init__()
        self.gate_proj = Linear(hidden, inner)
        self.up_proj = Linear(hidden, inner)
        self.down_proj = Linear(inner, hidden, std_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    """Sigmoid scores; the top experts by score plus correction bias, weighted by their normalised scores alone."""

    def __init__(self, c: dict):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c["n_routed_experts"], c["hidden_size"]) * 0.02)
        self.register_buffer("e_score_correction_bias", torch.zeros(c["n_routed_experts"]))
        self.top_k, self.scale = c["num_experts_per_tok"], c["routed_scaling_factor"]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights [T, E], 0 for experts not chosen, and the share of tokens per expert [E]."""
        scores = F.linear(x.float(), self.weight.float()).sigmoid()
        chosen = (scores + self.e_score_correction_bias).topk(self.top_k, -1).indices
        mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        weights = scores * mask
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.scale
        return weights, mask.mean(0)


class MoE(nn.Module):
    """A shared expert plus routed ones. All experts run on every token: at this size that is faster than sorting."""

    def __init__(self, c: dict, std_out: float):
        super().__init__()
        experts, inner, hidden = c["n_routed_experts"], c["moe_intermediate_size"], c["hidden_size"]
        self.gate = Router(c)
        self.experts_gate = nn.Parameter(torch.randn(experts, inner, hidden) * 0.02)
        self.experts_up = nn.Parameter(torch.randn(experts, inner, hidden) * 0.02)
        self.experts_down = nn.Parameter(torch.randn(experts, hidden, inner) * std_out)
        self.shared_experts = MLP(hidden, inner * c["n_shared_experts"], std_out)
        self.fp8 = False

    def _weight(self, stack: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (fake_fp8_block(stack) if self.fp8 else stack).to(x.dtype)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, load = self.gate(x)
        experts, inner, _ = self.experts_gate.shape
        gate = F.linear(x, self._weight(self.experts_gate, x).flatten(0, 1))
        up = F.linear(x, self._weight(self.experts_up, x).flatten(0, 1))
        inside = (F.silu(gate) * up).unflatten(-1, (experts, inner)) * weights.to(x.dtype)[..., None]
        down = self._weight(self.experts_down, x).transpose(1, 2).flatten(0, 1)
        return inside.flatten(-2) @ down + self.shared_experts(x), load


class Indexer(nn.Module):
    """Scores that choose which positions attention reads: sum over heads of w_h relu(q_h . k)."""

    def __init__(self, c: dict):
        super().__init__()
        self.heads, self.dim, self.rope = c["index_n_heads"], c["index_head_dim"], c["qk_rope_head_dim"]
        self.wq_b = Linear(c["q_lora_rank"], self.heads * self.dim)
        self.wk = Linear(c["hidden_size"], self.dim, 0.06)
        self.k_norm = nn.LayerNorm(self.dim, eps=1e-6)
        self.weights_proj = Linear(c["hidden_size"], self.heads, 0.06)
        self.quantise = False

    def forward(self, x: torch.Tensor, q_lora: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
        """q [T, heads, dim], k [T, dim] and head weights [T, heads] float32 with all scales in them."""
        q = self.wq_b(q_lora).unflatten(-1, (self.heads, self.dim))
        k = self.k_norm(self.wk(x).float()).to(x.dtype)[:, None]
        q = torch.cat((rotate_halves(q[..., : self.rope], cos, sin), q[..., self.rope :]), -1)
        k = torch.cat((rotate_halves(k[..., : self.rope], cos, sin), k[..., self.rope :]), -1)[:, 0]
        if self.quantise:
            q, k = fake_fp8_rows_pow2(q), fake_fp8_rows_pow2(k)
        weights = self.weights_proj(x).float() * (self.heads**-0.5 * self.dim**-0.5)
        return q, k, weights


class LatentAttention(nn.Module):
    """MLA: queries through a low rank, keys and values from a cached latent [512] plus a shared rotated key [64]."""

    def __init__(self, c: dict, std_out: float):
        super().__init__()
        heads, hidden = c["num_attention_heads"], c["hidden_size"]
        self.heads, self.rank = heads, c["kv_lora_rank"]
        self.nope, self.rope, self.v_dim = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        self.q_a_proj = Linear(hidden, c["q_lora_rank"], 0.04)
        self.q_a_layernorm = RMSNorm(c["q_lora_rank"])
        self.q_b_proj = Linear(c["q_lora_rank"], heads * (self.nope + self.rope), 0.04)
        self.kv_a_proj_with_mqa = Linear(hidden, self.rank + self.rope, 0.04)
        self.kv_a_layernorm = RMSNorm(self.rank)
        self.kv_b_proj = Linear(self.rank, heads * (self.nope + self.v_dim), 0.04)
        self.o_proj = Linear(heads * self.v_dim, hidden, std_out)
        self.indexer = Indexer(c)
        self.scale = (self.nope + self.rope) ** -0.5

    def queries_and_latent(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
        q_lora = self.q_a_layernorm(self.q_a_proj(x)).to(x.dtype)
        q = self.q_b_proj(q_lora).unflatten(-1, (self.heads, self.nope + self.rope))
        q = torch.cat((q[..., : self.nope], rotate_pairs(q[..., self.nope :], cos, sin)), -1)
        latent = self.kv_a_proj_with_mqa(x)
        nope = self.kv_a_layernorm(latent[:, : self.rank]).to(x.dtype)
        rope = rotate_pairs(latent[:, None, self.rank :], cos, sin)[:, 0]
        return q, q_lora, nope, rope

    def expand(self, nope: torch.Tensor, rope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kv = self.kv_b_proj(nope).unflatten(-1, (self.heads, self.nope + self.v_dim))
        k = torch.cat((kv[..., : self.nope], rope[:, None].expand(-1, self.heads, -1)), -1)
        return k, kv[..., self.nope :]


class GroupedAttention(nn.Module):
    """Qwen3's attention: grouped queries, RMSNorm on each head's q and k, split-half RoPE."""

    def __init__(self, c: dict, std_out: float):
        super().__init__()
        hidden, self.dim = c["hidden_size"], c["head_dim"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.q_proj = Linear(hidden, self.heads * self.dim, 0.04)
        self.k_proj = Linear(hidden, self.kv_heads * self.dim, 0.04)
        self.v_proj = Linear(hidden, self.kv_heads * self.dim, 0.04)
        self.q_norm, self.k_norm = RMSNorm(self.dim), RMSNorm(self.dim)
        self.o_proj = Linear(self.heads * self.dim, hidden, std_out)
        self.scale = self.dim**-0.5

    def project(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.dim))).to(x.dtype)
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, self.dim))).to(x.dtype)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        return rotate_halves(q, cos, sin), rotate_halves(k, cos, sin), v


class Layer(nn.Module):
    def __init__(self, c: dict, index: int):
        super().__init__()
        std_out = 0.02 / (2 * c["num_hidden_layers"]) ** 0.5
        self.latent = c["model_type"] == "deepseek_v32"
        self.self_attn = LatentAttention(c, std_out) if self.latent else GroupedAttention(c, std_out)
        self.sparse_mlp = self.latent and index >= c["first_k_dense_replace"]
        self.mlp = MoE(c, std_out) if self.sparse_mlp else MLP(c["hidden_size"], c["intermediate_size"], std_out)
        self.input_layernorm = RMSNorm(c["hidden_size"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"])

    # What is compiled: the parts before, amid and after attention, which work token by token.

    def before(self, h: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, dtype: torch.dtype):
        x = self.input_layernorm(h).to(dtype)
        if self.latent:
            return x, *self.self_attn.queries_and_latent(x, cos, sin)
        return x, *self.self_attn.project(x, cos, sin)

    def expand(self, nope: torch.Tensor, rope: torch.Tensor):
        return self.self_attn.expand(nope, rope)

    def after(self, h: torch.Tensor, attended: torch.Tensor):
        h = h + self.self_attn.o_proj(attended.flatten(-2)).float()
        x = self.post_attention_layernorm(h).to(attended.dtype)
        if self.sparse_mlp:
            out, load = self.mlp(x)
            return h + out.float(), load
        return h + self.mlp(x).float(), None


class Model(nn.Module):
    """Tokens [T] to hidden states [T, hidden]; the output head shares the embedding's weights."""

    width_of = staticmethod(int)  # tokens that a sequence takes in a packed row
    pack = staticmethod(Packing)

    def __init__(self, c: dict):
        super().__init__()
        self.config = c
        self.embed_tokens = nn.Parameter(torch.randn(c["vocab_size"], c["hidden_size"]) * 0.02)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"])
        self.latent = self.has_indexer = c["model_type"] == "deepseek_v32"
        self.caches = LATENT_CACHES if self.latent else GROUPED_CACHES
        self.cache_shares = CACHE_SHARES[self.latent]
        self.dtype = torch.bfloat16
        self.cache = "none"  # the cache layout that keys and values are passed through; see quantise.fake_kv
        self.sparse = False  # attention reads only what the indexer selects
        self.index_rows = 0  # query rows per sequence on which the indexer's loss is taken, 0 for none
        cos, sin = rope_table(
            c["qk_rope_head_dim"] if self.latent else c["head_dim"],
            c["rope_theta"],
            c["max_position_embeddings"],
        )
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def set_weight_rounding(self, on: bool) -> None:
        """Fake-quantises every weight that the checkpoint stores as fp8."""
        for name, module in self.named_modules():
            if isinstance(module, (Linear, MoE)) and not name.endswith("weights_proj"):
                module.fp8 = on

    def set_index_quantise(self, on: bool) -> None:
        for module in self.modules():
            if isinstance(module, Indexer):
                module.quantise = on

    def indexer_parameters(self) -> list[nn.Parameter]:
        return [p for n, p in self.named_parameters() if ".indexer." in n]

    def adam_parameters(self) -> list[nn.Parameter]:
        """Those that AdamW trains: vectors, the embedding and the routers; Muon takes the others."""
        routers = [m.weight for m in self.modules() if isinstance(m, Router)]
        return [self.embed_tokens, *routers, *(p for p in self.parameters() if p.ndim == 1)]

    def forward(self, tokens: torch.Tensor, packing: Packing, stats: dict | None = None) -> torch.Tensor:
        """`stats` receives "load" [layers, E], "index_loss" (with a gradient) and "index_mass" per layer."""
        cos, sin = self.cos[packing.positions], self.sin[packing.positions]
        h = F.embedding(tokens, self.embed_tokens).float()
        for layer in self.layers:
            if self.latent:
                x, q, q_lora, nope, rope = layer.before(h, cos, sin, self.dtype)
                nope, rope = fake_kv(self.cache, nope, rope)
                k, v = layer.expand(nope, rope)
                chosen = None
                if self.sparse or self.index_rows:
                    # The indexer learns from its own loss only.
                    index = layer.self_attn.indexer(x.detach(), q_lora.detach(), cos, sin)
                    topk = self.config["index_topk"]
                    if self.index_rows:
                        loss, mass = index_loss(q, k, layer.self_attn.scale, index, topk, self.index_rows, packing)
                        stats.setdefault("index_loss", []).append(loss)
                        stats.setdefault("index_mass", []).append(mass)
                    if self.sparse:
                        chosen = select(index, topk, packing)
            else:
                x, q, k, v = layer.before(h, cos, sin, self.dtype)
                k, v = fake_kv(self.cache, k, v)
                chosen = None
            attended = attend(q, k, v, layer.self_attn.scale, packing, chosen)
            h, load = layer.after(h, attended)
            if load is not None and stats is not None:
                stats.setdefault("load", []).append(load)
        return self.norm(h).to(self.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self.embed_tokens.to(hidden.dtype))

    def compile(self) -> None:
        """Compiles the parts of a layer that work token by token; attention stays as it is."""
        for layer in self.layers:
            layer.before = torch.compile(layer.before, dynamic=False)
            layer.after = torch.compile(layer.after, dynamic=False)
            if self.latent:
                layer.expand = torch.compile(layer.expand, dynamic=False)

    @contextlib.contextmanager
    def uncompiled(self):
        """Uses the uncompiled methods inside the context, for rows of many sizes."""
        names = ("before", "after", "expand")
        held = [{n: layer.__dict__.pop(n) for n in names if n in layer.__dict__} for layer in self.layers]
        try:
            yield
        finally:
            for layer, compiled in zip(self.layers, held):
                layer.__dict__.update(compiled)


@torch.no_grad()
def balance(model: Model, loads: list[torch.Tensor], rate: float) -> None:
    """Moves each router's correction bias against its load, as DeepSeek-V3 does instead of a balance loss."""
    routers = [m for m in model.modules() if isinstance(m, Router)]
    for router, load in zip(routers, loads, strict=True):
        router.e_score_correction_bias += rate * torch.sign(load.mean() - load)
