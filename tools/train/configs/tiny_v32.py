"""tiny-v32: DeepSeek V3.2's architecture with its true latent sizes (512 + 64, index dim 128), trained in three phases."""

NAME = "tiny-v32"
ARCHITECTURE = {
    "model_type": "deepseek_v32",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 768,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_topk": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 8192,
}

MIXTURE = {"arithmetic": 0.45, "retrieval": 0.45, "copy": 0.1}

# Run in this order. `seconds` is a phase's time, which `--seconds dense=300` changes; `rate` and `index_rate` are the
# peak learning rates of the model and of the indexer, 0 for frozen, and `floor` the share of them at the end; cache
# noise starts at the share `cache_from` of the phase; `index_rows` queries per sequence feed the indexer's loss; `fp8`
# passes weights and the indexer's q and k through e4m3.
PHASES = {
    "dense": {
        "seconds": 140,
        "tokens": 65536,
        "rate": 2e-3,
        "index_rate": 0.0,
        "warm_up": 100,
        "floor": 0.02,
        "cache_from": 0.5,
    },
    "index": {
        "seconds": 45,
        "tokens": 65536,
        "rate": 0.0,
        "index_rate": 2e-3,
        "warm_up": 20,
        "floor": 0.2,
        "index_rows": 64,
    },
    "sparse": {
        "seconds": 150,
        "tokens": 32768,
        "rate": 3e-4,
        "index_rate": 5e-4,
        "warm_up": 30,
        "floor": 0.02,
        "cache_from": 0.0,
        "index_rows": 64,
        "fp8": True,
    },
}
