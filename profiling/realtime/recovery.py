"""What is left of a loop whose process died: its frames until then, judged as if it had ended there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling.realtime.options import LoopOptions
from profiling.results.frames import rescue
from profiling.run.job import Job

#: Options of the world model that a reader needs to compare two loops.
WORLD_FACTS = ("steps", "commit", "guidance")


def rescued_section(run: Path, job: Job) -> dict[str, Any] | None:
    """Turn the journal that a cell left in the run folder into its npz; return the section `realtime` of its record.

    None where there is no journal: the cell is no loop, came to no frame, or has done this itself.

    Raises:
        OSError: the disk does not take it.
        ValueError: the journal holds no frames that can be judged.

    """
    series = rescue(run, job.name)
    if series is None:
        return None
    from profiling.realtime.summary import summarize_frames  # needs scipy: a second that no other run has to wait

    options = LoopOptions(**{key: value for key, value in job.procedure["options"].items() if key != "_target_"})
    facts = known_facts(options, job.procedure["stages"], job.settings.device)
    return summarize_frames(series, target_fps=float(options.fps), pace=options.pace, facts=facts)


def known_facts(options: LoopOptions, stages: str, device: str) -> dict[str, Any]:
    """Return what is known of a loop before it runs; `stages` are the specs of its networks by role, as JSON."""
    world: Mapping[str, Any] = json.loads(stages)["world"]["module"]
    return {
        "warmup_frames": options.counts(device.partition(":")[0])[1],
        "schedule": options.schedule,
        "deliver": options.deliver,
        "garbage": options.garbage,
        **{name: world[name] for name in WORLD_FACTS if world.get(name) is not None},
    }
