"""What ncu prints is read: numbers with units and commas, kernels by their names in a trace, errors in one line."""

import shutil
from contextlib import nullcontext

import pytest
from fake_ncu import LISTED, UNITS, counters, install, printed, sample
from stored_traces import NAMES, stored

from profiling.trace import nsight_compute
from profiling.trace.nsight_compute import command, failure_in, function_of, metrics_on, read_launches

METRICS = {
    **{"seconds": "gpu__time_duration.sum", "dram_bytes": "dram__bytes.sum"},
    "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
}


def test_a_mangled_name_is_read_as_code_and_what_was_not_counted_is_absent():
    rows = (
        ("_ZN2at6native13reduce_kernelILi512EfEEvT0_", counters(1, sm=12)),
        ("k", {"gpu__time_duration.sum": "4.0e+03"}),
    )
    first, second = read_launches(printed(*((name, "(1, 1, 1)", counted) for name, counted in rows)), METRICS)
    assert first.name == "void at::native::reduce_kernel<512, float>(float)"
    assert (first.sm, second.sm, second.seconds) == (pytest.approx(0.12), None, pytest.approx(4e-6))


def test_what_ncu_printed_on_an_h200():
    """13 kernels of a group norm, SiLU, convolution, skinny GEMM and sum; see tests/data/README.md."""
    metrics = {
        **METRICS,
        "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    }
    launches = read_launches(sample("eager"), metrics)
    assert len(launches) == 13
    moments, conv = launches[0], launches[6]
    assert function_of(moments.name) == "RowwiseMomentsCUDAKernel"
    assert (moments.grid, moments.block, moments.passes) == ((32, 1, 1), (512, 1, 1), 10)
    assert moments.seconds == pytest.approx(105.312e-6)
    assert moments.dram_bytes == 4_505_344
    assert (moments.dram, moments.sm, moments.occupancy) == pytest.approx((0.0089, 0.0358, 0.2470))
    assert conv.name.startswith("sm90_xmma_fprop_implicit_gemm")
    assert (conv.tensor, conv.l2, conv.grid) == (pytest.approx(0.7853), pytest.approx(0.5555), (132, 1, 1))
    assert all(function_of(launch.name).isidentifier() for launch in launches)


def test_other_samples_of_an_h200():
    graph = read_launches(sample("graph"), METRICS)
    assert [launch.grid for launch in graph] == [(32, 1, 1), (132, 1, 1), (8192, 1, 1)]
    compiled = read_launches(sample("compile"), METRICS)
    assert [function_of(launch.name)[:10] for launch in compiled] == ["triton_red", "sm90_xmma_", "nvjet_sm90"]
    first, second = read_launches(sample("sections"), METRICS)
    assert (first.grid, second.block) == ((1, 1, 1), (128, 1, 1)), "other columns shift nothing"
    assert (function_of(first.name), second.sm) == ("ComputeFusedParamsCUDAKernel", pytest.approx(0.6295))
    launches = read_launches(sample("unknown_metric"), {"seconds": "bogus__x.sum"})
    assert [(launch.passes, launch.has_counters) for launch in launches] == [(1, False)] * 2, "a missing column"


@pytest.mark.parametrize(("unit", "seconds"), [("usecond", 4e-3), ("ms", 4.0), ("fortnight", None)])
def test_units_with_prefixes(unit, seconds):
    text = printed(("k", "(1, 1, 1)", {"gpu__time_duration.sum": "4,000"}), units={"gpu__time_duration.sum": unit})
    with nullcontext() if seconds else pytest.raises(ValueError, match="fortnight"):
        (launch,) = read_launches(text, METRICS)
        assert launch.seconds == pytest.approx(seconds)


def test_output_without_rows_or_cut_off():
    for text in ("", "==PROF== Connected to process 1", printed(), '"ID","Kernel Name"'):
        assert read_launches(text, METRICS) == ()
    whole = printed(("a", "(1, 1, 1)", counters(1)), ("b", "(1, 1, 1)", counters(1)))
    assert [launch.name for launch in read_launches(whole.rstrip()[:-30], METRICS)] == ["a"]
    assert failure_in(whole) is None
    assert "met none of the kernels of the trace" in failure_in("==WARNING== No kernels were profiled.\n")


def test_the_function_of_a_kernel():
    functions = {
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop>(cutlass_tensorop::Params)": "Kernel",
        "triton_poi_fused_add_mul_0": "triton_poi_fused_add_mul_0",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<x": "elementwise_kernel",
        "std::enable_if<true, void>::type internal::gemvx::kernel<int, 7>(Params<int, float>)": "kernel",
        "_ZN2at6native13reduce_kernelILi512EfEEvT0_": "reduce_kernel",
        "void at::<unnamed>::RowwiseMomentsCUDAKernel<c10::BFloat16>(long, T1)": "RowwiseMomentsCUDAKernel",
        "void unnamed>::ComputeFusedParamsCUDAKernel<BFloat16>(long)": "ComputeFusedParamsCUDAKernel",
        "void at::elementwise_kernel<128, at::f(B &)::[lambda(int) (instance 1)]>(int, T3)": "elementwise_kernel",
        "_Znonsense": "_Znonsense",  # no symbol
    }
    assert {name: function_of(name) for name in functions} == functions
    names = {work.name for name in NAMES for work in stored(name).work if work.kind == "kernel"}
    assert len(names) > 100
    assert not [name for name in names if not function_of(name).isidentifier()]


def test_metrics_are_those_that_the_gpu_has(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch)
    ncu = nsight_compute.available()
    assert ncu == str(tmp_path / "ncu")
    assert sorted(metrics_on(ncu).values()) == sorted(UNITS)
    older = LISTED.replace("sm__pipe_tensor_cycles_active", "sm__other").replace("sm__warps_active", "sm__more")
    install(tmp_path, monkeypatch, listed=older)
    found = metrics_on(ncu)
    assert found["tensor"] == "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed"
    assert "occupancy" not in found
    install(tmp_path, monkeypatch, listed="==ERROR== unknown chip")
    found = metrics_on(ncu)
    assert found["tensor"] == "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "the first are tried"
    assert metrics_on(str(tmp_path / "missing")) == found


def test_the_command_leaves_clocks_alone_and_names_the_kernels(tmp_path):
    words = command("ncu", METRICS, ["a_1", "b.c"], 5, tmp_path / "out.csv", ["python", "-m", "x"])
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--kernel-name") + 1] == r"regex:^(a_1|b\.c)$"
    assert words[words.index("--launch-count") + 1] == "5"
    assert words[words.index("--print-kernel-base") + 1] == "mangled"
    assert words[-5:] == ["--log-file", str(tmp_path / "out.csv"), "python", "-m", "x"]


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("ncu") is None, reason="ncu is not on the PATH")
def test_this_gpu_has_every_metric():
    assert set(metrics_on("ncu")) == set(nsight_compute.METRICS)
