"""Generated code is kept in a folder, listed and runnable, and inductor's state is restored."""

import os
import runpy
import subprocess
import sys

import pytest
import torch
from torch._inductor import config

from profiling.errors import InputError
from profiling.results.explanations import KernelFile
from profiling.trace.generated_code import kept_kernels, list_kernels


def wave(x):
    return torch.sin(x) + torch.cos(x)


def flags():
    places = (os.environ.get("TORCHINDUCTOR_CACHE_DIR"), os.environ.get("TRITON_CACHE_DIR"))
    return (config.benchmark_kernel, config.triton.unique_kernel_names, *places)


def test_generated_code_is_listed_and_runs_by_itself(tmp_path):
    folder, before, ones = tmp_path / "kernels" / "planted.compile", flags(), torch.ones(1024)
    torch._dynamo.reset()
    with torch.inference_mode():
        with kept_kernels(folder):
            assert config.benchmark_kernel
            assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
            compiled = torch.compile(wave)
            compiled(ones)
        assert flags() == before
        torch.testing.assert_close(compiled(ones), wave(ones))  # goes on working
    graph, kernel = list_kernels(folder)
    assert (graph.kind, kernel.kind) == ("graph", "cpp")
    assert "cpp_fused" in kernel.name
    assert "sin" in kernel.name
    assert (folder / kernel.file).is_file()
    module = runpy.run_path(str(folder / graph.file), run_name="generated")
    (result,) = module["call"]([ones])
    torch.testing.assert_close(result, wave(ones))
    assert callable(module["benchmark_compiled_module"])


def test_flags_come_back_after_a_failure_and_a_folder_in_use_is_refused(tmp_path):
    before, folder = flags(), tmp_path / "kernels"
    assert list_kernels(folder) == ()
    with pytest.raises(RuntimeError, match="planted"), kept_kernels(folder):
        raise RuntimeError("planted")
    assert flags() == before
    (folder / "old.py").write_text("")
    with pytest.raises(InputError, match="not empty"), kept_kernels(folder):
        pass


def test_a_triton_kernel_is_listed_by_name(tmp_path):
    source = """
@triton.jit
def _triton_helper_fn_add0(arg0_0, arg1_0):
    return arg0_0 + arg1_0

@triton_heuristics.pointwise(
    size_hints={'x': 1024},
)
@triton.jit
def triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass
"""
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "cabc.py").write_text(source)
    kernel = KernelFile(name="triton_poi_fused_add_0", file="ab/cabc.py", kind="triton")
    assert list_kernels(tmp_path) == (kernel,)


@pytest.mark.gpu
def test_a_triton_kernel_file_benchmarks_itself(tmp_path):
    torch._dynamo.reset()
    with torch.inference_mode(), kept_kernels(tmp_path / "kernels"):
        torch.compile(wave)(torch.ones(1 << 20, device="cuda"))
        torch.cuda.synchronize()
    kernels = [kernel for kernel in list_kernels(tmp_path / "kernels") if kernel.kind == "triton"]
    assert ["sin" in kernel.name for kernel in kernels] == [True]
    command = [sys.executable, str(tmp_path / "kernels" / kernels[0].file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "GB/s" in said
