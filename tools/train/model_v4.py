"""DeepSeek V4 in plain PyTorch, on packed rows of tokens whose sequences begin at multiples of 128 (attention_v4.Rows).

Formulas follow Hugging Face's DeepseekV4ForCausalLM, and check_export.py compares the logits with its. Modules and
parameters have the names of the published checkpoint. Master weights are float32; arithmetic is in `Model.dtype` (bf16
in training), the residual streams and their mixing in float32.
"""

import contextlib
import math
import types

import torch
import torch.nn.functional as F
from torch import nn

import attention_v4
from attention_v4 import Rows
from data import PAD
from model import Linear, RMSNorm, Router
from quantise import fake_fp8_block, fake_index_fp8, fake_mx_fp4, fake_v4_key

EPS = 1e-6


def _std(inputs: int) -> float:
    return 0.5 * inputs**-0.5


def rope_tables(c: dict) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """cos and sin, [positions, rope / 2] float32, of layers without entries ("main") and with them ("compress")."""
    dim, scaling = c["qk_rope_head_dim"], c["rope_scaling"]
    positions = torch.arange(c["max_position_embeddings"]).float()[:, None]
    exponents = torch.arange(0, dim, 2).float() / dim

    def tables(frequencies: torch.Tensor):
        angle = positions * frequencies
        return angle.cos(), angle.sin()

    base, whole = c["compress_rope_theta"], scaling["original_max_position_embeddings"]

    def turning_dim(turns: float) -> float:
        return dim * math.log(whole / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(turning_dim(scaling["beta_fast"])), 0)
    high = min(math.ceil(turning_dim(scaling["beta_slow"])), dim - 1)
    stretched = ((torch.arange(dim // 2).float() - low) / (high - low)).clamp(0, 1)
    plain = 1.0 / base**exponents
    yarn = plain / scaling["factor"] * stretched + plain * (1 - stretched)
    return {"main": tables(1.0 / c["rope_theta"] ** exponents), "compress": tables(yarn)}


def rotate_last(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Interleaved RoPE on the last dims. x [T, ..., D]; cos, sin [T, rope / 2]."""
    rope = 2 * cos.shape[-1]
    shape = (len(cos),) + (1,) * (x.ndim - 2) + (-1,)
    cos, sin = cos.view(shape), sin.view(shape)
    a, b = x[..., -rope::2].float(), x[..., 1 - rope :: 2].float()
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    return torch.cat((x[..., :-rope], turned.to(x.dtype)), -1)


class _Sinkhorn(torch.autograd.Function):
    """Rows and columns of exp(logits) [T, 4, 4] scaled to sums of one; the gradient is that of the converged limit."""

    @staticmethod
    def forward(ctx, logits, iterations: int, eps: float):
        c = logits.softmax(-1).add_(eps)
        c.div_(c.sum(1, keepdim=True).add_(eps))
        for _ in range(iterations - 1):
            c.div_(c.sum(2, keepdim=True).add_(eps))
            c.div_(c.sum(1, keepdim=True).add_(eps))
        ctx.save_for_backward(c)
        return c

    @staticmethod
    def backward(ctx, gradient):
        (c,) = ctx.saved_tensors
        weighted = c * gradient
        rows, columns = weighted.sum(2, keepdim=True), weighted.sum(1, keepdim=True)
        v = torch.zeros_like(columns)
        for _ in range(8):
            u = rows - (c * v).sum(2, keepdim=True)
            v = columns - (c * u).sum(1, keepdim=True)
        return weighted - c * (u + v), None, None


def mixes(streams: torch.Tensor, fn: torch.Tensor) -> torch.Tensor:
    f = streams.flatten(1)
    return F.linear(f, fn) * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + EPS)


def collapse(streams: torch.Tensor, m: torch.Tensor, scale: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """sum_i (sigmoid(m_i scale + base_i) + eps) X_i: streams [T, 4, H], m [T, 4] to [T, H]."""
    pre = torch.sigmoid(m * scale + base) + EPS
    return sum(pre[:, i, None] * streams[:, i] for i in range(streams.shape[1]))


# Parts of a layer that work token by token, as functions of tensors alone: one compilation serves all layers.


def enter(streams: torch.Tensor, fn, scale, base, norm: torch.Tensor):
    """A sublayer's input [T, H], and the mixes [T, 24] that leave() takes."""
    m = mixes(streams, fn)
    n = streams.shape[1]
    x = collapse(streams, m[:, :n], scale[0], base[:n])
    return norm * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)), m


def leave(streams: torch.Tensor, y: torch.Tensor, m: torch.Tensor, scale, base, comb) -> torch.Tensor:
    """X'_k = post_k y + sum_j comb[j, k] X_j, [T, 4, H]."""
    n = streams.shape[1]
    post = 2 * torch.sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    out = post[..., None] * y.float()[:, None]
    for j in range(n):
        out = out + comb[:, j, :, None] * streams[:, j, None]
    return out


def queries(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    normed = q.float() * torch.rsqrt(q.float().pow(2).mean(-1, keepdim=True) + EPS)
    return rotate_last(normed.to(q.dtype), cos, sin)


def unrotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return rotate_last(x, cos, -sin)


def gated(gate: torch.Tensor, up: torch.Tensor, weights: torch.Tensor, limit: float) -> torch.Tensor:
    """Inner activations of all experts [T, E * I], scaled by their weights [T, E]."""
    inside = F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    return (inside.unflatten(-1, (weights.shape[1], -1)) * weights.to(gate.dtype)[..., None]).flatten(-2)


PARTS = {f.__name__: f for f in (enter, leave, queries, unrotate, gated)}


class Compressor(nn.Module):
    """Entries of `ratio` tokens each: a softmax per channel over their rows; ratio 4 also takes the group before."""

    def __init__(self, hidden: int, dim: int, ratio: int):
        super().__init__()
        self.dim, self.ratio, self.halves = dim, ratio, 2 if ratio == 4 else 1
        width = self.halves * dim
        self.wkv = Linear(hidden, width, _std(hidden))
        self.wgate = Linear(hidden, width, _std(hidden))
        # Wide, so that each channel starts with one token instead of a mean of all.
        self.ape = nn.Parameter(2.0 * torch.randn(ratio, width))
        self.norm = RMSNorm(dim)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rows: Rows) -> torch.Tensor:
        """x [T, hidden] to entries [T / ratio, dim], rotated by the position of their group's first token."""
        kv = self.wkv(x).unflatten(0, (-1, self.ratio))
        gate = self.wgate(x).unflatten(0, (-1, self.ratio)).float() + self.ape
        if self.halves == 2:
            first = rows.starts(self.ratio)[:, None, None]
            # Of the group before, half A; a sequence's first entry has none.
            before_kv = torch.cat((torch.zeros_like(kv[:1]), kv[:-1]))[..., : self.dim]
            before_gate = torch.cat((torch.zeros_like(gate[:1]), gate[:-1]))[..., : self.dim]
            before_gate = before_gate.masked_fill(first, float("-inf"))
            kv = torch.cat((before_kv, kv[..., self.dim :]), 1)
            gate = torch.cat((before_gate, gate[..., self.dim :]), 1)
        pooled = (gate.softmax(1).to(kv.dtype) * kv).sum(1)
        entry = self.norm(pooled).to(x.dtype)
        return rotate_last(entry, cos[:: self.ratio], sin[:: self.ratio])


class Indexer(nn.Module):
    """Scores that choose which entries attention reads: sum over heads of w_h relu(q_h . k)."""

    def __init__(self, c: dict):
        super().__init__()
        self.heads, self.dim = c["index_n_heads"], c["index_head_dim"]
        self.wq_b = Linear(c["q_lora_rank"], self.heads * self.dim, _std(c["q_lora_rank"]))
        self.weights_proj = Linear(c["hidden_size"], self.heads, _std(c["hidden_size"]))
        self.compressor = Compressor(c["hidden_size"], self.dim, 4)
        self.quantise = False

    def forward(self, x: torch.Tensor, q_lora: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rows: Rows):
        """q [T, heads, dim], k [T / 4, dim], head weights [T, heads] float32 with all scales in them."""
        q = rotate_last(self.wq_b(q_lora).unflatten(-1, (self.heads, self.dim)), cos, sin)
        k = self.compressor(x, cos, sin, rows)
        if self.quantise:
            q, k = fake_index_fp8(q), fake_index_fp8(k)
        return q, k, self.weights_proj(x).float() * (self.heads**-0.5 * self.dim**-0.5)


class Attention(nn.Module):
    def __init__(self, c: dict, ratio: int):
        super().__init__()
        hidden, lora = c["hidden_size"], c["q_lora_rank"]
        self.heads, self.dim, self.rope = c["num_attention_heads"], c["head_dim"], c["qk_rope_head_dim"]
        self.ratio, self.groups = ratio, c["o_groups"]
        inside = self.heads * self.dim // self.groups
        self.wq_a = Linear(hidden, lora, _std(hidden))
        self.q_norm = RMSNorm(lora)
        self.wq_b = Linear(lora, self.heads * self.dim, _std(lora))
        self.wkv = Linear(hidden, self.dim, _std(hidden))
        self.kv_norm = RMSNorm(self.dim)
        self.attn_sink = nn.Parameter(torch.zeros(self.heads))
        self.wo_a = Linear(inside, self.groups * c["o_lora_rank"], _std(inside))
        depth = (2 * c["num_hidden_layers"]) ** -0.5
        self.wo_b = Linear(self.groups * c["o_lora_rank"], hidden, depth * _std(self.groups * c["o_lora_rank"]))
        self.compressor = Compressor(hidden, self.dim, ratio) if ratio else None
        self.indexer = Indexer(c) if ratio == 4 else None
        self.scale = self.dim**-0.5

    def project(self, parts, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
        """q [T, heads, dim], kv [T, dim] and the low-rank query that the indexer shares."""
        q_lora = self.q_norm(self.wq_a(x)).to(x.dtype)
        q = parts.queries(self.wq_b(q_lora).unflatten(-1, (self.heads, self.dim)), cos, sin)
        kv = self.kv_norm(self.wkv(x)).to(x.dtype)
        return q, rotate_last(kv, cos, sin), q_lora

    def output(self, parts, attended: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        turned = parts.unrotate(attended, cos, sin).flatten(1).unflatten(1, (self.groups, -1))
        weight = fake_fp8_block(self.wo_a.weight) if self.wo_a.fp8 else self.wo_a.weight
        low = torch.einsum("tgi,goi->tgo", turned, weight.to(turned.dtype).unflatten(0, (self.groups, -1)))
        return self.wo_b(low.flatten(1))


def _scores(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.softplus(F.linear(x.float(), weight.float())).sqrt()


def _shares(scores: torch.Tensor, chosen: torch.Tensor, scale: float) -> torch.Tensor:
    weights = torch.zeros_like(scores).scatter(-1, chosen, 1.0) * scores
    return weights / weights.sum(-1, keepdim=True) * scale


class BiasRouter(Router):
    """The top experts by score plus correction bias, weighted by their scores alone."""

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights [T, E], 0 for experts not chosen, and the share of tokens per expert [E]."""
        scores = _scores(x, self.weight)
        weights = _shares(scores, (scores + self.e_score_correction_bias).topk(self.top_k, -1).indices, self.scale)
        real = (tokens != PAD).float()
        return weights, ((weights.detach() > 0) * real[:, None]).sum(0) / real.sum()


class HashRouter(nn.Module):
    """The token's id chooses the experts, by a fixed table."""

    def __init__(self, c: dict):
        super().__init__()
        experts = c["n_routed_experts"]
        self.weight = nn.Parameter(torch.randn(experts, c["hidden_size"]) * 0.02)
        picks = torch.Generator().manual_seed(4)
        table = torch.rand(c["vocab_size"], experts, generator=picks).argsort(-1)[:, : c["num_experts_per_tok"]]
        self.register_buffer("tid2eid", table.to(torch.int32).contiguous())
        self.scale = c["routed_scaling_factor"]

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _shares(_scores(x, self.weight), self.tid2eid[tokens].long(), self.scale), None


class Expert(nn.Module):
    def __init__(self, hidden: int, inner: int, std_out: float, limit: float):
        super().__init__()
        self.w1, self.w3 = Linear(hidden, inner, _std(hidden)), Linear(hidden, inner, _std(hidden))
        self.w2 = Linear(inner, hidden, std_out)
        self.limit = limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x).clamp(max=self.limit)) * self.w3(x).clamp(-self.limit, self.limit))


class Experts(nn.Module):
    """A shared expert plus routed ones. All experts run on every token: at this size that is faster than sorting."""

    def __init__(self, c: dict, hashed: bool):
        super().__init__()
        experts, inner, hidden = c["n_routed_experts"], c["moe_intermediate_size"], c["hidden_size"]
        std_out = (2 * c["num_hidden_layers"]) ** -0.5 * _std(inner)
        self.gate = HashRouter(c) if hashed else BiasRouter(c)
        self.experts_w1 = nn.Parameter(torch.randn(experts, inner, hidden) * _std(hidden))
        self.experts_w3 = nn.Parameter(torch.randn(experts, inner, hidden) * _std(hidden))
        self.experts_w2 = nn.Parameter(torch.randn(experts, hidden, inner) * std_out)
        self.limit = c["swiglu_limit"]
        self.shared_experts = Expert(hidden, inner, std_out, self.limit)
        self.fp4 = False

    def _weight(self, stack: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (fake_mx_fp4(stack) if self.fp4 else stack).to(x.dtype)

    def forward(self, parts, x: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        weights, load = self.gate(x, tokens)
        gate = F.linear(x, self._weight(self.experts_w1, x).flatten(0, 1))
        up = F.linear(x, self._weight(self.experts_w3, x).flatten(0, 1))
        down = self._weight(self.experts_w2, x).transpose(1, 2).flatten(0, 1)
        return parts.gated(gate, up, weights, self.limit) @ down + self.shared_experts(x), load


class Block(nn.Module):
    """One layer over the residual streams [T, 4, H]."""

    def __init__(self, c: dict, ratio: int, hashed: bool):
        super().__init__()
        self.ratio, self.n, self.iterations = ratio, c["hc_mult"], c["hc_sinkhorn_iters"]
        self.attn_norm, self.ffn_norm = RMSNorm(c["hidden_size"]), RMSNorm(c["hidden_size"])
        self.attn, self.ffn = Attention(c, ratio), Experts(c, hashed)
        values = 2 * self.n + self.n**2
        for part in ("attn", "ffn"):
            # Streams start different: equal ones would stay equal.
            pre, post = torch.randn(self.n) - 1.1, torch.randn(self.n)
            base = torch.cat((pre, post, (3.0 * torch.eye(self.n)).flatten()))
            setattr(self, f"hc_{part}_fn", nn.Parameter(torch.randn(values, self.n * c["hidden_size"]) * 0.02))
            setattr(self, f"hc_{part}_base", nn.Parameter(base))
            setattr(self, f"hc_{part}_scale", nn.Parameter(torch.full((3,), 0.1)))

    def comb(self, m: torch.Tensor, scale, base) -> torch.Tensor:
        n = self.n
        logits = (m[:, 2 * n :] * scale[2] + base[2 * n :]).unflatten(1, (n, n))
        return _Sinkhorn.apply(logits, self.iterations, EPS)

    def forward(self, model, streams: torch.Tensor, tokens: torch.Tensor, rows: Rows, cos, sin, stats, read=None):
        """`read` replaces attention's plain form: read(q, kv) to [T, heads, dim]."""
        parts = model.parts
        scale, base = self.hc_attn_scale, self.hc_attn_base
        x, m = parts.enter(streams, self.hc_attn_fn, scale, base, self.attn_norm.weight)
        x = x.to(model.dtype)
        q, kv, q_lora = self.attn.project(parts, x, cos, sin)
        kv = fake_v4_key(model.cache, kv, self.attn.rope)
        if read is not None:
            attended = read(q, kv)
        else:
            attended = self.attend(model, x, q, kv, q_lora, rows, cos, sin, stats)
        y = self.attn.output(parts, attended, cos, sin)
        streams = parts.leave(streams, y, m, scale, base, self.comb(m, scale, base))
        scale, base = self.hc_ffn_scale, self.hc_ffn_base
        x, m = parts.enter(streams, self.hc_ffn_fn, scale, base, self.ffn_norm.weight)
        y, load = self.ffn(parts, x.to(model.dtype), tokens)
        if load is not None and stats is not None:
            stats.setdefault("load", []).append(load)
        return parts.leave(streams, y, m, scale, base, self.comb(m, scale, base))

    def attend(self, model, x, q, kv, q_lora, rows: Rows, cos, sin, stats):
        attn, entries, chosen, wanted, index = self.attn, None, None, None, None
        if self.ratio:
            entries = fake_v4_key(model.cache, attn.compressor(x, cos, sin, rows), attn.rope)
        topk = model.config["index_topk"]
        if attn.indexer is not None and (model.sparse or model.index_rows):
            # The indexer learns from its own loss only; once entries are selected, from the attention on those.
            index = attn.indexer(x.detach(), q_lora.detach(), cos, sin, rows)
            if model.sparse:
                chosen = attention_v4.select(index, topk, 4, rows)
            if model.index_rows:
                wanted = attention_v4.draw_rows(model.index_rows, topk, 4, rows)
        attended, masses = attention_v4.attend(
            q, kv, entries, self.ratio, attn.attn_sink, attn.scale, rows, chosen, wanted
        )
        if wanted is not None and stats is not None:
            loss, mass = attention_v4.index_loss(index, masses, wanted, topk, 4, rows)
            stats.setdefault("index_loss", []).append(loss)
            stats.setdefault("index_mass", []).append(mass)
        return attended


class Head(nn.Module):
    """The streams' last collapse, its norm, and their parameters, for a module to hold under the published names."""

    def init_head(self, c: dict) -> None:
        n, hidden = c["hc_mult"], c["hidden_size"]
        self.hc_head_fn = nn.Parameter(torch.randn(n, n * hidden) * 0.02)
        self.hc_head_base = nn.Parameter(torch.randn(n) * 0.5 - 1.1)
        self.hc_head_scale = nn.Parameter(torch.full((1,), 0.1))
        self.norm = RMSNorm(hidden)

    def head(self, streams: torch.Tensor) -> torch.Tensor:
        m = mixes(streams, self.hc_head_fn)
        return self.norm(collapse(streams, m, self.hc_head_scale, self.hc_head_base))


def adam_only(name: str, parameter: torch.Tensor) -> bool:
    """Vectors, and matrices that are tables or mix streams; Muon takes the others."""
    kept = ("embed", "ape", "gate.weight", "hc_attn_fn", "hc_ffn_fn", "hc_head_fn")
    return parameter.ndim == 1 or name.endswith(kept)


def set_weight_rounding(module: nn.Module, on: bool) -> None:
    """Passes every weight that the checkpoint stores as fp8 or fp4 through that format."""
    for name, part in module.named_modules():
        if isinstance(part, Experts):
            part.fp4 = on
        elif isinstance(part, Linear) and "compressor" not in name and not name.endswith("weights_proj"):
            part.fp8 = on


class ModelV4(Head):
    """Tokens [T] to hidden states [T, hidden]; the output head shares the embedding's weights."""

    has_indexer = True
    caches = ("none", "v4_fp8")
    cache_shares = {"none": 0.4, "v4_fp8": 0.6}
    width_of = staticmethod(attention_v4.padded_length)
    pack = staticmethod(Rows)

    def __init__(self, c: dict):
        super().__init__()
        self.config = c
        self.embed = nn.Parameter(torch.randn(c["vocab_size"], c["hidden_size"]) * 0.02)
        ratios = c["compress_ratios"]
        self.layers = nn.ModuleList(
            Block(c, ratios[i], i < c["num_hash_layers"]) for i in range(c["num_hidden_layers"])
        )
        self.init_head(c)
        self.parts = types.SimpleNamespace(**PARTS)
        self.dtype = torch.bfloat16
        self.cache = "none"  # the cache layout that keys are passed through
        self.sparse = False  # attention reads only the entries that the indexer selects
        self.index_rows = 0  # query rows per sequence on which the indexer's loss is taken, 0 for none
        for name, (cos, sin) in rope_tables(c).items():
            self.register_buffer(f"{name}_cos", cos, persistent=False)
            self.register_buffer(f"{name}_sin", sin, persistent=False)

    def set_weight_rounding(self, on: bool) -> None:
        set_weight_rounding(self, on)

    def set_index_quantise(self, on: bool) -> None:
        for module in self.modules():
            if isinstance(module, Indexer):
                module.quantise = on

    def indexer_parameters(self) -> list[nn.Parameter]:
        return [p for n, p in self.named_parameters() if ".indexer." in n]

    def adam_parameters(self) -> list[nn.Parameter]:
        return [p for n, p in self.named_parameters() if adam_only(n, p)]

    def tables(self, compressed: bool, positions: torch.Tensor):
        name = "compress" if compressed else "main"
        return getattr(self, f"{name}_cos")[positions], getattr(self, f"{name}_sin")[positions]

    def streams(self, tokens: torch.Tensor, rows: Rows, stats: dict | None = None) -> torch.Tensor:
        """The residual streams [T, 4, H] behind the last layer."""
        main, compress = self.tables(False, rows.positions), self.tables(True, rows.positions)
        x = F.embedding(tokens, self.embed).float()
        x = x[:, None].repeat(1, self.config["hc_mult"], 1)
        for layer in self.layers:
            x = layer(self, x, tokens, rows, *(compress if layer.ratio else main), stats)
        return x

    def forward(self, tokens: torch.Tensor, rows: Rows, stats: dict | None = None) -> torch.Tensor:
        """`stats` receives "load" [layers, E], "index_loss" (with a gradient) and "index_mass" per layer."""
        return self.head(self.streams(tokens, rows, stats)).to(self.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self.embed.to(hidden.dtype))

    def compile(self) -> None:
        self.parts = types.SimpleNamespace(**{n: torch.compile(f, dynamic=False) for n, f in PARTS.items()})

    @contextlib.contextmanager
    def uncompiled(self):
        """Uses the uncompiled functions inside the context, for rows of many sizes."""
        held, self.parts = self.parts, types.SimpleNamespace(**PARTS)
        try:
            yield
        finally:
            self.parts = held
