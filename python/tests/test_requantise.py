"""tools/requantise.py writes checkpoints that load, or says which formats the model has."""

import pathlib
import sys

import lathe
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
requantise = pytest.importorskip("requantise")


def answer(model):
    with lathe.Engine(str(model), device="cpu", context_length=256) as engine:
        return engine.generate("Ada has 3 apples and buys 4. How many apples?", temperature=0, max_new_tokens=8, ignore_eos=True).tokens


@pytest.mark.parametrize("form", ["bf16", "nvfp4"])
def test_deepseek_v4_loads(form, tmp_path):
    model = ROOT / "models/tiny-v4"
    requantise.requantise(model, form, tmp_path)
    tokens = answer(tmp_path)
    if form == "bf16":  # which holds every weight of fp8 and fp4 with scales that are powers of two
        assert tokens == answer(model)
    assert len(tokens) > 0


@pytest.mark.parametrize("form", [f for f in requantise.FORMATS if f != "nvfp4"])
def test_deepseek_v4_has_no_other_format(form, tmp_path):
    with pytest.raises(SystemExit, match=f"FORMAT: wanted bf16 or nvfp4 for DeepSeek V4, which has formats of its own, got {form}"):
        requantise.requantise(ROOT / "models/tiny-v4", form, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["bf16", *requantise.FORMATS])
def test_others_load(form, tmp_path):
    requantise.requantise(ROOT / "models/tiny-gqa", form, tmp_path)
    assert len(answer(tmp_path)) > 0
