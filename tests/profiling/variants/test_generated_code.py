"""Generated code is kept in a folder and runnable, and inductor's state is restored."""

import os
import runpy
import subprocess
import sys

import pytest
import torch
from torch._inductor import config

from profiling.errors import InputError
from profiling.variants.inductor import kept_kernels


def wave(x):
    return torch.sin(x) + torch.cos(x)


def flags():
    places = (os.environ.get("TORCHINDUCTOR_CACHE_DIR"), os.environ.get("TRITON_CACHE_DIR"))
    return (config.benchmark_kernel, config.triton.unique_kernel_names, *places)


def test_generated_code_is_kept_and_runs_by_itself(tmp_path):
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
    (graph,) = folder.glob("*/*.py")
    assert "cpp_fused" in graph.read_text()
    module = runpy.run_path(str(graph), run_name="generated")
    (result,) = module["call"]([ones])
    torch.testing.assert_close(result, wave(ones))
    assert callable(module["benchmark_compiled_module"])


def test_flags_come_back_after_a_failure_and_a_folder_in_use_is_refused(tmp_path):
    before, folder = flags(), tmp_path / "kernels"
    with pytest.raises(RuntimeError, match="planted"), kept_kernels(folder):
        raise RuntimeError("planted")
    assert flags() == before
    (folder / "old.py").write_text("")
    with pytest.raises(InputError, match="not empty"), kept_kernels(folder):
        pass


@pytest.mark.gpu
def test_a_triton_kernel_file_benchmarks_itself(tmp_path):
    torch._dynamo.reset()
    with torch.inference_mode(), kept_kernels(tmp_path / "kernels"):
        torch.compile(wave)(torch.ones(1 << 20, device="cuda"))
        torch.cuda.synchronize()
    texts = {path: path.read_text() for path in (tmp_path / "kernels").glob("*/*.py")}
    (kernel,) = (path for path, text in texts.items() if "def benchmark_compiled_module(" not in text)
    assert "sin" in texts[kernel]
    command = [sys.executable, str(kernel)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "GB/s" in said
