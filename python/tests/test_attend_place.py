"""Where attend()'s arrays lie: what is refused before a GPU is needed."""

import numpy as np
import pytest

import lathe
from lathe import _lathe

LAYOUT = lathe.Layout("mla_bf16")
HOST = np.zeros((1, 16, 576), np.uint16)
POOL = np.zeros(LAYOUT.page_stride(64), np.uint8)


class OnGpu:
    """An array that says that it lies on a GPU, and cannot be taken."""

    shape = (1, 16, 576)

    def __dlpack_device__(self):
        return (2, 3)

    def __dlpack__(self, stream=None):
        raise AssertionError("taken")


def refused(*args, **kwargs):
    with pytest.raises(lathe.LatheError) as caught:
        lathe.attend(*args, **{"indices": [[0]], **kwargs})
    return str(caught.value)


def test_host_arrays_are_not_for_the_gpu():
    says = refused(HOST, POOL, LAYOUT, device="sm90")
    assert says == "q: wanted an array on a GPU, got one in host memory"
    for given in (dict(stream=7), dict(workspace=np.zeros(8, np.uint8))):
        says = refused(HOST, POOL, LAYOUT, **given)
        assert "q: wanted an array on a GPU, as max_request_rows" in says


def test_a_part_needs_a_workspace():
    says = refused(OnGpu(), POOL, LAYOUT, part="half")
    assert says == 'part: wanted "both", "schedule" or "attention", got half'
    says = refused(OnGpu(), POOL, LAYOUT, part="attention")
    assert 'workspace: wanted an array for part="attention", got None' in says


def test_a_workspace_is_asked_for_by_maxima():
    def refused(error, *args, **kwargs):
        with pytest.raises(error) as caught:
            lathe.attend_workspace(*args, **kwargs)
        return str(caught.value)

    if not _lathe.has_cuda:
        assert "gpu: wanted a build with CUDA kernels" in refused(lathe.LatheError, 1, 16)
        return
    assert "max_kv_len: wanted the most keys" in refused(lathe.LatheError, 1, 16)
    assert "rows: wanted 0 to" in refused(lathe.LatheError, -1, 16, index_width=64)
    assert "heads: wanted 1 to" in refused(lathe.LatheError, 1, 0, index_width=64)
    assert "extra: knows no width" in refused(TypeError, 1, 16, index_width=64, extra={"width": 3})
    says = refused(lathe.LatheError, 1, 16, index_width=64, gpu=1000)
    assert "CUDA driver: wanted one that serves CUDA" in says or "CUDA device: wanted" in says


def test_a_gpu_array_needs_kernels_and_the_gpu():
    assert 'device: wanted None or "sm90"' in refused(OnGpu(), POOL, LAYOUT, device="cpu")
    says = refused(OnGpu(), POOL, LAYOUT)
    if _lathe.has_cuda:
        # No driver, or no fourth device.
        assert "CUDA driver: wanted one that serves CUDA" in says or "CUDA device: wanted" in says
    else:
        assert "this build has no CUDA kernels, got an array on cuda:3; build lathe" in says


def test_a_plan_does_not_read_lengths_on_the_gpu():
    plan = lathe.plan("mla", "sm90", heads=16, kv_layout="mla_bf16", context_length=4096)
    call = dict(indices=None, page_table=OnGpu(), kv_lens=OnGpu(), plan=plan)
    says = refused(OnGpu(), POOL, **call, max_kv_len=4097)
    assert says == "max_kv_len: wanted the plan's 4096 keys at most, got 4097"
    for longest in (None, 4096):
        says = refused(OnGpu(), POOL, **call, max_kv_len=longest)
        assert "CUDA d" in says or "this build has no CUDA kernels" in says
