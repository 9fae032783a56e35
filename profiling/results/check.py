"""The section `check` of a record: what a call reads, returns and changes, and what stands in the way of a variant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from profiling.results.field import Section, about


class TensorForm(Section, frozen=True, kw_only=True):
    """A tensor that a call reads or returns, or a plain value."""

    path: Annotated[
        str, about("where it is: the names, keys and indices that lead to it, joined by dots", title="name")
    ]
    dtype: Annotated[str | None, about("dtype of a tensor")] = None
    shape: Annotated[tuple[int, ...] | None, about("shape of a tensor")] = None
    device: Annotated[str | None, about("device of a tensor")] = None
    value: Annotated[str | None, about("a value that is no tensor, as text")] = None


class StateForm(Section, frozen=True, kw_only=True):
    """State of the network: a tensor that it keeps from call to call."""

    path: Annotated[str, about("its name in the module", title="name")]
    dtype: Annotated[str, about("dtype")]
    shape: Annotated[tuple[int, ...], about("shape before the call")]
    bytes: Annotated[int, about("memory that it takes", "bytes", "size")]
    changed: Annotated[bool, about("whether a call changed it")] = False


class Obstacle(Section, frozen=True, kw_only=True):
    """A place in the code that stands in the way of a variant."""

    hinders: Annotated[
        Literal["cuda_graph", "compile", "parity"],
        about(
            "cuda_graph: it prevents a capture; compile: the compiler splits the call there; parity: eager calls differ"
        ),
    ]
    reason: Annotated[str, about("why")]
    operator: Annotated[str | None, about("operator or function that is called there")] = None
    file: Annotated[str | None, about("file of the user's code")] = None
    line: Annotated[int | None, about("line in that file")] = None
    code: Annotated[str | None, about("the code of that line")] = None
    advice: Annotated[str | None, about("what to change")] = None


class CheckedCall(Section, frozen=True, kw_only=True):
    """What one network does in a call."""

    inputs: Annotated[tuple[TensorForm, ...], about("what the call reads")] = ()
    outputs: Annotated[tuple[TensorForm, ...], about("what it returns")] = ()
    parameter_bytes: Annotated[int, about("memory of the parameters", "bytes")] = 0
    parameter_dtypes: Annotated[Mapping[str, int], about("number of parameters by dtype")] = {}
    state: Annotated[tuple[StateForm, ...], about("buffers and other tensors that it keeps")] = ()
    calls: Annotated[int | None, about("calls in a row from which it is known what calls change")] = None
    warm_calls: Annotated[int | None, about("eager calls before them")] = None
    effects: Annotated[tuple[str, ...], about("what calls change, a line for each kind of effect")] = ()
    captured: Annotated[bool | None, about("whether a CUDA graph of the call was captured; absent on a CPU")] = None
    compiled_graphs: Annotated[int | None, about("graphs into which the compiler splits the call")] = None
    obstacles: Annotated[tuple[Obstacle, ...], about("what stands in the way of the variants")] = ()
    unknown: Annotated[tuple[str, ...], about("what could not be tried, and why")] = ()


class Check(Section, frozen=True, kw_only=True):
    """A look at a call without timing: `check=true`."""

    calls: Annotated[Mapping[str, CheckedCall], about("by component; in a loop of frames by stage")] = {}
    seconds: Annotated[float | None, about("duration of loading and checking", "s")] = None
