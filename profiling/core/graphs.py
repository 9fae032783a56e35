"""Capture a call in a CUDA graph by hand, and replay it on new inputs.

The order is the one that CUDA asks for: a warm-up on a side stream (so that lazy initialisation, autotuning and
workspace allocation are done), static input buffers, capture into a private memory pool, replay. See the CUDA graphs
section of PyTorch's CUDA semantics notes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from profiling.core.trees import map_tensors

Call = Callable[[Mapping[str, torch.Tensor]], Any]


@dataclass(frozen=True)
class CapturedGraph:
    """A captured call with its static inputs and outputs, which later replays overwrite."""

    graph: torch.cuda.CUDAGraph
    inputs: Mapping[str, torch.Tensor]
    output: Any

    def replay(self, inputs: Mapping[str, torch.Tensor], *, alias_outputs: bool) -> Any:
        """Copy `inputs` into the static buffers, replay, hand out the output.

        With `alias_outputs` the output is the graph's own memory and the next replay overwrites it; without, it is a
        clone that is the caller's to keep.
        """
        for name, static in self.inputs.items():
            static.copy_(inputs[name], non_blocking=True)
        self.graph.replay()
        return self.output if alias_outputs else map_tensors(torch.clone, self.output)


def capture(call: Call, inputs: Mapping[str, torch.Tensor], *, warmup: int) -> CapturedGraph:
    """Capture `call(static inputs)` after `warmup` calls on a side stream.

    Raises:
        torch.AcceleratorError, RuntimeError: the call does something that cannot be captured (a sync, a copy from
            pageable memory, a tensor made on the CPU).

    """
    static = {name: tensor.clone() for name, tensor in inputs.items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            call(static)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        output = call(static)
    return CapturedGraph(graph=graph, inputs=static, output=output)
