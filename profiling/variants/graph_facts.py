"""What engines of CUDA graphs did, and what a capture saved against the same call uncaptured, and that call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import nn

from profiling.core.graphs import CudaGraphed
from profiling.core.graphs.capture import casts_inside
from profiling.tracing.launches import host_launches
from profiling.variants.alternating import alternate
from profiling.variants.variant import Uncaptured


def uncaptured(call: Callable[..., Any], inputs: Mapping[str, torch.Tensor], module: nn.Module | None) -> Uncaptured:
    """Return `call(**inputs)` under the conditions of its capture: else a compiled one would compile once more."""

    def plain() -> Any:
        with casts_inside():
            return call(**inputs)

    return Uncaptured(plain, module)


def graph_facts(
    engines: Sequence[CudaGraphed], call: Callable[..., Any], inputs: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Return the record's section `graphs`; the last of `engines` replays what `call(**inputs)` does uncaptured.

    Counters are totals over all engines. `host_launches` are of one call, before (uncaptured) and after (replayed),
    absent where CUPTI saw none; `wall_ms` the medians of alternating calls, and `gain` their ratio; `memory` what was
    held around the last capture, bytes by kind.
    """
    counters = [asdict(engine.counters) for engine in engines]
    recording = engines[-1].newest
    uncaptured, replay = partial(call, **inputs), partial(engines[-1], **inputs)
    with casts_inside():  # as it was captured: a compiled call would find a guard broken and compile once more
        before, after = alternate(uncaptured, replay)
        launches = {"before": host_launches(uncaptured), "after": host_launches(replay)}
    return {
        **{key: sum(counter[key] for counter in counters) for key in counters[0]},
        "memory": {} if recording is None else recording.memory,
        "host_launches": {key: count for key, count in launches.items() if count is not None},
        "wall_ms": {"before": before, "after": after},
        "gain": before / after,
    }
