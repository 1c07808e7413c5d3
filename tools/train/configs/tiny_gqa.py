"""tiny-gqa: Qwen3's architecture with head dim 128 and four query heads to a key head."""

NAME = "tiny-gqa"
ARCHITECTURE = {
    "model_type": "qwen3",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 8192,
}

MIXTURE = {"arithmetic": 0.45, "retrieval": 0.45, "copy": 0.1}

# tiny_v32.py says what the entries mean.
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
}
