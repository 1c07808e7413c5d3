#!/usr/bin/env python3
"""Writes tests/data/rope.jsonl: frequencies and magnitudes of scaled RoPE as transformers computes them from configurations.

    python3 tools/make_rope_fixtures.py     (torch and transformers; made with 5.24)
"""

import json
import pathlib

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "rope.jsonl"

BASE = {"architectures": ["LlamaForCausalLM"], "vocab_size": 32, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 1, "head_dim": 64}
SHORT, LONG = [round(1 + i / 50, 2) for i in range(32)], [round(1 + i * i / 20, 2) for i in range(32)]

# (positions of the table, keys)
CASES = [
    (2000, {"max_position_embeddings": 2048, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    (8192, {"max_position_embeddings": 2048, "rope_theta": 500000.0, "rope_scaling": {"type": "dynamic", "factor": 4.0}}),
    (64, {"max_position_embeddings": 512, "original_max_position_embeddings": 64,
          "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}}),
    (65, {"max_position_embeddings": 512, "original_max_position_embeddings": 64,
          "rope_scaling": {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}}),
    (512, {"max_position_embeddings": 512,
           "rope_parameters": {"rope_type": "longrope", "rope_theta": 20000.0, "short_factor": SHORT, "long_factor": LONG,
                               "original_max_position_embeddings": 128, "factor": 8.0, "attention_factor": 1.5}}),
    (512, {"max_position_embeddings": 512, "partial_rotary_factor": 0.75,
           "rope_scaling": {"type": "longrope", "short_factor": SHORT[:24], "long_factor": LONG[:24],
                            "original_max_position_embeddings": 32, "factor": 4.0}}),
    (512, {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3,
                                                            "original_max_position_embeddings": 1024}}),
    (512, {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 0.4,
                                                            "attention_factor": 0.9, "original_max_position_embeddings": 512}}),
    (512, {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                                               "partial_rotary_factor": 0.5,
                                                               "original_max_position_embeddings": 1024}}),
    (512, {"max_position_embeddings": 4096, "partial_rotary_factor": 0.25,
           "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    (512, {"max_position_embeddings": 4096, "partial_rotary_factor": 0.5,
           "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 512}}),
]


def main():
    rows = []
    for positions, keys in CASES:
        config = LlamaConfig.from_dict(json.loads(json.dumps(BASE | keys)))
        kind = config.rope_parameters["rope_type"]
        frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=positions)
        rows.append({"config": BASE | keys, "positions": positions, "magnitude": magnitude,
                     "frequencies": [float(f"{f:.8g}") for f in frequencies.tolist()]})
    OUT.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


if __name__ == "__main__":
    main()
