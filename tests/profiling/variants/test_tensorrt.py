"""TensorRT: the calls of torch_tensorrt 2.14.0, what is read of its reports, and its modes for CUDA graphs.

torch_tensorrt needs a GPU. A stand-in notes the calls; its functions take the arguments that are used, by their names.
"""

import logging
import sys
from contextlib import contextmanager
from dataclasses import make_dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from fixed_component import fixed_component
from torch import nn
from torch._dynamo import register_backend

from profiling.errors import InputError, NothingChangedError
from profiling.variants.cuda_graph import CudaGraph
from profiling.variants.recipe import Recipe
from profiling.variants.tensorrt import AOTTensorRT, TensorRT

REPORT = """
The graph consists of 12 Total Operators, of which 10 operators are supported, 83.33% coverage

The following ops are currently unsupported or excluded from conversion, and are listed with their op-count:
 torch.ops.aten.cumsum.default: 1
torch.ops.aten.sort.default: 1

The following nodes are currently set to run in Torch:
Node: torch.ops.aten.cumsum.default, with layer location: /cumsum
"""
ENGINE = "    TRT Engine #1 - Submodule name: _run_on_acc_0\n     Number of Operators in Engine: 5\n"


class StandIn:
    """Engines are PyTorch. `log` has the calls, `report` what is logged on each graph."""

    def __init__(self):
        self.log, self.report, self.mode = [], REPORT + ENGINE, False
        settings = make_dataclass("CompilationSettings", ["min_block_size", "dryrun"])
        self.dynamo = SimpleNamespace(compile=self.compile, CompilationSettings=settings)
        self.runtime = SimpleNamespace(
            get_cudagraphs_mode=lambda: self.mode,
            set_cudagraphs_mode=lambda mode: setattr(self, "mode", mode),
            enable_cudagraphs=self.enable_cudagraphs,
        )

    def backend(self, graph, inputs, *, options=None):
        self.note("backend", options, self.mode)
        return graph.forward

    def compile(self, exported_program, *, kwarg_inputs, **options):
        self.note("compile", kwarg_inputs)
        module = exported_program.module()
        module.program = exported_program
        return module

    def note(self, *call):
        self.log.append(call)
        logging.getLogger("torch_tensorrt.dynamo._DryRunTracker").debug(self.report)

    def save(self, module, file_path, *, kwarg_inputs, dynamic_shapes):
        self.log.append(("save", kwarg_inputs, dynamic_shapes))
        torch.export.save(module.program, file_path)

    def load(self, file_path):
        self.log.append(("load", file_path))
        return torch.export.load(file_path)

    @contextmanager
    def enable_cudagraphs(self, compiled_module):
        self.log.append(("enabled",))
        yield compiled_module
        self.log.append(("disabled",))


@pytest.fixture
def trt(monkeypatch):
    trt = StandIn()
    monkeypatch.setitem(sys.modules, "torch_tensorrt", trt)
    if "tensorrt" not in torch._dynamo.list_backends():
        register_backend(lambda *args, **options: sys.modules["torch_tensorrt"].backend(*args, **options), "tensorrt")
    return trt


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, gain):
        return {"y": torch.cumsum(self.linear(x) * gain, -1)}


def prepared(compiler, folder, *sizes):
    """Return the prepared step, whose outputs were compared for each size."""
    first, *extra = [{"x": torch.randn(size, 4), "gain": torch.ones(4)} for size in sizes]
    net = replace(fixed_component(Scores(), **first), extra_inputs=tuple(extra))
    with torch.inference_mode():
        step = Recipe(compiler=compiler).prepare(net, folder / "kernels" / "net.trt")
        for run, inputs in zip((*step.extra_steps, step.run), (*extra, first), strict=True):
            torch.testing.assert_close(run(), net.module(**inputs))
    return step


def test_just_in_time_compiles_each_shape_in_the_mode_and_counts_engines(trt, tmp_path):
    step = prepared(TensorRT(options={"min_block_size": 3}, dynamic=False, cuda_graphs=True), tmp_path, 2, 5)
    assert trt.log == [("backend", {"min_block_size": 3}, True)] * 2
    (row,) = step.recipe
    assert (row.name, row.changed, row.packages) == ("TensorRT", 2, None)
    assert row.notes == (
        "20 of 24 operators have a converter: 2 engines, 2 nodes run in torch",
        "without a converter: torch.ops.aten.cumsum.default (1), torch.ops.aten.sort.default (1)",
    )
    step.close()
    assert trt.mode is False


def test_ahead_of_time_saves_and_runs_what_it_loads(trt, tmp_path):
    step = prepared(AOTTensorRT(), tmp_path / "dynamic", 2, 5, 3)
    (_, inputs), (_, saved_inputs, shapes), (_, file) = trt.log
    assert {name: tuple(each.shape) for name, each in inputs.items()} == {"x": (5, 4), "gain": (4,)}
    assert saved_inputs is inputs
    assert (shapes["x"][0].min, shapes["x"][0].max, shapes["gain"]) == (2, 5, None)
    (package,) = step.recipe[0].packages
    assert (package.file, package.dynamic) == ("kernels/net.trt/Scores.pt2", ("x.0",))
    made = tmp_path / "dynamic" / package.file
    assert (file, package.bytes) == (str(made), made.stat().st_size)

    trt.log.clear()
    step = prepared(AOTTensorRT(cuda_graphs=True, dynamic=False), tmp_path / "graphs", 2, 3)
    assert [each.dynamic for each in step.recipe[0].packages] == [(), ()]
    step.close()
    assert [name for name, *_ in trt.log] == ["compile", "save", "load", "enabled"] * 2 + ["disabled"] * 2


@pytest.mark.parametrize("compiler", [TensorRT, AOTTensorRT])
def test_no_engine_skips_the_cell_and_what_would_be_ignored_is_refused(trt, tmp_path, compiler):
    for option, says in (("min_block_sise", "is unknown .* Did you mean 'min_block_size'"), ("dryrun", "no engine")):
        with pytest.raises(InputError, match=says):
            prepared(compiler(options={option: 3}), tmp_path, 2)
    with pytest.raises(InputError, match=r"cannot be captured .* capture: null, and cuda_graphs: true"):
        Recipe(compiler=compiler(), capture=CudaGraph())
    assert trt.log == []
    trt.report = REPORT
    with pytest.raises(NothingChangedError, match=r"did nothing: no engine was built .*cumsum"):
        prepared(compiler(), tmp_path, 2)


def test_a_cpu_is_no_device_for_it(monkeypatch):
    """What is said where torch_tensorrt is missing is in tests/faults."""
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr("profiling.variants.tensorrt.missing_package", lambda name: None)
    assert TensorRT().unavailable(cpu) == "TensorRT needs a CUDA device, this run is on cpu"
    assert TensorRT().unavailable(cuda) is None
