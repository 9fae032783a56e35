"""Counters of a cell's longest kernels: chosen and weighted by the trace, measured by `ncu`, kept in its record."""

import json
import os
from pathlib import Path

import pytest
from fake_ncu import counters, install, printed
from make_job import make_job

from profiling.components.spec import ComponentSpec, Settings
from profiling.results.explanations import Kernel
from profiling.results.record import encode_sections
from profiling.run import process
from profiling.run.compile_caches import CompileCaches
from profiling.run.events import End, Phase, Sections
from profiling.run.hardware_counters import (
    Group,
    grouped,
    launches_to_measure,
    longest,
    measure_counters,
)
from profiling.run.process import Isolated
from profiling.run.session import Limits, NotMeasuredError, ProcessEnd, to_its_end
from profiling.run.task import Cell, Counters, Probe
from profiling.trace.events import GpuWork
from profiling.trace.nsight_compute import read_launches

GEMM, NORM = "nvjet_tst_64x8_v_bz_TNT", "void at::native::norm_kernel<float>(float)"
MANGLED = "_ZN2at6native11norm_kernelIfEEvT_"
#: One call: two products of 132 blocks of 300 us in all, one of 16 blocks of 100 us, and a norm of 100 us.
TRACED = ((GEMM, (132, 1, 1), 150.0), (GEMM, (132, 1, 1), 150.0), (GEMM, (16, 1, 1), 100.0), (NORM, (64, 1, 1), 100.0))


def job(folder, device="cuda:0", **settings):
    spec = ComponentSpec(name="net", module={"_target_": "outside.Net"}, inputs={"x": {"shape": [1, 8]}})
    given = Settings(device=device, dtype="float32", trace=True, counters=True, **settings)
    return make_job("baseline", folder, spec, settings=given)


@pytest.fixture
def traced(tmp_path):
    """A run folder in which the trace of a cell lies; return what the cell has sent of it."""
    (tmp_path / "traces").mkdir()
    (tmp_path / "cells").mkdir()
    events = [{"ph": "X", "cat": "user_annotation", "name": "net/baseline/trace/0", "pid": 1, "tid": 1, "ts": 0}]
    events[0] |= {"dur": 10_000, "args": {}}
    begin = 0.0
    for name, grid, us in TRACED:
        place = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": begin, "dur": us}
        events.append({**place, "args": {"grid": list(grid), "block": [128, 1, 1]}})
        begin += us
    (tmp_path / "traces" / "net.baseline.json").write_text(json.dumps({"traceEvents": events}))
    ceilings = {"dtype": "float32", "copy_bytes_per_s": 4e12, "read_bytes_per_s": 4e12, "bandwidth": [[10**9, 4e12]]}
    ceilings |= {"matmul_flops_per_s": 8e14, "launch_us": 4.0, "seconds": 1.0}
    (tmp_path / "environment.json").write_text(json.dumps({"ceilings": ceilings}))
    kernels = [
        {"name": GEMM, "class": "gemm", "ms": 0.4, "share": 0.8, "count": 3, "mean_us": 133.3, "gbps": 3600.0},
        {"name": NORM, "class": "reduction", "ms": 0.1, "share": 0.2, "count": 1, "mean_us": 100.0, "gbps": 500.0},
    ]
    return {"trace": {"trace": "traces/net.baseline.json"}, "trace_analysis": {"kernels": kernels, "kernel_ms": 0.5}}


def measure(folder, sections):
    return measure_counters(folder, Counters(job=job(folder)), sections, os.environ)


def test_counters_are_weighted_by_the_time_of_their_launches(tmp_path, traced, monkeypatch):
    text = printed(
        (GEMM, "(132, 1, 1)", counters(140, dram=80, sm=10)),
        (GEMM, "(132, 1, 1)", counters(160, dram=80, sm=10)),
        (GEMM, "(16, 1, 1)", counters(110, dram=40, sm=10)),
        (MANGLED, "(64, 1, 1)", counters(95, dram=15, fma=70, sm=75, occupancy=21.5)),
    )
    seen = install(tmp_path / "bin", monkeypatch, text)
    section = measure(tmp_path, traced)
    gemm, norm = section.kernels
    assert (gemm.covered, norm.covered) == (1, 1)
    assert gemm.dram == pytest.approx((300 * 0.8 + 100 * 0.4) / 400)
    assert gemm.counted_us == pytest.approx((2 * 150 + 1 * 110) / 3), "as the mean of the trace"
    assert (gemm.launches, gemm.mean_us) == (3, pytest.approx(400 / 3))
    assert (gemm.bound_by_counters, gemm.bound_by_trace) == ("memory bandwidth", "memory bandwidth")
    assert (norm.bound_by_counters, norm.bound_by_trace) == ("compute", "neither")
    assert (norm.occupancy, norm.dram_bytes, norm.l2_bytes) == (pytest.approx(0.215), 2**20, 3 * 2**20)
    assert (norm.fma, norm.sm) == pytest.approx((0.70, 0.75))
    assert section.passes == 10
    assert section.file == "counters/net.baseline.csv"
    assert (tmp_path / section.file).read_text() == text
    arguments = seen.read_text().splitlines()
    assert f"regex:^({GEMM}|norm_kernel)$" in arguments
    assert arguments[-3:-1] == ["-m", "profiling.run.worker"]
    assert not list((tmp_path / "cells").glob("*.json"))  # the job's file


