from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiling.trace import spans
from profiling.trace.spans import cell_span, open_names, span


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


def test_works_without_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "_domain", None)
    with span("a"), span("b") as path:
        assert path == "a/b"


@pytest.mark.parametrize("opened", [False, True])
def test_cell_span_opens_the_cell_once(opened: bool) -> None:
    if not opened:
        with cell_span("vae", "compile", "trace") as path:
            assert path == "vae/compile/trace"
    else:
        with span("vae"), span("compile"), cell_span("vae", "compile", "trace") as path:
            assert path == "vae/compile/trace"
    assert open_names() == ()


def test_a_span_is_cheap_with_no_tool_attached() -> None:
    best = float("inf")
    for _ in range(200):
        start = time.perf_counter_ns()
        with span("a"):
            pass
        best = min(best, time.perf_counter_ns() - start)
    assert best < 100_000  # ns; it is about 8 µs, and this must not fail on a busy machine
