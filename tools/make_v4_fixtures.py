#!/usr/bin/env python3
"""Makes tests/data/models/deepseek_v4*: DeepSeek V4 with generated weights, and its logits from transformers.

    python3 tools/make_v4_fixtures.py OUT_DIR [NAME...]     (torch and transformers >= 5.17; a CPU, half an hour)

The folders have the form of make_generated_fixtures.py's, with more dtypes in tensors.json: F8_E4M3, where the number is rounded to
the code; F8_E8M0 and I8 (pairs of e2m1 codes, the lower nibble first), which are bytes; I32 and I64, where element j of row i is
(hash(i) + j) % count. deepseek_v4 has f32 weights under the names of transformers' modules, and transformers' config.json;
deepseek_v4_fp8 has the published names, config.json and storage, and transformers gets the dequantised numbers. So does
deepseek_v4_wide, with keys as wide as the published models'.

The reference is transformers (eager, f32) with a cache's contents rounded when written: window keys and entries to bf16, the indexer's
queries and keys to e4m3 with power-of-two scales after a Hadamard rotation, which is the only difference of an f32 engine with such a
cache. `rows` are its logits of every position, int16 numbers times the row's one of `scales`: off by 1.5e-5 of the row's largest, far
below the 1e-3 that the tests allow. The shortest prompt also has `logits`, in f32 and of the unchanged model.

Rounding decides a choice between nearly equal scores, and a number halfway between two of the cache's. So a prompt is put together of
random pieces, each one on which transformers in f32, in f64, and in f64 with every weight moved by some 2^-23 of itself, agree in every
row within 7e-4 (relative norm). In those of deepseek_v4_wide no choice of a row is close, either. The script makes no fixture if it finds
none.

deepseek_v4 also has what every sublayer leaves of a prompt of 260 tokens, with a cache rounded as above: the streams of some rows, the
entries that each of these reads of a layer with an indexer, and the entries of all layers. deepseek_v4_wide also has rows of a prompt of
4097 tokens, in f64, from which those in f32 and those of moved weights are at most 1e-3 away, and whose experts are clearly the best: the
last thirteen where they are, the last four in any case.
"""

import json
import pathlib
import re
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4

from generated_weights import fnv1a64, generate, splitmix64, write_specs
from make_model_fixtures import FP8, CacheRounding, quantise_rows

LENGTHS = (7, 150, 300)
PIECE = 30  # tokens
TRIALS = 400  # pieces
LONG = 4097  # tokens of the longest prompt, of deepseek_v4_wide alone
LONG_STABLE = 1e-3  # its STABLE: among that many rounded keys and entries some differ in f32 and f64
SUBLAYERS = 260  # tokens of the prompt with stored sublayers, of deepseek_v4 alone
STABLE = 7e-4  # bound of the distance of a stored row's logits
STABLE_STREAMS = 2e-5
STABLE_ENTRIES = 5e-5  # bound of an entry's distance
MOVED = 3  # runs with moved weights
# Scores of deepseek_v4_wide's indexers are of so many rounded numbers that they differ by up to 1e-2 from run to run, some 1e-3 mostly.
ENTRY_MARGIN = 6e-3
EXPERT_MARGIN = 2e-3
RATIOS = [0, 4, 128, 4, 128, 0]

SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "q_lora_rank": 32,
    "o_lora_rank": 16,
    "o_groups": 2,
    "sliding_window": 16,
    "index_n_heads": 32,
    "index_head_dim": 32,
    "index_topk": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "scoring_func": "sqrtsoftplus",
    "swiglu_limit": 0.5,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
