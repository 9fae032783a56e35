"""The tables of what only some targets and variants measure: one list, for the console, `report.md` and the page."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.reporting.drift import drift_tables
from profiling.reporting.graphs import graph_tables
from profiling.reporting.grid import Titled
from profiling.reporting.launches import render_launches
from profiling.reporting.realtime import realtime_tables
from profiling.reporting.sweep import sweep_tables
from profiling.reporting.training import training_tables
from profiling.results.records import Record


def own_tables(records: Sequence[Record], *, markdown: bool) -> tuple[Titled, ...]:
    """Return (title, table) of each that has something in it."""
    launches = [("What a launch costs", render_launches(r.launches, markdown=markdown)) for r in records if r.launches]
    tables = (realtime_tables, sweep_tables, graph_tables, training_tables, drift_tables)
    return (*launches, *(titled for made in tables for titled in made(records, markdown=markdown)))
