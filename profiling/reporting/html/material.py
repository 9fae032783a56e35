"""Everything that the sections of a page are made from, read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from profiling.reporting.detail_tables import detail_tables
from profiling.reporting.facts import is_realtime
from profiling.reporting.frame_series import Frames, read_frame_times
from profiling.reporting.html.markdown_tables import tables_of
from profiling.reporting.html.section import Table
from profiling.reporting.inside import inside_tables
from profiling.reporting.own_tables import own_tables
from profiling.results.records import Record

_CONFIG_FILE = "config.yaml"
#: Told apart by people who see red and green alike, on white and on black.
_COLOURS = (
    "#0284c7",
    "#e08700",
    "#0d9f6e",
    "#c2417c",
    "#7c6cf0",
    "#b45309",
    "#5f8ea0",
    "#9f9100",
    "#d65a5a",
    "#4f7a28",
)


@dataclass(frozen=True)
class Material:
    """A run: its records, its environment (empty where unknown) and its folder."""

    records: Sequence[Record]
    environment: Mapping[str, Any]
    run: Path

    @cached_property
    def timed(self) -> tuple[Record, ...]:
        """The records of calls, which are neither loops of frames nor calibrations."""
        return tuple(record for record in self.records if not record.launches and not is_realtime(record))

    @cached_property
    def loops(self) -> tuple[tuple[Frames, ...], tuple[str, ...]]:
        """The frame times of loops, and a line for each that could not be read."""
        return read_frame_times(self.records, self.run)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """All tables of `report.md` but the first."""
        inside = inside_tables(self.records, self.environment)
        return tables_of((*own_tables(self.records, markdown=True), *inside, *detail_tables(self.records)))

    @cached_property
    def colours(self) -> Mapping[str, str]:
        """The colour of each variant, the same in every chart."""
        return palette(record.variant for record in self.records)

    def titled(self, *beginnings: str) -> tuple[Table, ...]:
        """Return the tables whose titles begin with one of `beginnings`."""
        return tuple(table for table in self.tables if table.title.startswith(beginnings))

    def config(self) -> str:
        """Return the run's config as it stands in its file; empty where there is none."""
        try:
            return (self.run / _CONFIG_FILE).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def link(self, path: object) -> str | None:
        """Return the reference to a file of the run, or None where `path` names none: nothing outside is linked."""
        if not isinstance(path, str) or not path or "\0" in path:
            return None
        inside = (self.run / path).resolve()
        root = self.run.resolve()
        return quote(inside.relative_to(root).as_posix()) if inside.is_relative_to(root) and inside.is_file() else None


def palette(names: Any) -> Mapping[str, str]:
    """Return a colour for each of `names` (strings), in their order."""
    return {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(dict.fromkeys(names))}
