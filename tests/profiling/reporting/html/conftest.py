"""Pages made of records, and what a browser's parser and a browser make of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from open_page import browser, heard, show
from parsed_page import parse

from profiling.reporting.heading import read_environment
from profiling.reporting.html.material import Material
from profiling.reporting.html.page import HTML_FILE, render_html
from profiling.results.records import Record, read_records

__all__ = ["browser", "heard", "parse", "show"]

RESULTS = Path(__file__).parents[4] / "docs" / "results"
COMMITTED = sorted(path.parent for path in RESULTS.glob("*/results.jsonl"))

Save = Callable[[Sequence[Record]], Path]


def of_run(run: Path) -> Material:
    return Material(read_records(run), read_environment(run), run)


def page_of(run: Path) -> str:
    return render_html(read_records(run), read_environment(run), run)


@pytest.fixture
def material(save: Save) -> Callable[..., Material]:
    """Make the material of records that stand in a run's folder."""

    def make(*records: Record) -> Material:
        return of_run(save(records))

    return make


@pytest.fixture
def write_page(save: Save) -> Callable[..., Path]:
    """Write records, an environment and a config as a run, and the run's page."""

    def write(records: Sequence[Record], environment: Mapping[str, Any] | None = None, config: str = "") -> Path:
        run = save(records)
        (run / "environment.json").write_text(json.dumps(environment or {}))
        (run / "config.yaml").write_text(config)
        (run / HTML_FILE).write_text(page_of(run), encoding="utf-8")
        return run / HTML_FILE

    return write


@pytest.fixture(params=COMMITTED, ids=lambda run: run.name)
def committed(request: pytest.FixtureRequest) -> Path:
    """Give each run that is committed, in turn."""
    return request.param
