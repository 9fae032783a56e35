"""Generated code is kept in a folder, listed and runnable, and inductor's state is restored."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from profiling.errors import InputError
from profiling.results.explained import KernelFile
from profiling.trace.generated_code import kept_kernels, list_kernels


def wave(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + torch.cos(x)


def flags() -> tuple[object, ...]:
    from torch._inductor import config

    places = (os.environ.get("TORCHINDUCTOR_CACHE_DIR"), os.environ.get("TRITON_CACHE_DIR"))
    return (config.benchmark_kernel, config.triton.unique_kernel_names, *places)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from torch._inductor import config

    folder = tmp_path_factory.mktemp("run") / "kernels" / "planted.compile"
    before = flags()
    torch._dynamo.reset()
    with torch.inference_mode():
        with kept_kernels(folder):
            assert config.benchmark_kernel
            assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
            compiled = torch.compile(wave)
            compiled(torch.ones(1024))
        assert flags() == before
        torch.testing.assert_close(compiled(torch.ones(1024)), wave(torch.ones(1024)))  # goes on working
    return folder


def test_the_generated_code_lands_in_the_folder(kept: Path) -> None:
    kernels = list_kernels(kept)
    assert [kernel.kind for kernel in kernels] == ["graph", "cpp"]
    assert "cpp_fused" in kernels[1].name
    assert "sin" in kernels[1].name
    assert all((kept / kernel.file).is_file() for kernel in kernels)


def test_the_graph_file_is_python_that_runs_by_itself(kept: Path) -> None:
    graph = list_kernels(kept)[0]
    module = runpy.run_path(str(kept / graph.file), run_name="generated")
    (result,) = module["call"]([torch.ones(1024)])
    torch.testing.assert_close(result, wave(torch.ones(1024)))
    assert callable(module["benchmark_compiled_module"])


def test_flags_come_back_after_a_failure(tmp_path: Path) -> None:
    before = flags()
    with pytest.raises(RuntimeError, match="planted"), kept_kernels(tmp_path / "kernels"):
        raise RuntimeError("planted")
    assert flags() == before


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    assert list_kernels(tmp_path / "absent") == ()
    (tmp_path / "old.py").write_text("")
    with pytest.raises(InputError, match="not empty"), kept_kernels(tmp_path):
        pass


def test_a_triton_kernel_is_listed_by_name(tmp_path: Path) -> None:
    source = """
import triton
from torch._inductor.runtime import triton_heuristics

@triton.jit
def _triton_helper_fn_add0(arg0_0, arg1_0):
    return arg0_0 + arg1_0

@triton_heuristics.pointwise(
    size_hints={'x': 1024},
)
@triton.jit
def triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass

if __name__ == '__main__':
    pass
"""
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "cabc.py").write_text(source)
    kernel = KernelFile(name="triton_poi_fused_add_0", file="ab/cabc.py", kind="triton")
    assert list_kernels(tmp_path) == (kernel,)


@pytest.mark.gpu
def test_a_triton_kernel_file_benchmarks_itself(tmp_path: Path) -> None:
    torch._dynamo.reset()
    with torch.inference_mode(), kept_kernels(tmp_path / "kernels"):
        torch.compile(wave)(torch.ones(1 << 20, device="cuda"))
        torch.cuda.synchronize()
    kernels = [kernel for kernel in list_kernels(tmp_path / "kernels") if kernel.kind == "triton"]
    assert ["sin" in kernel.name for kernel in kernels] == [True]
    command = [sys.executable, str(tmp_path / "kernels" / kernels[0].file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "GB/s" in said
