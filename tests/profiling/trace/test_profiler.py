"""Profiling a step into files, and the spans that name its parts in the profiler and in Nsight Systems."""

import gzip
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
import torch

from profiling.trace import spans
from profiling.trace.device_work import detached_afterwards
from profiling.trace.profiler import trace_step
from profiling.trace.spans import cell_span, open_names, span

M, N, K = 16, 32, 64


def events(run, result):
    with gzip.open(run / result.trace, "rt") as stream:
        return json.load(stream)["traceEvents"]


CPU = torch.device("cpu")


def test_a_step_on_a_cpu(tmp_path):
    a, b, calls = torch.randn(M, K), torch.randn(K, N), []

    def step():
        calls.append(1)
        return torch.sin(a @ b)

    given = {"component": "planted", "variant": "baseline", "folder": tmp_path / "traces", "device": CPU}
    with torch.inference_mode():
        result = trace_step(step, iterations=3, stacks=True, **given)
    assert (result.trace, result.operators) == ("traces/planted.baseline.json.gz", "traces/planted.baseline.txt")
    assert len(calls) == 5
    found = events(tmp_path, result)
    names = [event.get("name") for event in found]
    assert [names.count(f"planted/baseline/trace/{index}") for index in range(4)] == [1, 1, 1, 0]
    assert "planted/baseline/trace/warmup" not in names
    assert names.count("aten::sin") == names.count("aten::mm") == 3
    assert any(Path(__file__).name in str(name) for name in names), "stacks"
    shapes = [event["args"]["Input Dims"] for event in found if event.get("name") == "aten::mm"]
    assert shapes == [[[M, K], [K, N]]] * 3

    text = (tmp_path / result.operators).read_text()
    assert text.startswith("planted/baseline: 3 profiled iterations on cpu")
    assert "Top operators by self CPU time" in text
    assert "by self device time" not in text
    assert "aten::mm" in text
    assert "planted/baseline/trace" not in text  # spans are no operators
    assert "ProfilerStep" not in text

    for counts in ({"iterations": 0}, {"warmup": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            trace_step(step, **counts, **given)
    with pytest.raises(ZeroDivisionError):
        trace_step(lambda: 1 / 0, **given)
    assert not torch.autograd._profiler_enabled()


@pytest.mark.gpu
def test_a_graph_replay_shows_its_kernels(tmp_path):
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
    text = (tmp_path / result.operators).read_text()
    assert text.index("self device time") < text.index("self CPU time")
    assert any(str(kernel["name"])[:20] in text for kernel in kernels)
    assert "planted/cuda_graph/trace" not in text


def test_nested_names_are_paths_for_nvtx_and_for_the_profiler(monkeypatch):
    domain = Mock(get_event_attributes=lambda message: message)
    monkeypatch.setattr(spans, "DOMAIN", domain)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with span("model"), span("compile"), cell_span("model", "compile", "timing"), span("17") as path:
            torch.ones(3)
        with pytest.raises(ZeroDivisionError), cell_span("model", "compile", "trace") as again:
            raise ZeroDivisionError
    assert (path, again, open_names()) == ("model/compile/timing/17", "model/compile/trace", ())
    cell = ["model", "model/compile"]
    opened = [*cell, "model/compile/timing", path, *cell, again]
    assert [each.args[0] for each in domain.push_range.mock_calls] == opened
    assert domain.mock_calls == [
        *(call.push_range(each) for each in opened[:4]),
        *[call.pop_range()] * 4,
        *(call.push_range(each) for each in opened[4:]),
        *[call.pop_range()] * 3,
    ]
    assert {*opened} <= {event.key for event in profiler.key_averages()}


def test_threads_do_not_see_each_others_spans():
    with span("main"), ThreadPoolExecutor() as pool:
        assert pool.submit(open_names).result() == ()


@pytest.fixture
def driver(monkeypatch):
    """Stands for the thread in which torch detaches CUPTI: it ends after the next CUDA call. The CUDA version is 13."""
    called = threading.Event()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(query=called.set))
    monkeypatch.setenv("TEARDOWN_CUPTI", "restored")
    monkeypatch.delenv("TEARDOWN_CUPTI")
    thread = threading.Thread(target=called.wait, daemon=True)
    yield thread
    called.set()


@pytest.mark.parametrize("keeps", ["a thread of the first session", "the user's choice", "another device", "CUDA 12.4"])
def test_where_cupti_stays_attached_nothing_is_waited_for(driver, monkeypatch, keeps):
    if keeps == "the user's choice":
        monkeypatch.setenv("TEARDOWN_CUPTI", "0")
    if keeps == "CUDA 12.4":
        monkeypatch.setattr(torch.version, "cuda", "12.4")
    with detached_afterwards(keeps != "another device") as traced:
        driver.start()
        if keeps == "a thread of the first session":
            traced()
    assert driver.is_alive()
    expected = {"the user's choice": "0", "a thread of the first session": "1"}
    assert os.environ.get("TEARDOWN_CUPTI") == expected.get(keeps)


def test_a_session_detaches_cupti_also_where_it_fails_and_a_thread_that_stays_is_not_waited_for(driver):
    stays = threading.Event()

    def fails():
        with detached_afterwards(True):
            driver.start()
            threading.Thread(target=stays.wait, daemon=True).start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert not driver.is_alive()
    assert os.environ["TEARDOWN_CUPTI"] == "1"
    stays.set()
