"""Clears, keeps and recovers the files of a loop's frames, also after its process died. Runs without torch."""

from __future__ import annotations

import glob
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from profiling.realtime.plan import Plan
from profiling.results.frames import frame_count, recover_series, series_file
from profiling.run.job import Job


class FrameFiles:
    """The journal of a cell's frames and the npz that it becomes, one for each round (`RunConfig.files`)."""

    def planned(self, job: Job) -> dict[str, Any]:
        """Return {"realtime": section} of a loop before its first frame, which stays if the run is killed in it."""
        return {"realtime": Plan.of(job, **job.procedure["plan"]).section()}

    def clear(self, folder: Path, cell: str, round_: int) -> list[str]:
        """Before a round, name the frames of the one before `<cell>.roundN.…`, and others `<cell>.attemptN.…`.

        Raises:
            OSError: a file cannot be renamed.

        """
        with suppress(OSError, ValueError):  # what is not readable as frames is kept as it is
            series = recover_series(folder, cell)
            if series is not None and not frame_count(series):
                (folder / series_file(cell)).unlink()
        names = re.compile(rf"{re.escape(cell)}(\.round\d+)?(\.frames\.(npz|part))")
        files = {path: match for path in (folder / "cells").glob("*.frames.*") if (match := names.fullmatch(path.name))}
        last_round = folder / series_file(f"{cell}.round{round_ - 1}")
        earlier = []
        number = 1
        while any((folder / "cells").glob(f"{glob.escape(cell)}.attempt{number}.*")):
            number += 1
        for path, match in files.items():
            if round_ > 1 and match[1]:
                continue
            if round_ > 1 and match[3] == "npz" and not last_round.exists():
                path.rename(last_round)
                continue
            kept = path.rename(path.with_name(f"{cell}.attempt{number}{match[1] or ''}{match[2]}"))
            earlier.append(kept.relative_to(folder).as_posix())
        return [f"frames of an earlier attempt are kept: {', '.join(sorted(earlier))}"] if earlier else []

    def recover(self, folder: Path, job: Job) -> dict[str, Any]:
        """Turn the journal that a cell left into its npz; return {"realtime": section}, as if the loop had ended there.

        Empty where there is no journal: the cell played no frame, or has written its npz itself.

        Raises:
            OSError: the npz cannot be written; the journal stays.
            ValueError: the journal holds no series of frames.

        """
        series = recover_series(folder, job.name)
        if series is None:
            return {}
        from profiling.realtime.summary import loop_energy, summarize_frames  # imports scipy, which takes 1 s

        plan = Plan.of(job, **job.procedure["plan"])
        section = summarize_frames(series, plan.section(), plan.graph, late=job.settings.late_share)
        energy = loop_energy(series, section)
        return {"realtime": section} | ({} if energy is None else {"energy": energy})
