"""Trace analysis of real steps on a GPU: it adds up, submodules have their times and waits their lines."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from planted_modules import Constructing, Stack, Trained, Waiting, component, line_of

from profiling.results.jsonl import read_records
from profiling.run.trace_passes import TracePasses
from profiling.trace.counters import snapshot
from profiling.trace.events import GPU_WORK, read_events
from profiling.trace.profiler import trace_step
from profiling.variants.cuda_graph import CudaGraph
from profiling.variants.inductor import Inductor
from profiling.variants.recipe import Recipe

pytestmark = pytest.mark.gpu

VARIANTS = {
    "baseline": Recipe(),
    "cuda_graph": Recipe(capture=CudaGraph()),
    "compile": Recipe(compiler=Inductor()),
    "compile+cuda_graph": Recipe(compiler=Inductor(), capture=CudaGraph()),
}
LINEARS = {"blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head"}
ROOT = Path(__file__).parent


def analyzed(module, name, run, variant=None):
    with torch.inference_mode():  # inputs too, as in a cell: the compiler distinguishes inference tensors
        planted = component(module, "cuda")
        return analyze_step(planted, name, run, variant or VARIANTS[name])


def analyze_step(planted, name, run, variant):
    step = variant(planted, run / "kernels")
    try:
        step.run()
        result = trace_step(step.run, component="planted", variant=name, folder=run / "traces", device=planted.device)
        found = TracePasses(planted, name, step, ROOT, nullcontext).analyze(run / result.trace)
    finally:
        step.close()
    assert found is not None
    durations_us = [event["dur"] for event in read_events(run / result.trace) if event.get("cat") in GPU_WORK]
    return found, [us / 5 for us in durations_us]  # of five calls


@pytest.fixture(scope="module", params=sorted(VARIANTS))
def stack(request, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    return request.param, *analyzed(Stack(width=256), request.param, run)


def test_a_call_adds_up_has_rates_and_does_not_wait_for_the_host(stack):
    name, found, durations_us = stack
    assert found.busy_ms + found.idle.host_ms + found.idle.between_ms == pytest.approx(found.span_ms, rel=0.01)
    assert found.kernel_ms == pytest.approx(sum(durations_us) / 1e3, rel=0.01)
    assert found.count == len(durations_us) / 5
    assert sum(row.ms for row in found.classes) == pytest.approx(found.kernel_ms)
    products = [row for row in found.kernels if row.kind == "gemm"]
    assert sum(row.count for row in products) >= len(LINEARS)
    rates = [row.tflops for row in products if row.tflops is not None]
    assert rates
    assert all(0 < rate < 2000 for rate in rates)
    assert all(0 < row.gbps < 20_000 for row in found.kernels if row.gbps is not None)
    if "graph" in name:
        assert found.idle.between_ms > 0
        assert found.count > 5
    assert found.waits == ()
    assert found.copies == ()


def test_submodules_have_their_time(stack):
    name, found, _ = stack
    rows = {row.path: row for row in found.modules}
    assert set(rows) >= LINEARS
    assert all(rows[path].ms > 0 for path in LINEARS)
    assert rows[""].ms + found.unattributed_ms == pytest.approx(found.kernel_ms)
    compiled = name.startswith("compile")
    assert ("blocks.0.norm" in rows) == (not compiled)
    if name == "baseline":
        assert found.unattributed_ms == 0
    assert "another order" not in found.modules_from
    if name == "cuda_graph":  # the input's copy and the output's clone are the step's, not the network's
        assert found.unattributed_ms < 0.5 * found.kernel_ms
        assert rows["blocks.0"].count == rows["blocks.1"].count


def test_waits_and_copies_name_their_lines(tmp_path):
    found, _ = analyzed(Waiting(width=256), "baseline", tmp_path)
    file = "planted_modules.py"
    lines = {row.line for row in found.waits}
    assert {f"{file}:{line_of(mark)}" for mark in ("comparison", "method", "copy")} <= lines
    away = next(row for row in found.copies if row.line == f"{file}:{line_of('copy')}")
    assert away.what == "device to pageable host"
    assert away.bytes == 256 * 8 * 4
    assert away.code.startswith("return y.cpu()")
    back = [row for row in found.copies if row.what == "pageable host to device"]
    assert [row.line for row in back] == [f"{file}:{line_of('copy back')}"]


def test_what_is_no_operator_of_its_own_names_its_line_too(tmp_path):
    found, _ = analyzed(Constructing(width=256), "baseline", tmp_path)
    copies = [row.line for row in found.copies if row.what == "pageable host to device"]
    assert {f"planted_modules.py:{line_of(mark)}" for mark in ("constructor", "index")} <= {*copies}
    explicit = next(row for row in found.waits if row.what == "cudaDeviceSynchronize")
    assert explicit.line == f"planted_modules.py:{line_of('explicit')}"


def test_waits_between_compiled_graphs_name_their_lines(tmp_path):
    found, _ = analyzed(Waiting(width=256), "compile", tmp_path)
    lines = {row.line for row in found.waits}
    assert {f"planted_modules.py:{line_of(mark)}" for mark in ("comparison", "method")} <= lines


def test_a_backward_pass_is_attributed_to_submodules(tmp_path):
    found, _ = analyze_step(component(Trained(width=256), "cuda"), "baseline", tmp_path, Recipe())
    rows = {row.path: row for row in found.modules}
    # A product in forward, two in backward, and the sum that is the bias's gradient.
    assert all(rows[f"model.{path}"].count >= 3 for path in LINEARS)
    assert found.unattributed_ms < 0.5 * found.kernel_ms


def test_the_passes_compile_nothing_more(tmp_path):
    with torch.inference_mode():
        planted = component(Stack(width=256), "cuda")
        for name in ("compile", "compile+cuda_graph"):
            step = VARIANTS[name](planted, tmp_path / name)
            try:
                result = trace_step(
                    step.run, component="planted", variant=name, folder=tmp_path / "traces", device=planted.device
                )
                before = snapshot()
                TracePasses(planted, name, step, ROOT, nullcontext).analyze(tmp_path / result.trace)
                step.run()
                assert snapshot().since(before).compiles == 0, name
            finally:
                step.close()


def test_a_graph_of_the_compilers_own_is_not_attributable(tmp_path):
    reduced = Recipe(compiler=Inductor(mode="reduce-overhead"))
    found, _ = analyzed(Stack(width=256), "compile_reduce_overhead", tmp_path, reduced)
    assert not found.modules
    assert found.modules_from.startswith("not attributable")
    assert found.unattributed_ms == pytest.approx(found.kernel_ms)


def test_the_records_of_a_run_have_an_analysis(profile):
    outcome = profile("component=[net]", "variant=[baseline,cuda_graph]", "device=cuda", "trace=true")
    assert outcome.code == 0, outcome.err
    for record in read_records(outcome.folder).records:
        assert record.trace_analysis is not None
        assert record.trace_analysis.kernels
        assert not any("failed" in note for note in record.notes)