YARN = {"factor": 16, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1}
TYPES = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
FOLDED = {
    "layer_types": [TYPES[r] for r in RATIOS],
    "compress_rates": {TYPES[4]: 4, TYPES[128]: 128},
    "mlp_layer_types": ["hash_moe"] * 2 + ["moe"] * 4,
    "partial_rotary_factor": 0.5,
    "rope_parameters": {
        "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "compress": {"rope_type": "yarn", "rope_theta": 160000.0, "partial_rotary_factor": 0.5, "attention_factor": 1.0} | YARN,
    },
}
PUBLISHED = {
    "compress_ratios": RATIOS + [0],
    "num_hash_layers": 2,
    "num_nextn_predict_layers": 1,
    "qk_rope_head_dim": 16,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn"} | YARN,
    "topk_method": "noaux_tc",
    "expert_dtype": "fp4",
    "quantization_config": FP8 | {"scale_fmt": "ue8m0"},
}
# The published widths of keys and index keys, which the GPU kernels require.
WIDE = {
    "hidden_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 64,
    "o_lora_rank": 32,
    "index_head_dim": 128,
    "compress_ratios": [0, 4, 128, 4, 0],
    "num_hash_layers": 1,
    "max_position_embeddings": 8192,
}
# Widths that are whole blocks of neither 128 nor 32 where the format allows it.
MODELS = {
    "deepseek_v4": SIZES | FOLDED,
    "deepseek_v4_fp8": SIZES | {"hidden_size": 160, "q_lora_rank": 48} | PUBLISHED,
    "deepseek_v4_wide": SIZES | PUBLISHED | WIDE,
}

# Of matrices, relative to fan-in. At 1.5 every part of a model shapes the logits, and so does every rounding: where weights are fp8, too
# much for all rows of a prompt to agree, and for a GPU's bf16 activations.
GAIN = {"deepseek_v4": 1.5, "deepseek_v4_fp8": 0.75, "deepseek_v4_wide": 0.75}
# Of the head beside GAIN, so that the logits of all three reach 5 and more.
HEAD_GAIN = {"deepseek_v4": 1, "deepseek_v4_fp8": 2, "deepseek_v4_wide": 2}

# Modules of transformers -> published names, in this order.
NAMES = (
    ("model.embed_tokens.", "embed."),
    ("lm_head.", "head."),
    ("model.hc_head.", ""),
    ("model.norm.", "norm."),
    ("model.layers.", "layers."),
    (".self_attn.", ".attn."),
    (".mlp.", ".ffn."),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".ffn_norm."),
    (".attn_hc.", ".hc_attn_"),
    (".ffn_hc.", ".hc_ffn_"),
    (".compressor.indexer.q_b_proj.", ".indexer.wq_b."),
    (".compressor.indexer.scorer.weights_proj.", ".indexer.weights_proj."),
    (".compressor.indexer.", ".indexer.compressor."),
    (".compressor.kv_proj.", ".compressor.wkv."),
    (".compressor.gate_proj.", ".compressor.wgate."),
    (".compressor.kv_norm.", ".compressor.norm."),
    (".position_bias", ".ape"),
    (".q_a_proj.", ".wq_a."),
    (".q_a_norm.", ".q_norm."),
    (".q_b_proj.", ".wq_b."),
    (".attn.kv_proj.", ".attn.wkv."),
    (".o_a_proj.", ".wo_a."),
    (".o_b_proj.", ".wo_b."),
    (".sinks", ".attn_sink"),
    (".gate.e_score_correction_bias", ".gate.bias"),
    (".gate_proj.", ".w1."),
    (".up_proj.", ".w3."),
    (".down_proj.", ".w2."),
)


def published(name):
    for theirs, ours in NAMES:
        name = name.replace(theirs, ours)
    return name if not name.startswith("hc_") else "hc_head_" + name[3:]


def parts(model):
    """(name, view of the parameter): experts one by one."""
    for name, t in model.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            half, stem = t.shape[1] // 2, name[: -len("gate_up_proj")]
            for e in range(t.shape[0]):
                yield f"{stem}{e}.gate_proj.weight", t[e, :half]
                yield f"{stem}{e}.up_proj.weight", t[e, half:]
        elif name.endswith("experts.down_proj"):
            for e in range(t.shape[0]):
                yield f"{name[: -len('down_proj')]}{e}.down_proj.weight", t[e]
        else:
            yield name, t


