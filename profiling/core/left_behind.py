"""What a cell's process left in the run folder, read into its record: frames, kernels, compile log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from profiling.core.job import Job
from profiling.core.records import Record
from profiling.frames.series import series_file
from profiling.loop.rescued import rescued_section
from profiling.tracing.compile_log import CompileLogError, parse_compile_log
from profiling.tracing.kernels import list_kernels


def with_files(record: Record, job: Job, folder: Path, on_parse: Callable[[], object] | None) -> Record:
    """Add what there is to the record, whose numbers stand without it: what cannot be read costs a note.

    `on_parse` is called before a compile log is parsed; None: the process has one for all its cells.
    """
    for read in (_with_frames, _with_round_frames, _with_kernels):
        record = _noting(record, lambda record, read=read: read(record, job, folder))
    if not job.settings.trace or on_parse is None:
        return record
    on_parse()
    return _noting(record, lambda record: _with_compile_log(record, job, folder))


def _noting(record: Record, read: Callable[[Record], Record]) -> Record:
    try:
        return read(record)
    except (CompileLogError, OSError, ValueError) as error:
        return replace(record, notes=(*record.notes, " ".join(str(error).split())))


def _with_frames(record: Record, job: Job, folder: Path) -> Record:
    section = rescued_section(folder, job)
    return record if section is None or record.realtime is not None else replace(record, realtime=section)


def _with_round_frames(record: Record, job: Job, folder: Path) -> Record:
    """Put the frames of a round aside, since the next one writes its own in their place."""
    frames = folder / series_file(job.name)
    if record.rounds and frames.is_file():
        shutil.copyfile(frames, folder / series_file(f"{job.name}.round{len(record.rounds)}"))
    return record


def _with_kernels(record: Record, job: Job, folder: Path) -> Record:
    kernels = list_kernels(folder / "kernels" / job.name)
    listed = tuple({**asdict(k), "file": f"kernels/{job.name}/{k.file}"} for k in kernels)
    return replace(record, kernels=listed) if kernels else record


def _with_compile_log(record: Record, job: Job, folder: Path) -> Record:
    summary = parse_compile_log(folder / "torch_trace" / job.name, folder / "tl_out" / job.name)
    return record if summary is None else replace(record, compile=asdict(summary))
