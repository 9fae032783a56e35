"""The frames of a loop whose process died, summarised as if the loop had ended there. Runs without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling.realtime.options import WORLD, LoopOptions
from profiling.results.frames import recover_series
from profiling.results.record import Realtime
from profiling.run.job import Job

#: Options of the world model that a reader needs to compare two loops; fields of `Realtime`.
WORLD_OPTIONS = ("steps", "commit", "guidance")


def recover_frames(folder: Path, job: Job) -> dict[str, Any]:
    """Turn the journal that a cell left in the run folder into its npz; return {"realtime": section}.

    Empty where there is no journal: the cell played no frame, or has written its npz itself.

    Raises:
        OSError: the npz cannot be written; the journal stays.
        ValueError: the journal holds no series of frames.

    """
    series = recover_series(folder, job.name)
    if series is None:
        return {}
    from profiling.realtime.summary import summarize_frames  # imports scipy, 1 s that no other run should wait

    options = LoopOptions(**{key: value for key, value in job.procedure["options"].items() if key != "_target_"})
    loop = describe_loop(options, job.procedure["stages"], job.settings.device)
    return {"realtime": summarize_frames(series, loop)}


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
