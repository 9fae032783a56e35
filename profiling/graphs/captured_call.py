"""A captured call: the graph, the static inputs it reads, and a replay that behaves like the call.

A graph reads and writes fixed addresses, so a replay copies the caller's tensors into static buffers first, and copies
back those that the module writes to. Outputs that are inputs, or views of them, are handed out as the caller's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from profiling.components.state import State
from profiling.components.trees import map_tensors, tensors_in
from profiling.graphs.capture import CaptureError
from profiling.graphs.signature import ALIGNMENT


@dataclass(frozen=True)
class CapturedCall:
    """A graph that can be replayed on new inputs.

    `written` are the indices of the inputs that the call writes to; `memory` the bytes by kind before the static inputs
    were allocated, with them, and after the capture.
    """

    graph: torch.cuda.CUDAGraph
    inputs: StaticInputs
    output: Any
    written: frozenset[int]
    memory: Mapping[str, Mapping[str, int]]
    #: Keeps what the module made in its first calls, which the graph reads.
    state: State | None = None
    #: For each output tensor, the index of the input that it is or is a view of; None where it has its own memory.
    _sources: tuple[int | None, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Find the outputs that are inputs.

        Raises:
            CaptureError: an output requires grad, or the call accumulates into the `.grad` of an input.

        """
        outputs = tensors_in(self.output)
        sources = tuple(self._source(tensor) for tensor in outputs)
        object.__setattr__(self, "_sources", sources)
        if any(tensor.requires_grad for tensor, source in zip(outputs, sources, strict=True) if source is None):
            raise CaptureError(
                "the output requires grad, and a replay has no autograd graph: call under torch.no_grad() or "
                "torch.inference_mode(), or capture a function that includes the backward pass."
            )
        if any(tensor.is_leaf and tensor.grad is not None for tensor in self.inputs.tensors):
            raise CaptureError(
                "the call accumulates into the .grad of an input, which a replay would not reach: return the gradient "
                "from the call instead (torch.autograd.grad)."
            )

    def replay(self, inputs: Sequence[torch.Tensor], *, alias_outputs: bool) -> Any:
        """Copy `inputs` in, replay, and return the output: the graph's own memory with `alias_outputs`, else a copy."""
        self.inputs.copy_in(inputs)
        self.graph.replay()
        if self.written:
            self.inputs.copy_back(inputs, self.written)
        output = self.output
        if type(output) is torch.Tensor and self._sources == (None,):  # the common case, without walking a structure
            return output if alias_outputs else output.clone()
        return self._output_for(inputs, alias_outputs)

    def _output_for(self, inputs: Sequence[torch.Tensor], alias_outputs: bool) -> Any:
        sources, copies = iter(self._sources), {}

        def handed_out(tensor: torch.Tensor) -> torch.Tensor:
            source = next(sources)
            if source is not None:
                static = self.inputs.tensors[source]
                return inputs[source] if tensor is static else same_view(tensor, static, inputs[source])
            if alias_outputs:
                return tensor
            if id(tensor) not in copies:  # a tensor that is returned twice stays one tensor
                copies[id(tensor)] = tensor.clone()
            return copies[id(tensor)]

        return map_tensors(handed_out, self.output)

    def _source(self, tensor: torch.Tensor) -> int | None:
        storage = tensor.untyped_storage().data_ptr()
        for index, static in enumerate(self.inputs.tensors):
            if tensor is static:
                return index
        for index, static in enumerate(self.inputs.tensors):
            if storage and storage == static.untyped_storage().data_ptr() and tensor.dtype == static.dtype:
                return index
        return None


