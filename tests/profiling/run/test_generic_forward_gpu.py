"""The main job on a GPU: three clocks, captured variants, their state, faults that only a GPU has, deeper looks."""

import pickle
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

ALL = "variant=[baseline,compile,cuda_graph,compile+cuda_graph,compile+inductor_graphs]"


def test_every_variant_of_a_nested_module_is_right_and_the_record_tells_what_was_captured(profile):
    outcome = profile("component=[net]", ALL, "device=cuda")
    assert outcome.code == 0, outcome.err
    for record in outcome.records.values():
        assert record.status == "ok", record
        clocks = record.metrics
        assert 0 < clocks.device_ms.p50 <= clocks.wall_ms.p50 * 1.05
        assert 0 < clocks.host_ms.p50 <= clocks.wall_ms.p50
        assert record.memory.peak_held >= record.memory.peak_allocated > 0
        assert (record.memory.graph_pool > 0) == (record.variant not in ("baseline", "compile"))
    captured = outcome.records["net", "cuda_graph"]
    assert captured.graphs.held == 1
    assert 0 < captured.graphs.capture_seconds <= captured.prepare.seconds
    assert captured.graphs.pool_bytes == captured.memory.graph_pool
    assert list(captured.graphs.memory) == ["before static input", "static input", "capture"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_networks_at_tiny_size(profile, dtype):
    outcome = profile("variant=[baseline,cuda_graph]", "device=cuda", f"dtype={dtype}")
    assert outcome.code == 0, outcome.out
    assert all(record.parity.passed for record in outcome.records.values())
    assert all(record.speedup for record in outcome.records.values() if record.variant == "cuda_graph")


def test_gpu_faults_cost_one_row_each(profile):
    outcome = profile("component=[syncs,asserts,net]", "variant=[baseline,cuda_graph]", "device=cuda")
    records = outcome.records
    assert outcome.code == 1
    assert records["syncs", "baseline"].status == "ok"
    assert records["syncs", "cuda_graph"].status == "skipped"
    assert "captur" in records["syncs", "cuda_graph"].reason
    assert "assert" in records["asserts", "baseline"].reason
    assert records["net", "baseline"].status == "ok"
    assert records["net", "cuda_graph"].status == "ok"


def test_breaks_are_captured_as_one_graph(profile):
    """`broken_up` is cut at its planted breaks; captured, the host launches one graph instead of every kernel."""
    variants = "variant=[baseline,compile,compile+cuda_graph,cuda_graph]"
    outcome = profile("component=[broken_up]", variants, "device=cuda", "ceilings=auto")
    assert outcome.code == 0, outcome.out
    compiled, captured = (outcome.records["broken_up", each] for each in ("compile", "compile+cuda_graph"))
    assert compiled.prepare.graph_breaks >= 2
    assert compiled.roofline.device_work.launches >= 3, "the pieces between the breaks"
    assert captured.graphs.held == 1
    assert captured.roofline.device_work.launches <= 3, "the input's copy, the graph, the output's clone"


def test_a_trace_of_a_replay_shows_its_kernels(profile):
    outcome = profile("component=[net]", "variant=[cuda_graph,compile]", "device=cuda", "trace=true")
    assert outcome.code == 0, outcome.err
    for record in outcome.records.values():
        assert record.trace_analysis.count >= 3
        assert (outcome.folder / record.trace.trace).exists()
    assert "CUDA" in (outcome.folder / "traces" / "net.cuda_graph.txt").read_text()


def test_kept_kernels_can_be_run(profile):
    options = ("variant=[compile]", "step.compile.keep_kernels=true")
    outcome = profile("component=[net]", *options, "device=cuda")
    files = {file: file.read_text() for file in (outcome.folder / "kernels" / "net.compile").glob("*/*.py")}
    graphs = [file for file, text in files.items() if "def benchmark_compiled_module(" in text]
    assert graphs, "the code of the compiled graph is there, too"
    single = (file for file, text in files.items() if "@triton.jit" in text and file not in graphs)
    file = next(file for file in single if "__main__" in files[file])
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "GB/s" in done.stdout


def test_a_look_tries_a_capture(profile):
    names = "component=[net,syncs,host_tensor,counts,broken_up]"
    outcome = profile(names, "device=cuda", "check=true")
    assert outcome.code == 0, outcome.err
    calls = {name: record.check.calls[name] for (name, _), record in outcome.records.items()}
    captured = {name: call.captured for name, call in calls.items()}
    assert captured == {"net": True, "syncs": False, "host_tensor": False, "counts": False, "broken_up": True}
    for name in ("syncs", "host_tensor", "counts"):
        (obstacle,) = (each for each in calls[name].obstacles if each.hinders == "cuda_graph")
        assert obstacle.file.endswith("faulty_modules.py")
        assert obstacle.line
        assert obstacle.advice
    assert [each.hinders for each in calls["broken_up"].obstacles] == ["compile"] * 2


def test_a_memory_snapshot_names_the_lines_that_allocate(profile):
    outcome = profile("component=[net]", "variant=[baseline,cuda_graph]", "device=cuda", "memory_snapshot=true")
    assert outcome.code == 0, outcome.err
    for record in outcome.records.values():
        snapshot = pickle.loads((outcome.folder / record.memory_snapshot.file).read_bytes())
        frames = [frame for trace in snapshot["device_traces"] for event in trace for frame in event.get("frames", ())]
        assert any(frame["filename"].endswith("outside_net.py") for frame in frames)


def with_state(profile, kind):
    module = f"+component.steps.module={{_target_: stateful_nets.Steps, kind: {kind}}}"
    inputs = "+component.steps.inputs={x: {shape: [2, 8]}}"
    return profile("component=[]", module, inputs, "device=cuda", "variant=[baseline,cuda_graph,compile+cuda_graph]")


def test_a_cache_that_the_first_call_makes(profile):
    done = with_state(profile, "cache")
    assert done.code == 0, done.out + done.err
    assert {record.status for record in done.records.values()} == {"ok"}


def test_a_hidden_state_that_each_call_assigns(profile):
    records = with_state(profile, "hidden").records
    assert records["steps", "baseline"].status == "ok"
    refused = records["steps", "cuda_graph"]
    assert refused.status == "skipped"
    assert "`hidden` is assigned anew by each call, and a later call reads it" in (refused.reason or "")
