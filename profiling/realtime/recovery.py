"""Clears, keeps and recovers the files of a loop's frames, also after its process died. Runs without torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling.components.spec import decode_options
from profiling.realtime.options import WORLD, WORLD_OPTIONS, LoopOptions
from profiling.results.frames import recover_series, series_file
from profiling.results.record import Realtime
from profiling.run.job import CellFiles, Job


class FrameFiles(CellFiles):
    """The journal of a cell's frames and the npz that it becomes, one for each round."""

    def clear(self, folder: Path, cell: str, *, first_round: bool) -> None:
        """Remove the journal and the npz."""
        patterns = [f"{cell}.frames.*", *([f"{cell}.round*.frames.npz"] if first_round else [])]
        for path in [path for pattern in patterns for path in (folder / "cells").glob(pattern)]:
            path.unlink()

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
        from profiling.realtime.summary import summarize_frames  # imports scipy, which takes 1 s

        options = decode_options(LoopOptions, job.procedure["options"], "loop")
        loop = describe_loop(options, job.procedure["stages"], job.settings.device)
        return {"realtime": summarize_frames(series, loop)}

    def keep_round(self, folder: Path, cell: str, round_: int) -> None:
        """Copy the npz."""
        frames = folder / series_file(cell)
        if frames.is_file():
            shutil.copyfile(frames, folder / series_file(f"{cell}.round{round_}"))


def describe_loop(options: LoopOptions, stages: str, device: str) -> Realtime:
    """Return the section `realtime` of a loop before its first frame.

    `stages` are the component specs of the loop by role, as JSON; `device` is cpu, cuda or cuda:N.
    """
    world: Mapping[str, Any] = json.loads(stages)[WORLD]["module"]
    return Realtime(
        frames=0,
        target_fps=float(options.fps),
        pace=options.pace,
        warmup_frames=options.counts(device.partition(":")[0])[1],
        schedule=options.schedule,
        deliver=options.deliver,
        gc=options.gc,
        **{name: world[name] for name in WORLD_OPTIONS if world.get(name) is not None},
    )
