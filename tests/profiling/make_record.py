"""Records with known numbers, for tests of the results and of what reads them."""

from typing import Any

from profiling.results.measured import Metrics, Summary
from profiling.results.record import Record


def summary(p50: float, *, samples: tuple[float, ...] = (), **fields: Any) -> Summary:
    near = (0.99 * p50, 1.01 * p50)
    numbers = dict.fromkeys(("mean", "p50"), p50) | dict.fromkeys(("p90", "p95", "p99", "max"), 1.1 * p50)
    defaults = {"n": len(samples) or 100, "min": 0.9 * p50, "ci95": near, "samples": samples}
    return Summary(**{**numbers, **defaults, **fields})


def record(variant: str = "baseline", p50: float | None = None, **fields: Any) -> Record:
    metrics = fields.pop("metrics", Metrics() if p50 is None else Metrics(wall_ms=summary(p50)))
    identity = {"target": "generic_forward", "component": "net", "variant": variant, "status": "ok"}
    return Record(**{**identity, "metrics": metrics, **fields})
