"""Runs made of records."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from report_records import RESULTS, build, faster

from profiling.report.render import PAGE_FILE, run_report
from profiling.report.run_data import load_run
from profiling.results.jsonl import append_record
from profiling.results.record import Record

COMMITTED = sorted(path.parent for path in RESULTS.glob("*/results.jsonl"))


@pytest.fixture
def three() -> tuple[Record, ...]:
    """A baseline, a variant that is faster, and the fastest of all with a wrong answer."""
    wrong = {"reference": "fp32 eager", "rel_l2": 1.2, "passed": False}
    return (
        build("baseline", 28.7),
        build("compile", 2.5, speedup=faster(11.5), memory={"peak_allocated": 2506, "peak_host_rss": 4096}),
        build("cuda_graph", 1.23, status="failed", reason="parity: error 1.2", parity=wrong, speedup=faster(23.3)),
    )


@pytest.fixture
def save(tmp_path: Path) -> Callable[[Sequence[Record]], Path]:
    def write(records: Sequence[Record]) -> Path:
        run = tmp_path / "2026-01-02"
        run.mkdir()
        (run / "results.jsonl").touch()
        for record in records:
            append_record(run, record)
        return run

    return write


@pytest.fixture
def write_page(save: Callable[[Sequence[Record]], Path]) -> Callable[..., Path]:
    """Write records, an environment and a config as a run, and the run's page."""

    def write(records: Sequence[Record], environment: Mapping[str, Any] | None = None, config: str = "") -> Path:
        run = save(records)
        (run / "environment.json").write_text(json.dumps(environment or {}))
        (run / "config.yaml").write_text(config)
        (run / PAGE_FILE).write_text(run_report(load_run(run)).page(), encoding="utf-8")
        return run / PAGE_FILE

    return write


@pytest.fixture(scope="module", params=COMMITTED, ids=lambda run: run.name)
def committed(request: pytest.FixtureRequest) -> Path:
    return request.param
