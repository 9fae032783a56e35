"""The steps of a loop: every part prepared by its variant, and held against its reference."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from profiling.core.records import Status
from profiling.errors import InputError
from profiling.loop.options import LoopOptions
from profiling.loop.parts import Parts
from profiling.metrics.metric import Metric, Subject
from profiling.tracing.counters import snapshot
from profiling.tracing.profiler import synchronize
from profiling.variants.compile import Compile
from profiling.variants.mixed import stage_variant
from profiling.variants.variant import Step, Variant


def refuse_shared_pools(variant: Variant, parts: Iterable[str], options: LoopOptions) -> None:
    """Refuse what would overwrite its own frames: inductor's graphs of all stages share one pool of memory.

    Raises:
        InputError: stages that overlap, one of which is compiled in such a mode.

    """
    for name in parts:
        chosen = stage_variant(variant, name)
        if options.schedule == "overlap" and isinstance(chosen, Compile) and chosen.has_cuda_graphs():
            raise InputError(
                f"loop.schedule=overlap: mode={chosen.mode} keeps the CUDA graphs of all stages in one pool, and on "
                "several streams they would overwrite each other. Use compile_cuda_graph, or loop.schedule=sequential."
            )


def prepare(
    variant: Variant, parts: Parts, folder: Path, stack: ExitStack
) -> tuple[dict[str, Step], dict[str, Any], frozenset[str]]:
    """Prepare every part.

    Returns the steps, which are closed when `stack` is, the record's section `prepare`, and the parts that a compiler
    made other operators of.
    """
    steps, seconds, fused = {}, {}, set()
    before, started = snapshot(), time.perf_counter()
    for name, component in parts.components.items():
        begun, untouched = time.perf_counter(), snapshot()
        steps[name] = stage_variant(variant, name)(component, folder)
        stack.callback(steps[name].close)
        synchronize(component.device)
        seconds[name] = time.perf_counter() - begun
        if snapshot().since(untouched).graphs > 0:
            fused.add(name)
    total = time.perf_counter() - started
    for name, component in parts.components.items():
        steps[name].run()
        synchronize(component.device)
    first = time.perf_counter() - started
    compiled = asdict(snapshot().since(before))
    return steps, {"seconds": total, "first_call_s": first, "stages": seconds, **compiled}, frozenset(fused)


def check(
    metrics: Iterable[Metric], variant: Variant, parts: Parts, steps: Mapping[str, Step], seed: int
) -> tuple[dict[str, Any] | None, list[tuple[Status, str]]]:
    """Hold every part against its reference; return the section `parity`, the worst and each, and what is wrong."""
    found: dict[str, Mapping[str, Any]] = {}
    problems: list[tuple[Status, str]] = []
    for metric in metrics:
        for name, component in parts.components.items():
            tolerance = stage_variant(variant, name).tolerance
            measured = metric.measure(Subject(component, steps[name], parts.references[name], tolerance, seed))
            found[name] = measured.sections["parity"]
            if measured.problem is not None:
                status, reason = measured.problem
                problems.append((status, f"{name}: {reason}"))
    if not found:
        return None, problems
    worst = max(found.values(), key=lambda section: (not section["passed"], section.get("rel_l2", 0.0)))
    return {**worst, "stages": found}, problems
