"""A stand-in for torch_tensorrt 2.14.0, which needs libraries of TensorRT.

It takes exactly the arguments that the functions of the wheel take, as recorded in `tests/data/torch_tensorrt`: a call
that the wheel would refuse raises TypeError here. "Engines" are PyTorch, and `log` has the calls.
"""

import dataclasses
import functools
import inspect
import json
import logging
import types
from pathlib import Path

import torch
from torch._dynamo import register_backend

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "torch_tensorrt" / "signatures.json").read_text())
log = []
_mode = {"cudagraphs": False}
#: What the next graph is reported to hold.
graph = types.SimpleNamespace(operators=12, unsupported={"torch.ops.aten.cumsum.default": 2}, engines=2)


def as_recorded(name):
    """Let a function take the arguments that the wheel's function `name` takes, and no others."""
    parameters = [
        inspect.Parameter(each, getattr(inspect.Parameter, kind), default=None if default else inspect.Parameter.empty)
        for each, kind, default in RECORDED["functions"][name]
    ]

    def decorate(function):
        @functools.wraps(function)
        def checked(*args, **kwargs):
            inspect.Signature(parameters).bind(*args, **kwargs)
            return function(*args, **kwargs)

        return checked

    return decorate


def _report():
    bar = "+" * 50
    lines = [f"\n{bar} Dry-Run Results for Graph {bar}\n"]
    supported = graph.operators - sum(graph.unsupported.values())
    lines.append(
        f"The graph consists of {graph.operators} Total Operators, of which {supported} operators are supported, "
        f"{round(supported * 100 / graph.operators, 2)}% coverage\n"
    )
    if graph.unsupported:
        lines.append(
            "The following ops are currently unsupported or excluded from conversion, and are listed with their "
            "op-count in the graph:\n "
            + "\n".join(f"{name}: {count}" for name, count in graph.unsupported.items())
            + "\n"
        )
        lines.append(
            "The following nodes are currently set to run in Torch:\n"
            + "\n".join(f"Node: {name}, with layer location: /m" for name in graph.unsupported)
            + "\nNote: Some of the above nodes may be supported, but were not included in a TRT graph by the "
            "partitioner\n"
        )
    lines.append("Compiled with: CompilationSettings()\n\n  Graph Structure:\n")
    for number in range(graph.engines):
        lines.append(f"    ...\n    TRT Engine #{number + 1} - Submodule name: _run_on_acc_{number}")
    logging.getLogger("torch_tensorrt.dynamo._DryRunTracker").debug("\n".join(lines))


CompilationSettings = dataclasses.make_dataclass("CompilationSettings", RECORDED["settings"])


class Input:
    @as_recorded("Input")  # its arguments, which are not named in the signature, are those of dynamic shapes
    def __init__(self, *args, **kwargs):
        assert not args
        assert set(kwargs) == {"min_shape", "opt_shape", "max_shape", "dtype", "name"}
        self.__dict__.update(kwargs)


@as_recorded("dynamo.compile")
def _compile(exported_program, *, kwarg_inputs, min_block_size=5, **kwargs):
    assert isinstance(exported_program, torch.export.ExportedProgram)
    log.append(("compile", kwarg_inputs, {"min_block_size": min_block_size, **kwargs}))
    _report()
    module = exported_program.module()
    module.program = exported_program
    return module


@as_recorded("save")
def save(module, file_path, *, kwarg_inputs, dynamic_shapes):
    assert isinstance(module, torch.fx.GraphModule)
    assert all(isinstance(value, torch.Tensor) for value in kwarg_inputs.values()), "others are a TypeError"
    log.append(("save", dynamic_shapes))
    torch.export.save(module.program, file_path)


@as_recorded("load")
def load(file_path):
    log.append(("load", file_path))
    return torch.export.load(file_path)


@as_recorded("runtime.set_cudagraphs_mode")
def _set_cudagraphs_mode(mode: bool) -> None:
    _mode["cudagraphs"] = mode


class _WholeGraph(torch.nn.Module):
    """Records a graph of the whole call, again if the shapes differ from those of the call before."""

    def __init__(self, compiled_module):
        super().__init__()
        self.compiled_module, self.shapes = compiled_module, None

    @as_recorded("wrapped.forward")
    def forward(self, *args, **kwargs):
        shapes = [tuple(each.shape) for each in torch.utils._pytree.tree_leaves((args, kwargs))]
        if shapes != self.shapes:
            log.append(("recorded", shapes[0]))
            self.shapes = shapes
        return self.compiled_module(*args, **kwargs)


class _CudagraphsContextManager:
    def __init__(self, compiled_module):
        self.module, self.old = compiled_module, _mode["cudagraphs"]

    def __enter__(self):
        log.append(("wrapped", type(self.module).__name__))
        if graph.unsupported:
            return _WholeGraph(self.module)
        _mode["cudagraphs"] = True  # a graph for each engine
        return self.module

    def __exit__(self, *args):
        _mode["cudagraphs"] = self.old
        log.append(("unwrapped",))


@as_recorded("runtime.enable_cudagraphs")
def _enable_cudagraphs(compiled_module):
    return _CudagraphsContextManager(compiled_module)


@as_recorded("runtime.get_cudagraphs_mode")
def _get_cudagraphs_mode():
    return _mode["cudagraphs"]


runtime = types.SimpleNamespace(
    set_cudagraphs_mode=_set_cudagraphs_mode,
    get_cudagraphs_mode=_get_cudagraphs_mode,
    enable_cudagraphs=_enable_cudagraphs,
)
dynamo = types.SimpleNamespace(compile=_compile, CompilationSettings=CompilationSettings)


def _backend(gm, sample_inputs, **kwargs):
    assert set(kwargs) <= {"options"}
    log.append(("backend", kwargs.get("options", {}), _mode["cudagraphs"]))
    _report()
    return gm.forward


for _name in RECORDED["backends"]:
    register_backend(as_recorded("backend")(_backend), name=_name)