def numbers(name, shape, gain):
    """mean and reach, chosen so that every part of the model affects the logits."""
    if "norm" in name:
        return 1.0, 0.35
    if "_hc." in name or "hc_head" in name:
        if name.endswith("scale"):
            return 1.0, 0.85
        return 0.0, gain / 3 if name.endswith("fn") else 1.75
    if name.endswith(("sinks", "position_bias")):
        return 0.0, 1.75
    if name.endswith("bias"):
        return 0.0, 0.5
    if "embed_tokens" in name:
        return 0.0, 1.75
    return 0.0, round(gain * (3 / shape[-1]) ** 0.5, 6)


def ids(name, spec):
    rows, cols = spec["shape"]
    with np.errstate(over="ignore"):
        first = splitmix64(splitmix64(np.full(1, fnv1a64(name), np.uint64)) + np.arange(rows, dtype=np.uint64))
        values = (first[:, None] + np.arange(cols, dtype=np.uint64)) % np.uint64(spec["count"])
    return torch.from_numpy(values.astype(np.int64))


def exponents(name, spec):
    return torch.exp2(generate(name, spec | {"dtype": "U8"}).float() - 127)


def fp8_specs(name, shape, gain):
    """Codes up to 384, and scales that give the matrix the spread of numbers()."""
    blocks = [-(-n // 128) for n in shape]
    low = int(np.floor(np.log2(gain * (3 / shape[1]) ** 0.5 / 384))) + 127
    weight = {"dtype": "F8_E4M3", "shape": shape, "mean": 0.0, "reach": 384.0}
    return {name: weight, name[: -len("weight")] + "scale": {"dtype": "F8_E8M0", "shape": blocks, "low": low, "count": 2}}


def fp4_specs(name, shape, gain):
    low = int(np.floor(np.log2(gain / shape[1] ** 0.5 / 2.9))) + 127
    weight = {"dtype": "I8", "shape": [shape[0], shape[1] // 2], "low": 0, "count": 256}
    return {name: weight, name[: -len("weight")] + "scale": {"dtype": "F8_E8M0", "shape": [shape[0], shape[1] // 32], "low": low, "count": 2}}


def quantised(name):
    """What DeepSeek stores in fp8: projections of attention, indexer queries and shared experts."""
    return re.search(r"\.attn\.(w|indexer\.wq)[a-z_]*\.weight$|shared_experts", name) is not None


def fill(model, fp8, gain, head_gain):
    """tensors.json; the model gets the numbers that it describes."""
    specs = {}
    for theirs, t in parts(model):
        name, shape = (published(theirs) if fp8 else theirs), list(t.shape)
        if name.endswith("tid2eid"):
            specs[name] = {"dtype": "I32" if fp8 else "I64", "shape": shape, "count": model.config.n_routed_experts}
            t.copy_(ids(name, specs[name]))
        elif fp8 and ".experts." in name:
            own = fp4_specs(name, shape, gain)
            specs |= own
            codes = generate(name, own[name] | {"dtype": "U8"})
            values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
            pairs = torch.stack([values[(codes & 15).long()], values[(codes >> 4).long()]], dim=-1).reshape(shape)
            scale = name[: -len("weight")] + "scale"
            t.copy_(pairs * exponents(scale, own[scale]).repeat_interleave(32, dim=1))
        elif fp8 and quantised(name):
            own = fp8_specs(name, shape, gain)
            specs |= own
            codes = generate(name, own[name] | {"dtype": "F32"}).to(torch.float8_e4m3fn).float()
            scale = name[: -len("weight")] + "scale"
            scales = exponents(scale, own[scale]).repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
            t.copy_(codes * scales[: shape[0], : shape[1]])
        else:
            mean, reach = numbers(theirs, shape, gain)
            if theirs.startswith("lm_head"):
                reach *= head_gain
            narrow = fp8 and len(shape) > 1 and not name.endswith(("ape", "fn"))
            specs[name] = {"dtype": "BF16" if narrow else "F32", "shape": shape, "mean": mean, "reach": reach}
            t.copy_(generate(name, specs[name]).float())
    return specs


def hadamard(x):
    n = x.shape[-1]
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < n:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return x @ matrix / n**0.5


class RoundedScores:
    """While `on`, the indexer's products are of rounded numbers."""

    def __init__(self, model):
        self.on = False
        for m in model.modules():
            if isinstance(m, v4.DeepseekV4IndexerScorer):
                m.forward = self.scoring(m.forward)

    def scoring(self, forward):
        def call(q, keys, hidden):
            if self.on:
                q, keys = (quantise_rows(hadamard(x.float())).to(x.dtype) for x in (q, keys))
            return forward(q, keys, hidden)

        return call


def run(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens[None], use_cache=False).logits[0].float()


def margin_over(scores, k):
    best = scores.sort(descending=True)[0]
    return best[:, k - 1] - best[:, k]


def run_with_margins(model, tokens):
    """Logits, and each row's least margin, over all layers, of its chosen experts and entries over the others."""
    experts, entries, hooks = [], [], []

    def router(module, args, output):
        experts.append(margin_over(module.score_fn(output[0]) + module.e_score_correction_bias, module.top_k))

    def scorer(module, args, output):
        scores, k = output[0], model.config.index_topk
        visible = (torch.arange(len(scores)) + 1) // 4
        scores = torch.nn.functional.pad(scores, (0, k + 1), value=-torch.inf)
        scores = scores.masked_fill(torch.arange(scores.shape[1]) >= visible[:, None], -torch.inf)
        entries.append(torch.where(visible > k, margin_over(scores, k), torch.inf))

    for m in model.modules():
        if isinstance(m, v4.DeepseekV4TopKRouter):
            hooks.append(m.register_forward_hook(router))
        if isinstance(m, v4.DeepseekV4IndexerScorer):
            hooks.append(m.register_forward_hook(scorer))
    logits = run(model, tokens)
    for hook in hooks:
        hook.remove()
    return logits, torch.stack(experts).amin(0), torch.stack(entries).amin(0)


def clear_piece(model, tokens, count, generator):
    """Appends `count` tokens, two at a time, that make clear choices."""
    start = len(tokens)
    while len(tokens) < start + count:
        pair = torch.randint(0, model.config.vocab_size, (min(2, start + count - len(tokens)),), generator=generator)
        longer = torch.cat([tokens, pair])
        _, experts, entries = (t[len(tokens) :] for t in run_with_margins(model.float(), longer))
        if experts.min() >= EXPERT_MARGIN and entries.min() >= ENTRY_MARGIN:
            tokens = longer
    return tokens[start:]


def distance(logits, other):
    return (other - logits).norm(dim=-1) / logits.norm(dim=-1)


def moved(model, trial):
    """The model in f64. In trials after the first its weights are moved by about 2^-23 of themselves."""
    model.double()
    generator = torch.Generator().manual_seed(trial)
    for t in model.state_dict().values() if trial else ():
        if t.is_floating_point():
            t.mul_(1 + 2.0**-23 * torch.randn(t.shape, generator=generator, dtype=t.dtype))
    return model


def agreement(model, tokens):
    """Logits in f32, and a row's largest distance from logits in f64 with the weights as they are and moved. Stops beyond STABLE."""
    logits = run(model.float(), tokens)
    kept = {name: t.clone() for name, t in model.state_dict().items()}
    worst = 0.0
    for trial in range(1 + MOVED):
        worst = max(worst, float(distance(logits, run(moved(model, trial), tokens)).max()))
        model.float().load_state_dict(kept)
        if worst >= STABLE:
            break
    return logits, worst


def grow(model, length, generator, clear):
    """A prompt of pieces that each have good agreement(): its tokens, its logits and the largest distance."""
    pieces, failed = [torch.zeros(0, dtype=torch.int64)], 0
    for _ in range(TRIALS):
        count = min(PIECE, length - sum(map(len, pieces)))
        if clear:
            piece = clear_piece(model, torch.cat(pieces), count, generator)
        else:
            piece = torch.randint(0, model.config.vocab_size, (count,), generator=generator)
        tokens = torch.cat([*pieces, piece])
        logits, worst = agreement(model, tokens)
        if worst < STABLE:
            pieces, failed = [*pieces, piece], 0
            if len(tokens) == length:
                return tokens, logits, worst
        elif (failed := failed + 1) % 12 == 0:  # perhaps because of earlier pieces' keys in the cache
            del pieces[max(1, len(pieces) - 2) :]
    raise SystemExit(f"no prompt of {length} tokens whose rows all agree in f32 and f64")


def reference(model, scores, rounding, generator, clear):
    out = {}
    for length in LENGTHS:
        scores.on = rounding.on = True
        tokens, logits, worst = grow(model, length, generator, clear)
        scores.on = rounding.on = False
        exact = run(model, tokens)
        stem = f"prompt.{length}"
        scales = logits.abs().amax(dim=-1) / 32767
        out[f"{stem}.tokens"] = tokens.to(torch.int32)
        out[f"{stem}.rows"] = (logits / scales[:, None]).round().to(torch.int16)
        out[f"{stem}.scales"] = scales
        if length == LENGTHS[0]:
            out[f"{stem}.logits"] = exact
        moved = float(distance(exact, logits).max())
        print(f"  {length}: std {float(logits.std()):.2f}, rows agree within {worst:.2g}, cache moves {moved:.2g}", flush=True)
    return out


class Sublayers:
    """What the parts of a model's layers give in one forward pass."""

    def __init__(self, model):
        self.streams, self.keys, self.entries = [], {}, {}
        self.hooks = [model.model.hc_head.register_forward_pre_hook(self.state)]
        for number, layer in enumerate(model.model.layers):
            for part in (layer.attn_hc, layer.ffn_hc):
                self.hooks.append(part.register_forward_pre_hook(self.state))
            compressor = layer.self_attn.compressor
            if compressor is None:
                continue
            self.hooks.append(compressor.register_forward_hook(self.keeping(self.entries, number, lambda out: out[0][0, 0])))
            if hasattr(compressor, "indexer"):
                self.hooks.append(compressor.indexer.register_forward_hook(self.keeping(self.keys, number, lambda out: out[0])))

    def state(self, module, args):
        self.streams.append(args[0][0].flatten(1).detach().clone())

    @staticmethod
    def keeping(where, number, part):
        def hook(module, args, output):
            where[number] = part(output).detach().clone()

        return hook

    @classmethod
    def of(cls, model, tokens):
        """Streams [2 * layers, tokens, 4 * hidden], and by layer the rows' keys and the entries."""
        made = cls(model)
        run(model, tokens)
        for hook in made.hooks:
            hook.remove()
        made.streams = torch.stack(made.streams[1:])  # without the embedding
        return made


def sublayers(model, scores, rounding, generator):
    """Five rows in which f32 and f64 agree in every sublayer, of the prompt that has most such rows and in which all entries agree."""
    scores.on = rounding.on = True
    best = None
    for _ in range(60):
        tokens = torch.randint(0, model.config.vocab_size, (SUBLAYERS,), generator=generator)
        own, other = Sublayers.of(model.float(), tokens), Sublayers.of(model.double(), tokens)
        differ = [(other.entries[n] - e).abs().amax(-1) / e.square().mean(-1).sqrt() for n, e in own.entries.items()]
        if torch.cat(differ).max() > STABLE_ENTRIES:
            continue
        turned = ((other.streams - own.streams).norm(dim=-1) / own.streams.norm(dim=-1)).max(0)[0]
        same = torch.stack([(own.keys[n].sort()[0] == other.keys[n].sort()[0]).all(-1) for n in own.keys]).all(0)
        stable = torch.nonzero((turned < STABLE_STREAMS) & same).flatten()
        if best is None or len(stable) > len(best[1]):
            best = tokens, stable, own
    model.float()
    scores.on = rounding.on = False
    if best is None:
        raise SystemExit("sublayers: no prompt has entries on which f32 and f64 agree")
    tokens, stable, own = best
    late = stable[stable >= 16]
    positions = torch.cat([stable[1:2], late[torch.linspace(0, len(late) - 1, 4).long()]])
    print(f"  sublayers: {len(stable)} of {SUBLAYERS} rows are stable, kept {positions.tolist()}")
    out = {"tokens": tokens.to(torch.int32), "positions": positions.to(torch.int32), "streams": own.streams[:, positions]}
    out |= {f"keys.{n}": keys[positions].sort()[0].to(torch.int32) for n, keys in own.keys.items()}
    out |= {f"entries.{n}": entries for n, entries in own.entries.items()}
    return {f"sublayers.{name}": t.contiguous() for name, t in out.items()}


def long_prompt(model, scores, rounding, generator):
    """Tokens as bytes, and logits in f64 with a rounded cache. (f32 sums depend on how a machine splits them among threads.)"""
    positions = torch.tensor([*range(9), 127, 255, 256, 1023, 1024, 2047, *range(LONG - 13, LONG)])
    required = (positions < 9) | (positions >= LONG - 4)
    scores.on = rounding.on = True
    weights = {name: t.clone() for name, t in model.state_dict().items()}
    for _ in range(TRIALS):
        tokens = torch.randint(0, model.config.vocab_size, (LONG,), generator=generator)
        logits, experts, _ = (t[positions] for t in run_with_margins(model.double(), tokens))
        apart = torch.where(experts < EXPERT_MARGIN, torch.inf, 0.0)
        for trial in range(1 + MOVED):
            model.float().load_state_dict(weights)
            other = run(moved(model, trial) if trial else model, tokens)[positions]
            apart = torch.maximum(apart, distance(logits, other))
            if not bool((apart[required] < LONG_STABLE).all()):
                break
        else:
            break
    else:
        raise SystemExit(f"no prompt of {LONG} tokens whose rows agree in f32 and f64")
    model.float().load_state_dict(weights)
    scores.on = rounding.on = False
    kept = apart < LONG_STABLE
    print(f"  long: {apart.median():.2g} apart in f32 and f64, kept {positions[kept].tolist()}")
    return {
        "long.tokens": tokens.to(torch.uint8),
        "long.positions": positions[kept].to(torch.int32),
        "long.logits": logits[kept],
    }


def main():
    if len(sys.argv) < 2 or any(name not in MODELS for name in sys.argv[2:]):
        raise SystemExit(__doc__)
    torch.set_num_threads(1)  # the number of threads changes f32 sums, and so the prompts
    for number, (name, own) in enumerate(MODELS.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        print(name)
        config = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4"} | own
        given = {k: v for k, v in config.items() if k not in ("quantization_config", "expert_dtype")}
        if "compress_ratios" in given:
            given["compress_ratios"] = config["compress_ratios"][: config["num_hidden_layers"]]
        hf = transformers.DeepseekV4Config.from_dict(json.loads(json.dumps(given)))
        hf._attn_implementation = "eager"
        hf._experts_implementation = "eager"
        model = transformers.DeepseekV4ForCausalLM(hf).float().eval()
        with torch.no_grad():
            specs = fill(model, "quantization_config" in config, GAIN[name], HEAD_GAIN[name])
        scores, rounding = RoundedScores(model), CacheRounding(model)
        answers = reference(model, scores, rounding, torch.Generator().manual_seed(3000 + number), name == "deepseek_v4_wide")
        if name == "deepseek_v4":
            answers |= sublayers(model, scores, rounding, torch.Generator().manual_seed(4000))
        if name == "deepseek_v4_wide":
            answers |= long_prompt(model, scores, rounding, torch.Generator().manual_seed(4001))
        folder = pathlib.Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        write_specs(folder, specs)
        save_file(answers, folder / "reference.safetensors")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