def test_few_launches_do_not_say_what_bounds_a_kernel(tmp_path, traced, monkeypatch):
    """The kernel `product` ran in two grids, of 300 and 100 us; ncu measured the second, and no kernel of the norm."""
    install(tmp_path / "bin", monkeypatch, printed((GEMM, "(16, 1, 1)", counters(110, dram=80))))
    gemm, norm = measure(tmp_path, traced).kernels
    assert (gemm.launches, gemm.covered, gemm.dram) == (1, 0.25, 0.8)
    assert (gemm.bound_by_counters, gemm.bound_by_trace) == (None, "memory bandwidth")
    assert (norm.launches, norm.dram, norm.bound_by_counters, norm.bound_by_trace) == (0, None, None, "neither")
    with pytest.raises(NotMeasuredError, match="no trace names the kernels"):
        measure(tmp_path, {})


def test_a_grid_that_the_trace_does_not_have_needs_an_equal_name():
    (launch,) = read_launches(printed((MANGLED, "(7, 1, 1)", counters(1))), {})
    shape = ((64, 1, 1), (128, 1, 1))
    assert grouped([launch], [Group(NORM, *shape)]) == {Group(NORM, (7, 1, 1), (128, 1, 1)): [launch]}
    assert grouped([launch], [Group(NORM.replace("float", "double"), *shape)]) == {}


def test_ncu_measures_so_many_launches_that_it_meets_each_kernel():
    def work(name, blocks, length=1.0):
        return GpuWork(name, "kernel", 0.0, length, 1, 1, None, 7, (blocks, 1, 1), (128, 1, 1))

    same = [work(f"void f<{kind}>(int)", 8) for kind in "aaabbc"]
    assert launches_to_measure(same, {"void f<c>(int)"}, {"f"}) == 6  # the others come first
    assert launches_to_measure(same, {"void f<a>(int)"}, {"f"}) == 2
    assert launches_to_measure([*same, work("g", 8)], {"g"}, {"g"}) == 1  # ncu skips f
    assert launches_to_measure([*same, work("g", 8)], {"g"}, {"f", "g"}) == 1  # and counts them apart
    long = [work("f<b>", 9, 100.0)] * 2
    assert launches_to_measure([*same, *long], {"f<b>", "void f<c>(int)"}, {"f"}) == 2  # c takes less than 5%
    many = [work("g", blocks) for blocks in range(1, 250)] + [work("h", 1)] * 3
    assert launches_to_measure(many, {"g", "h"}, {"g", "h"}) == 1


def test_a_kernel_whose_long_name_the_trace_leaves_mangled_is_met(tmp_path, traced, monkeypatch):
    """libkineto demangles no name of 1024 letters or more."""
    path = tmp_path / "traces" / "net.baseline.json"
    path.write_text(path.read_text().replace(NORM, MANGLED))
    traced["trace_analysis"]["kernels"][1]["name"] = MANGLED
    seen = install(tmp_path / "bin", monkeypatch, printed((MANGLED, "(64, 1, 1)", counters(95, dram=65))))
    _, norm = measure(tmp_path, traced).kernels
    assert (norm.launches, norm.bound_by_counters) == (1, "memory bandwidth")
    assert f"regex:^({GEMM}|norm_kernel)$" in seen.read_text().splitlines()


def test_the_longest_kernels_are_chosen():
    copies = Kernel(name="Memcpy DtoD (Device -> Device)", kind="copy", ms=99.0, share=0.2)
    kernels = [Kernel(name=f"k{index}", kind="gemm", ms=20.0 - index, share=0.05, count=1) for index in range(15)]
    assert [kernel.name for kernel in longest((copies, *kernels))] == [f"k{index}" for index in range(10)]
    short = Kernel(name="short", kind="other", ms=0.1, share=0.001)
    assert [kernel.name for kernel in longest((*kernels[:2], short))] == ["k0", "k1"]


@pytest.mark.parametrize("of", [Cell, Probe])
def test_the_section_is_sent_after_a_cell_has_ended_and_the_probe_is_not_measured(tmp_path, traced, monkeypatch, of):
    def worker(task, files, timeout, on_event, environment, **_):
        on_event(Sections(encode_sections(**traced)))
        on_event(End("ok"))
        return ProcessEnd()
        yield  # a generator

    monkeypatch.setattr(process, "open_session", worker)
    install(tmp_path / "bin", monkeypatch, printed((GEMM, "(16, 1, 1)", counters(110, dram=40))))
    cells = Isolated(tmp_path, Limits(60.0), caches=CompileCaches())
    task, events = Probe(jobs=(job(tmp_path),)) if of is Probe else Cell(job=job(tmp_path)), []
    assert to_its_end(cells.session(task, "net.baseline", events.append, turns=False)).notes == ()
    measured = [] if of is Probe else [Phase, Sections]
    assert [type(each) for each in events] == [Sections, End, *measured]
    if measured:
        assert events[2] == Phase("counters")
        assert list(events[3].sections) == ["hardware_counters"]


def test_the_measured_process_builds_and_calls_the_cell(tmp_path, traced, monkeypatch):
    """The program that ncu runs, on a CPU, where it opens no range of the CUDA profiler."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), str(tmp_path)]))
    (tmp_path / "outside.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(8, 8)\n"
        "    def forward(self, x):\n        print('called')\n        return super().forward(x)\n"
    )
    install(tmp_path / "bin", monkeypatch, printed((GEMM, "(16, 1, 1)", counters(110, dram=40))), "runs")
    task = Counters(job=job(tmp_path, "cpu", scale="full", checkpoint="random", threads=1))
    section = measure_counters(tmp_path, task, traced, os.environ)
    assert section.kernels[0].launches == 1
    called = (tmp_path / "cells" / "net.baseline.counters.log").read_text().count("called")
    assert called == 5, "a warm call, one by the variant, and three of which the last is measured"
