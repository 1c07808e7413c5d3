"""tiny-v4: DeepSeek V4's architecture with its true key sizes (448 + 64, index dim 128), trained in three phases."""

NAME = "tiny-v4"
ARCHITECTURE = {
    "model_type": "deepseek_v4",
    "vocab_size": 2048,
    "hidden_size": 128,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 128,
    "o_lora_rank": 128,
    "o_groups": 2,
    "compress_ratios": [0, 4, 128, 4, 0],  # the last is the draft layer's
    "num_hash_layers": 1,
    "sliding_window": 128,
    "index_n_heads": 8,
    "index_head_dim": 128,
    "index_topk": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "swiglu_limit": 10.0,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": 2048,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 8192,
    "num_nextn_predict_layers": 1,
}

MIXTURE = {"arithmetic": 0.45, "retrieval": 0.45, "copy": 0.1}

# tiny_v32.py says what the entries mean; here "fp8" also passes experts through fp4.
PHASES = {
    "dense": {
        "seconds": 150,
        "tokens": 65536,
        "rate": 2e-3,
        "index_rate": 0.0,
        "warm_up": 100,
        "floor": 0.02,
        "cache_from": 0.5,
    },
    "index": {
        "seconds": 30,
        "tokens": 65536,
        "rate": 0.0,
        "index_rate": 2e-3,
        "warm_up": 20,
        "floor": 0.2,
        "index_rows": 64,
    },
    "sparse": {
        "seconds": 100,
        "tokens": 65536,
        "rate": 5e-4,
        "index_rate": 1e-3,
        "warm_up": 30,
        "floor": 0.02,
        "cache_from": 0.0,
        "index_rows": 64,
        "fp8": True,
    },
}