def same_view(output: torch.Tensor, static: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return the view of `tensor` that `output` is of `static`, which has the same layout as `tensor`."""
    offset = output.storage_offset() - static.storage_offset() + tensor.storage_offset()
    return tensor.as_strided(output.shape, output.stride(), offset)


@dataclass(frozen=True)
class _ByteRange:
    """A range of bytes that some of the inputs share: its buffer, and its distance from the caller's tensor."""

    buffer: torch.Tensor  # uint8
    owner: int  # index of an input whose storage contains the range
    lead: int  # bytes from the start of the range to that input's first element
    members: frozenset[int]  # indices of the inputs inside the range


class StaticInputs:
    """Buffers that a captured call reads: `tensors`, one for each of the caller's `inputs`.

    An input with a storage of its own gets a buffer of the same shape and strides. Inputs that overlap (the same tensor
    twice, views of each other) or that overlap themselves (expanded ones) are views of one buffer that copies the bytes
    beneath them, so that the module sees the same overlap.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        buffers: dict[int, torch.Tensor] = {}
        self._plain: dict[torch.dtype, list[int]] = {}
        self._ranges: list[_ByteRange] = []
        for group in _overlapping(inputs):
            first = inputs[group[0]]
            # A function that was compiled for ordinary tensors compiles again for inference tensors, and vice versa.
            with torch.inference_mode(torch.is_inference_mode_enabled() and first.is_inference()):
                if len(group) == 1 and not _overlaps_itself(first):
                    empty = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype, device=first.device)
                    buffers[group[0]] = empty
                    self._plain.setdefault(first.dtype, []).append(group[0])
                else:
                    buffers |= self._views_of_bytes(inputs, group)
        self._buffers = tuple(buffers[index] for index in range(len(inputs)))
        # An input that requires grad is another tensor on the same memory; copies go to the one that does not.
        self.tensors = tuple(
            buffer.detach().requires_grad_() if tensor.requires_grad and torch.is_grad_enabled() else buffer
            for buffer, tensor in zip(self._buffers, inputs, strict=True)
        )
        self.copy_in(inputs)

    def _views_of_bytes(self, inputs: Sequence[torch.Tensor], group: Sequence[int]) -> dict[int, torch.Tensor]:
        start = min(_first_byte(inputs[index]) for index in group) // ALIGNMENT * ALIGNMENT
        stop = max(_end_byte(inputs[index]) for index in group)
        owner = group[0]
        buffer = torch.empty(stop - start, dtype=torch.uint8, device=inputs[owner].device)
        self._ranges.append(_ByteRange(buffer, owner, _first_byte(inputs[owner]) - start, frozenset(group)))
        storage = buffer.untyped_storage()
        return {index: _view_at(storage, _first_byte(inputs[index]) - start, inputs[index]) for index in group}

    def copy_in(self, inputs: Sequence[torch.Tensor]) -> None:
        """Copy the values of `inputs` in, in stream order; a tensor that is the buffer itself costs nothing."""
        tensors = self.tensors
        for group in self._plain.values():
            stale = [index for index in group if inputs[index] is not tensors[index]]
            if stale:  # one launch for all of a dtype: a copy_ of each costs the host several times as much
                sources = [inputs[i].detach() if inputs[i].requires_grad else inputs[i] for i in stale]
                torch._foreach_copy_([self._buffers[i] for i in stale], sources)  # pyright: ignore[reportPrivateImportUsage]
        for shared in self._ranges:
            if inputs[shared.owner] is not tensors[shared.owner]:
                shared.buffer.copy_(_bytes_beneath(shared, inputs))

    def copy_back(self, inputs: Sequence[torch.Tensor], indices: Iterable[int]) -> None:
        """Copy the buffers of these indices, which the module wrote to, into the caller's tensors."""
        written = set(indices)
        with torch.no_grad():
            for shared in self._ranges:  # as bytes: a tensor that overlaps itself cannot be written by element
                if shared.members & written and inputs[shared.owner] is not self.tensors[shared.owner]:
                    _bytes_beneath(shared, inputs).copy_(shared.buffer)
                written -= shared.members
            for index in written:
                if inputs[index] is not self.tensors[index]:
                    inputs[index].copy_(self._buffers[index])

    def changed(self, inputs: Sequence[torch.Tensor]) -> set[int]:
        """Return the indices of buffers whose values differ from `inputs`; waits for the device. NaN differs."""
        pairs = enumerate(zip(self._buffers, inputs, strict=True))
        return {index for index, (buffer, tensor) in pairs if not torch.equal(buffer, tensor)}


def _bytes_beneath(shared: _ByteRange, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the range of bytes in the caller's memory, uint8 [bytes]."""
    owner = inputs[shared.owner]
    start = _first_byte(owner) - shared.lead
    return torch.empty(0, dtype=torch.uint8, device=owner.device).set_(
        owner.untyped_storage(), start, (shared.buffer.numel(),), (1,)
    )


def _view_at(storage: torch.UntypedStorage, start: int, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the form of `like` that begins `start` bytes into `storage`."""
    offset = start // like.element_size()
    return torch.empty(0, dtype=like.dtype, device=like.device).set_(storage, offset, like.shape, like.stride())  # pyright: ignore[reportArgumentType]


def _first_byte(tensor: torch.Tensor) -> int:
    """Return the offset of the tensor's first byte in its storage."""
    return int(tensor.storage_offset()) * tensor.element_size()


def _end_byte(tensor: torch.Tensor) -> int:
    """Return the offset of the byte after the tensor's last in its storage."""
    if tensor.numel() == 0:
        return _first_byte(tensor)
    last = sum(int(stride) * (size - 1) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return _first_byte(tensor) + (last + 1) * tensor.element_size()


def _overlapping(inputs: Sequence[torch.Tensor]) -> list[list[int]]:
    """Group the indices of inputs whose byte ranges meet in one storage; an input alone makes a group of one."""
    groups: list[tuple[int, int, list[int]]] = []  # storage, end of the range, indices
    order = sorted(range(len(inputs)), key=lambda i: (inputs[i].untyped_storage().data_ptr(), _first_byte(inputs[i])))
    for index in order:
        tensor = inputs[index]
        storage = tensor.untyped_storage().data_ptr()
        if groups and storage and groups[-1][0] == storage and _first_byte(tensor) < groups[-1][1]:
            _, stop, indices = groups.pop()
            groups.append((storage, max(stop, _end_byte(tensor)), [*indices, index]))
        else:
            groups.append((storage, _end_byte(tensor), [index]))
    return [indices for _, _, indices in groups]


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether two elements may share memory: by rising stride, each dimension must step over all before it."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False
