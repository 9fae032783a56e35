"""A stand-in for torch_tensorrt 2.14.0, which needs libraries of TensorRT: the signatures that this tool calls.

They are those of the wheel torch_tensorrt-2.14.0-cp311-cp311-manylinux_2_28_x86_64.whl, in these files:

- `dynamo.compile`                              torch_tensorrt/dynamo/_compiler.py
- `dynamo.CompilationSettings` (some fields)    torch_tensorrt/dynamo/_settings.py
- `save`, `load`                                torch_tensorrt/_compile.py
- `Input` (dynamic shapes only)                 torch_tensorrt/_Input.py
- `runtime.*`                                   torch_tensorrt/runtime/_cudagraphs.py
- the back end "torch_tensorrt", its options    torch_tensorrt/dynamo/backend/backends.py, dynamo/utils.py
- the logged report                             torch_tensorrt/dynamo/_DryRunTracker.py

Nothing is compared with the wheel. "Engines" are PyTorch, and `log` has the calls.
"""

import dataclasses
import logging
import types

import torch
from torch._dynamo import register_backend

log = []
_mode = {"cudagraphs": False}
#: What the next graph is reported to hold.
graph = types.SimpleNamespace(operators=12, unsupported={"torch.ops.aten.cumsum.default": 2}, engines=2)


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


@dataclasses.dataclass
class CompilationSettings:
    min_block_size: int = 5
    optimization_level: int | None = None
    require_full_compilation: bool = False
    dryrun: bool | str = False


class Input:
    def __init__(self, *args, **kwargs):
        assert not args
        assert set(kwargs) == {"min_shape", "opt_shape", "max_shape", "dtype", "name"}
        self.__dict__.update(kwargs)


def _compile(
    exported_program,
    inputs=None,
    *,
    arg_inputs=None,
    kwarg_inputs=None,
    min_block_size=5,
    optimization_level=None,
    require_full_compilation=False,
    dryrun=False,
    **kwargs,
):
    assert isinstance(exported_program, torch.export.ExportedProgram)
    log.append(("compile", kwarg_inputs, {"min_block_size": min_block_size, **kwargs}))
    _report()
    module = exported_program.module()
    module.program = exported_program
    return module


def save(
    module,
    file_path="",
    *,
    extra_files=None,
    output_format="exported_program",
    inputs=None,
    arg_inputs=None,
    kwarg_inputs=None,
    retrace=True,
    use_legacy_exporter=None,
    pickle_protocol=2,
    dynamic_shapes=None,
    **kwargs,
):
    assert isinstance(module, torch.fx.GraphModule)
    assert all(isinstance(value, torch.Tensor) for value in kwarg_inputs.values()), "others are a TypeError"
    log.append(("save", dynamic_shapes))
    torch.export.save(module.program, file_path)


def load(file_path="", extra_files=None, *, format=None, **kwargs):
    log.append(("load", file_path))
    return torch.export.load(file_path, extra_files=extra_files)


def _set_cudagraphs_mode(mode: bool) -> None:
    _mode["cudagraphs"] = mode


class _CudagraphsContextManager:
    def __init__(self, compiled_module, cuda_graph_strategy=None):
        self.module, self.old = compiled_module, _mode["cudagraphs"]

    def __enter__(self):
        _mode["cudagraphs"] = True
        log.append(("wrapped", type(self.module).__name__))
        return self.module

    def __exit__(self, *args):
        _mode["cudagraphs"] = self.old
        log.append(("unwrapped",))


def _enable_cudagraphs(compiled_module, *, cuda_graph_strategy=None):
    return _CudagraphsContextManager(compiled_module, cuda_graph_strategy=cuda_graph_strategy)


runtime = types.SimpleNamespace(
    set_cudagraphs_mode=_set_cudagraphs_mode,
    get_cudagraphs_mode=lambda: _mode["cudagraphs"],
    enable_cudagraphs=_enable_cudagraphs,
)
dynamo = types.SimpleNamespace(compile=_compile, CompilationSettings=CompilationSettings)


@register_backend(name="torch_tensorrt")
def torch_tensorrt_backend(gm, sample_inputs, **kwargs):
    assert set(kwargs) <= {"options"}
    log.append(("backend", kwargs.get("options", {}), _mode["cudagraphs"]))
    _report()
    return gm.forward
