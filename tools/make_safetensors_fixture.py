#!/usr/bin/env python3
"""Writes tests/data/safetensors/: files made by the format's own library, for src/io/checkpoint/test/checkpoint_test.cc.

Needs safetensors, numpy and ml_dtypes.

    python3 tools/make_safetensors_fixture.py
"""

import json
import pathlib

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/safetensors"


def main():
    (OUT / "sharded").mkdir(parents=True, exist_ok=True)
    (OUT / "single").mkdir(parents=True, exist_ok=True)
    save_file(
        {
            "f32": np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5,
            "f64": np.array([1.5, -2.25]),
            "bf16": np.arange(4).astype(ml_dtypes.bfloat16).reshape(4, 1),
            "f16": np.array([0.5, 65504], dtype=np.float16),
            "i64": np.array([-1, 2**62], dtype=np.int64),
            "u8": np.arange(5, dtype=np.uint8),
            "bool": np.array([True, False, True]),
            "scalar": np.array(7, dtype=np.int32),
            "empty": np.zeros((0, 3), dtype=np.float32),
        },
        OUT / "single/model.safetensors",
        metadata={"format": "pt", "note": "Überprüfung"},
    )
    shards = {
        "model-00001-of-00002.safetensors": {"a.weight": np.full((2, 2), 1, np.float32),
                                             "b.weight": np.full(3, 2, np.float32)},
        "model-00002-of-00002.safetensors": {"c.weight": np.full((1, 4), 3, np.float32)},
    }
    for file, tensors in shards.items():
        save_file(tensors, OUT / "sharded" / file)
    index = {"metadata": {"total_size": 44}, "weight_map": {t: f for f, ts in shards.items() for t in ts}}
    (OUT / "sharded/model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


if __name__ == "__main__":
    main()
