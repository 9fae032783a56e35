"""Loads a run: the folder of a run, or a file of records that was kept (a baseline under version control, say)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from profiling.errors import InputError
from profiling.report.format import count_of
from profiling.results.environment import ENVIRONMENT_FILE, Environment, is_damaged, read_environment
from profiling.results.jsonl import RESULTS_FILE, read_records, read_results
from profiling.results.record import Record
from profiling.results.run_folder import CONFIG_FILE, read_config


@dataclass(frozen=True)
class LoadedRun:
    """The records of a run by (component, variant), with the files beside them; a missing file is empty here."""

    path: Path  # as the user named it
    records: Mapping[tuple[str, str], Record]
    environment: Environment
    config: Mapping[str, Any]
    damage: str  # what could not be read, in one line; empty if everything could


def read_run(path: Path, cells: str | None = None) -> LoadedRun:
    """Read a run's folder or a file of records; environment and config are read from beside the records.

    `cells` is a glob over <component>.<variant>; cells that do not match are left out.

    Raises:
        InputError: nothing is at `path`, or it holds no record, or none that matches.

    """
    folder = path if path.is_dir() else path.parent
    records, skipped_lines = read_records(path) if path.is_dir() else read_results(path)
    if not records:
        raise InputError(
            f"{path} holds no record. Name a folder that a run printed, or a file like its {RESULTS_FILE}."
        )
    matching = {record.cell: record for record in records if fnmatchcase(".".join(record.cell), cells or "*")}
    if not matching:
        names = ", ".join(".".join(record.cell) for record in records)
        raise InputError(f"{path} has no cell that matches {cells!r}. There are: {names}")
    config: Mapping[str, Any] = {}
    with suppress(InputError):
        config = read_config(folder / CONFIG_FILE)
    environment = read_environment(folder)
    damaged = [f"{count_of(skipped_lines, 'line')} without a record"] if skipped_lines else []
    if is_damaged(folder, environment):
        damaged.append(f"{ENVIRONMENT_FILE}, which is damaged")
    return LoadedRun(path, matching, environment, config, f"ignored {' and '.join(damaged)}" if damaged else "")
