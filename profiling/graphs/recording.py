"""One captured signature: its graph, its static inputs and outputs, and how a replay reads as a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from profiling.components.trees import map_tensors, named_tensors
from profiling.graphs.buffers import StaticInputs, as_given
from profiling.graphs.capture import CaptureError


@dataclass(frozen=True)
class Recording:
    """A graph that can be replayed on new inputs.

    `written` are the inputs that the call writes to, `memory` what was held before the static inputs, with them, and
    after the capture (bytes by kind).
    """

    graph: torch.cuda.CUDAGraph
    inputs: StaticInputs
    output: Any
    written: frozenset[int]
    memory: Mapping[str, Mapping[str, int]]
    #: For each output tensor the input that it is, or is a view of.
    _sources: tuple[int | None, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Find the outputs that are inputs.

        Raises:
            CaptureError: an output or an input that gradients should flow through, or into, after the replay.

        """
        object.__setattr__(self, "_sources", tuple(self._source(leaf) for _, leaf in named_tensors(self.output)))
        outputs = zip(named_tensors(self.output), self._sources, strict=True)
        if any(leaf.requires_grad for (_, leaf), source in outputs if source is None):
            raise CaptureError(
                "the output requires grad, and a replay has no autograd graph: call under torch.no_grad() or "
                "torch.inference_mode(), or capture a function that holds the backward pass too."
            )
        if any(leaf.is_leaf and leaf.grad is not None for leaf in self.inputs.tensors):
            raise CaptureError(
                "the call accumulates into the .grad of an input, which replays would not reach: return the gradient "
                "from the call instead (torch.autograd.grad)."
            )

    def replay(self, given: Sequence[torch.Tensor], *, alias_outputs: bool) -> Any:
        """Copy `given` in, replay, hand out the output: the graph's own memory with `alias_outputs`, else a copy."""
        self.inputs.fill(given)
        self.graph.replay()
        if self.written:
            self.inputs.give_back(given, self.written)
        output = self.output
        if type(output) is torch.Tensor and self._sources == (None,):  # the common case, without the walk
            return output if alias_outputs else output.clone()
        return self._handed_out(given, alias_outputs)

    def _handed_out(self, given: Sequence[torch.Tensor], alias_outputs: bool) -> Any:
        sources, copies = iter(self._sources), {}

        def hand_out(leaf: torch.Tensor) -> torch.Tensor:
            source = next(sources)
            if source is not None:
                static = self.inputs.tensors[source]
                return given[source] if leaf is static else as_given(leaf, static, given[source])
            if alias_outputs:
                return leaf
            if id(leaf) not in copies:  # the same tensor twice stays the same tensor twice
                copies[id(leaf)] = leaf.clone()
            return copies[id(leaf)]

        return map_tensors(hand_out, self.output)

    def _source(self, leaf: torch.Tensor) -> int | None:
        storage = leaf.untyped_storage().data_ptr()
        for index, static in enumerate(self.inputs.tensors):
            if leaf is static:
                return index
        for index, static in enumerate(self.inputs.tensors):
            if storage and storage == static.untyped_storage().data_ptr() and leaf.dtype == static.dtype:
                return index
        return None
