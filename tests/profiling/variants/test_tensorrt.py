"""TensorRT: what is read of the reports of torch_tensorrt 2.14.0, its mode for CUDA graphs, and what is refused.

torch_tensorrt needs a GPU. A stand-in runs what it is given, and logs a report. Export, packages and their shapes are
those of test_aot_inductor.py.
"""

import logging
import sys
from dataclasses import make_dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from fixed_component import Net, fixed_component
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
    """Engines are PyTorch. `log` has what was compiled, `report` is logged on each graph."""

    def __init__(self):
        self.log, self.report, self.mode = [], REPORT + ENGINE, False
        self.dynamo = SimpleNamespace(CompilationSettings=make_dataclass("Settings", ["min_block_size", "dryrun"]))
        self.runtime = SimpleNamespace(
            get_cudagraphs_mode=lambda: self.mode, set_cudagraphs_mode=lambda mode: setattr(self, "mode", mode)
        )

    def backend(self, graph, inputs, *, options=None):
        self.log.append((options, self.mode))
        logging.getLogger("torch_tensorrt.dynamo._DryRunTracker").debug(self.report)
        return graph.forward


@pytest.fixture
def trt(monkeypatch):
    trt = StandIn()
    monkeypatch.setitem(sys.modules, "torch_tensorrt", trt)
    if "tensorrt" not in torch._dynamo.list_backends():
        register_backend(lambda *args, **options: sys.modules["torch_tensorrt"].backend(*args, **options), "tensorrt")
    return trt


def prepared(compiler, folder, *sizes):
    """Return the prepared step, whose outputs were compared for each size."""
    first, *extra = [{"x": torch.randn(size, 4), "gain": torch.ones(4)} for size in sizes]
    scores = Net(lambda self, x, gain: {"y": torch.cumsum(self.linear(x) * gain, -1)}, linear=nn.Linear(4, 4))
    net = replace(fixed_component(scores, **first), extra_inputs=tuple(extra))
    with torch.inference_mode():
        step = Recipe(compiler=compiler).prepare(net, folder / "kernels" / "net.trt")
        for run, inputs in zip((*step.extra_steps, step.run), (*extra, first), strict=True):
            torch.testing.assert_close(run(), net.module(**inputs))
    return step


def test_just_in_time_compiles_each_shape_in_the_mode_and_counts_engines(trt, tmp_path):
    step = prepared(TensorRT(options={"min_block_size": 3}, dynamic=False, cuda_graphs=True), tmp_path, 2, 5)
    assert trt.log == [({"min_block_size": 3}, True)] * 2
    (row,) = step.recipe
    assert (row.name, row.changed, row.packages) == ("TensorRT", 2, None)
    assert row.notes == (
        "20 of 24 operators have a converter: 2 engines, 2 nodes run in torch",
        "without a converter: torch.ops.aten.cumsum.default (1), torch.ops.aten.sort.default (1)",
    )
    step.close()
    assert trt.mode is False


@pytest.mark.parametrize("compiler", [TensorRT, AOTTensorRT])
def test_what_would_be_ignored_is_refused(trt, tmp_path, compiler):
    for option, says in (("min_block_sise", "is unknown .* Did you mean 'min_block_size'"), ("dryrun", "no engine")):
        with pytest.raises(InputError, match=says):
            prepared(compiler(options={option: 3}), tmp_path, 2)
    with pytest.raises(InputError, match=r"cannot be captured .* capture: null, and cuda_graphs: true"):
        Recipe(compiler=compiler(), capture=CudaGraph())
    assert trt.log == []


def test_no_engine_skips_the_cell(trt, tmp_path):
    trt.report = REPORT
    with pytest.raises(NothingChangedError, match=r"did nothing: no engine was built .*cumsum"):
        prepared(TensorRT(), tmp_path, 2)


def test_a_cpu_is_no_device_for_it(monkeypatch):
    """What is said where torch_tensorrt is missing is in tests/faults."""
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr("profiling.variants.tensorrt.missing_package", lambda name: None)
    assert TensorRT().unavailable(cpu) == "TensorRT needs a CUDA device, this run is on cpu"
    assert TensorRT().unavailable(cuda) is None
