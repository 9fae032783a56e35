"""Profiling a step into files, and the spans that name its parts in the profiler and in Nsight Systems."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiling.results.explained import TraceFiles
from profiling.trace import spans
from profiling.trace.profiler import trace_step
from profiling.trace.spans import cell_span, open_names, span

M, N, K = 16, 32, 64


def events(run: Path, result: TraceFiles) -> list[dict[str, Any]]:
    with gzip.open(run / result.trace, "rt") as stream:
        return json.load(stream)["traceEvents"]


CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TraceFiles, list[int]]:
    run = tmp_path_factory.mktemp("run")
    a, b = torch.randn(M, K), torch.randn(K, N)
    calls: list[int] = []

    def step() -> torch.Tensor:
        calls.append(1)
        return torch.sin(a @ b)

    with torch.inference_mode():
        result = trace_step(
            step, component="planted", variant="baseline", folder=run / "traces", iterations=3, device=CPU
        )
    return run, result, calls


def test_what_a_step_on_a_cpu_has(traced: tuple[Path, TraceFiles, list[int]]) -> None:
    run, result, calls = traced
    assert result.trace == "traces/planted.baseline.json.gz"
    assert result.operators == "traces/planted.baseline.txt"
    assert (run / result.trace).read_bytes()[:2] == b"\x1f\x8b"  # really gzip
    assert len(calls) == 5
    assert (result.device_ms, result.device_launches) == (None, None)


def test_the_trace_holds_our_spans_and_the_operators(traced: tuple[Path, TraceFiles, list[int]]) -> None:
    run, result, _ = traced
    found = events(run, result)
    names = [event.get("name") for event in found]
    assert [names.count(f"planted/baseline/trace/{index}") for index in range(4)] == [1, 1, 1, 0]
    assert "planted/baseline/trace/warmup" not in names
    assert names.count("aten::sin") == names.count("aten::mm") == 3
    shapes = [event["args"]["Input Dims"] for event in found if event.get("name") == "aten::mm"]
    assert shapes == [[[M, K], [K, N]]] * 3


def test_the_operator_table(traced: tuple[Path, TraceFiles, list[int]]) -> None:
    text = (traced[0] / traced[1].operators).read_text()
    assert text.startswith("planted/baseline: 3 profiled iterations on cpu")
    assert "Top operators by self CPU time" in text
    assert "by self device time" not in text
    assert "aten::mm" in text
    assert "planted/baseline/trace" not in text  # spans are no operators
    assert "ProfilerStep" not in text


def test_stacks(tmp_path: Path) -> None:
    x = torch.ones(8)
    folder = tmp_path / "traces"
    result = trace_step(
        lambda: x.relu(), component="c", variant="v", folder=folder, iterations=1, warmup=1, device=CPU, stacks=True
    )
    assert any(Path(__file__).name in str(event.get("name")) for event in events(tmp_path, result))


def test_a_failing_step_fails_the_pass(tmp_path: Path) -> None:
    def step() -> None:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        trace_step(step, component="c", variant="v", folder=tmp_path, device=CPU)
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize(("iterations", "warmup"), [(0, 1), (1, 0)])
def test_needs_an_iteration_and_a_warm_up(tmp_path: Path, iterations: int, warmup: int) -> None:
    given: Any = {"component": "c", "variant": "v", "folder": tmp_path, "device": CPU}
    with pytest.raises(ValueError, match="at least 1"):
        trace_step(lambda: None, iterations=iterations, warmup=warmup, **given)


@pytest.mark.gpu
def test_a_graph_replay_shows_its_kernels(tmp_path: Path) -> None:
    device = torch.device("cuda")
    a = torch.randn(512, 512, device=device)
    with torch.inference_mode():
        (a @ a).sin_()  # cuBLAS starts up outside the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (a @ a).sin_()
    result = trace_step(
        graph.replay, component="planted", variant="cuda_graph", folder=tmp_path / "traces", device=device
    )
    kernels = [event for event in events(tmp_path, result) if event.get("cat") == "kernel"]
    assert len(kernels) >= 2 * 5, "iterations"
    assert result.device_ms is not None
    assert 0 < result.device_ms < 100
    assert result.device_launches is not None
    assert result.device_launches >= 2
    text = (tmp_path / result.operators).read_text()
    assert text.index("self device time") < text.index("self CPU time")
    assert any(str(kernel["name"])[:20] in text for kernel in kernels)
    assert "planted/cuda_graph/trace" not in text


@pytest.mark.gpu
def test_eager_on_a_gpu_has_device_time(tmp_path: Path) -> None:
    device = torch.device("cuda")
    a, b = torch.randn(M, K, device=device), torch.randn(K, N, device=device)
    result = trace_step(lambda: a @ b, component="c", variant="v", folder=tmp_path / "traces", device=device)
    assert result.device_ms is not None
    assert result.device_ms > 0


class FakeDomain:
    """Stands in for an NVTX domain with a tool attached."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def get_event_attributes(self, message: str) -> Any:
        return SimpleNamespace(message=message)

    def push_range(self, attributes: Any) -> None:
        self.calls.append(f"push {attributes.message}")

    def pop_range(self) -> None:
        self.calls.append("pop")


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> FakeDomain:
    fake = FakeDomain()
    monkeypatch.setattr(spans, "_domain", fake)
    return fake


def test_nested_names_are_paths_for_nvtx_and_for_the_profiler(domain: FakeDomain) -> None:
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler,
        span("world_model"),
        span("compile"),
        span("timing"),
        span("17") as path,
    ):
        torch.ones(3)
    assert path == "world_model/compile/timing/17"
    paths = ["world_model", "world_model/compile", "world_model/compile/timing", "world_model/compile/timing/17"]
    assert domain.calls == [f"push {path}" for path in paths] + ["pop"] * 4
    assert set(paths) <= {event.key for event in profiler.key_averages()}


def test_a_span_closes_when_what_it_names_fails(domain: FakeDomain) -> None:
    with pytest.raises(RuntimeError, match="planted"), span("a"), span("b"):
        raise RuntimeError("planted")
    assert open_names() == ()
    assert domain.calls == ["push a", "push a/b", "pop", "pop"]


def test_threads_do_not_see_each_others_spans(domain: FakeDomain) -> None:
    seen: list[tuple[str, ...]] = []
    with span("main"):
        thread = threading.Thread(target=lambda: seen.append(open_names()))
        thread.start()
        thread.join()
    assert seen == [()]


@pytest.mark.parametrize("opened", [False, True])
def test_cell_span_opens_the_cell_once(opened: bool) -> None:
    if not opened:
        with cell_span("vae", "compile", "trace") as path:
            assert path == "vae/compile/trace"
    else:
        with span("vae"), span("compile"), cell_span("vae", "compile", "trace") as path:
            assert path == "vae/compile/trace"
    assert open_names() == ()
