"""TensorRT: the calls of torch_tensorrt and what is read from it, with a stand-in that has its recorded signatures."""

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec

import pytest
import torch
import torch_tensorrt_standin as standin
from torch import nn

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.variants.cuda_graph import CudaGraph
from profiling.variants.recipe import Recipe
from profiling.variants.tensorrt import AOTTensorRT, TensorRT, read_report

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, gain, scale=1.0):
        return {"y": torch.cumsum(self.linear(x) * gain * scale, -1)}


@pytest.fixture
def trt(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_tensorrt", standin)
    monkeypatch.setattr(standin, "log", [])
    monkeypatch.setattr(standin, "graph", standin.types.SimpleNamespace(**vars(standin.graph)))
    return standin


def prepared(compiler, folder, *sizes, module=None, **other):
    first, *extra = [{"x": torch.randn(size, 4), "gain": torch.ones(4), **other} for size in sizes]
    net = Component("net", (module or Scores()).eval(), first, lambda _: first, CPU, torch.float32, 1, "random")
    net = replace(net, extra_inputs=tuple(extra))
    with torch.inference_mode():
        return net, Recipe(compiler=compiler).prepare(net, folder / "kernels" / "net.trt")


def check(net, step):
    with torch.inference_mode():
        for run, inputs in zip((*step.extra_steps, step.run), (*net.extra_inputs, net.inputs), strict=True):
            torch.testing.assert_close(run(), net.module(**inputs))


def test_just_in_time_compiles_with_its_back_end_and_counts_engines(trt, tmp_path):
    net, step = prepared(TensorRT(options={"min_block_size": 3}), tmp_path, 2)
    check(net, step)
    assert trt.log == [("backend", {"min_block_size": 3}, False)]
    (row,) = step.recipe
    assert (row.name, row.changed, row.packages) == ("TensorRT", 2, None)
    assert row.notes == (
        "10 of 12 operators have a converter: 2 engines, 1 nodes run in torch",
        "without a converter: torch.ops.aten.cumsum.default (2)",
    )
    step.close()


def test_the_mode_of_cuda_graphs_is_set_and_restored(trt, tmp_path):
    _, step = prepared(TensorRT(cuda_graphs=True), tmp_path, 2)
    assert trt.log == [("backend", {}, True)]
    assert trt.runtime.get_cudagraphs_mode() is True
    step.close()
    assert trt.runtime.get_cudagraphs_mode() is False


def test_ahead_of_time_saves_and_runs_what_it_loads(trt, tmp_path):
    net, step = prepared(AOTTensorRT(), tmp_path, 2, 5, 3)
    check(net, step)
    (compiled, saved, loaded) = trt.log
    ranges = compiled[1]["x"]
    assert (ranges.min_shape, ranges.opt_shape, ranges.max_shape) == ((2, 4), (2, 4), (5, 4))
    assert (ranges.dtype, ranges.name) == (torch.float32, "x")
    assert isinstance(compiled[1]["gain"], torch.Tensor)
    assert saved[1]["gain"] is None
    assert (saved[1]["x"][0].min, saved[1]["x"][0].max) == (2, 5)
    (package,) = step.recipe[0].packages
    assert (package.file, package.dynamic) == ("kernels/net.trt/Scores.pt2", ("x.0",))
    assert loaded == ("load", str(tmp_path / package.file))
    assert package.bytes == (tmp_path / package.file).stat().st_size


def test_ahead_of_time_with_cuda_graphs_wraps_what_was_compiled(trt, tmp_path):
    net, step = prepared(AOTTensorRT(cuda_graphs=True, dynamic=False), tmp_path, 2, 3)
    check(net, step)
    assert [each[0] for each in trt.log if each[0] != "recorded"] == ["compile", "save", "load", "wrapped"] * 2
    assert [each.dynamic for each in step.recipe[0].packages] == [(), ()]
    step.close()
    assert trt.log[-1] == ("unwrapped",)
    assert trt.runtime.get_cudagraphs_mode() is False


def test_with_parts_in_torch_the_whole_call_is_one_graph_recorded_again_at_a_new_shape(trt, tmp_path):
    net, step = prepared(AOTTensorRT(cuda_graphs=True), tmp_path, 2, 5, 3)
    assert [each[0] for each in trt.log if each[0] != "recorded"] == ["compile", "save", "load", "wrapped"]
    trt.log.clear()
    for _ in range(2):
        check(net, step)
    step.run()
    rows = [size for name, (size, _) in trt.log if name == "recorded"]
    assert rows == [5, 3, 2, 5, 3, 2], "the last call has the shape of the one before"
    step.close()
    assert trt.log[-1] == ("unwrapped",)


def test_without_parts_in_torch_each_engine_has_a_graph(trt, tmp_path):
    trt.graph.unsupported = {}
    net, step = prepared(AOTTensorRT(cuda_graphs=True), tmp_path, 2, 5)
    check(net, step)
    assert trt.runtime.get_cudagraphs_mode() is True
    assert "recorded" not in [each[0] for each in trt.log]
    step.close()
    assert trt.runtime.get_cudagraphs_mode() is False


def test_just_in_time_each_shape_of_a_sweep_is_compiled_in_the_mode_of_cuda_graphs(trt, tmp_path):
    net, step = prepared(TensorRT(cuda_graphs=True, dynamic=False), tmp_path, 2, 5)
    check(net, step)
    assert [each[2] for each in trt.log] == [True, True]
    step.close()


def test_the_stand_in_refuses_what_the_wheel_refuses(trt):
    assert trt.RECORDED["wheel"].startswith("torch_tensorrt-2.14.0-")
    with pytest.raises(TypeError, match="unexpected keyword argument 'formats'"):
        trt.load("file", formats="pt2")
    with pytest.raises(TypeError, match="too many positional arguments"):
        trt.runtime.enable_cudagraphs(nn.Identity(), "disabled")


def test_what_is_read_of_a_report_is_in_the_wheel(trt):
    """Each text that a report is searched for is one that the wheel's tracker writes."""
    written = "|".join(trt.RECORDED["report"])
    for text in (
        "Total Operators, of which",
        "operators are supported,",
        "TRT Engine #",
        "- Submodule name:",
        "The following ops are currently unsupported or excluded from conversion",
        "The following nodes are currently set to run in Torch",
    ):
        assert text in written


@pytest.mark.parametrize(
    ("compiler", "other", "says"),
    [
        (TensorRT(options={"min_block_sise": 3}), {}, "has no such option. Did you mean 'min_block_size'"),
        (AOTTensorRT(options={"min_block_sise": 3}), {}, "has no such option. Did you mean 'min_block_size'"),
        (AOTTensorRT(), {"scale": 2.0}, "takes inputs that are tensors, and scale is float. Use TensorRT"),
    ],
)
def test_what_torch_tensorrt_would_ignore_or_raise_later(trt, tmp_path, compiler, other, says):
    with pytest.raises(InputError, match=says):
        prepared(compiler, tmp_path, 2, **other)
    assert trt.log == []


@pytest.mark.parametrize("compiler", [TensorRT(), AOTTensorRT()])
def test_no_engine_is_a_failure(trt, tmp_path, compiler):
    trt.graph.engines = 0
    with pytest.raises(RuntimeError, match=r"did nothing: no engine was built .*cumsum"):
        prepared(compiler, tmp_path, 2)


def test_what_does_not_fit_is_refused_when_it_is_read():
    with pytest.raises(InputError, match=r"streams of its own, .* capture: null, and cuda_graphs: true"):
        Recipe(compiler=TensorRT(), capture=CudaGraph())
    with pytest.raises(InputError, match=r"options\.dryrun: its report is read from each compile"):
        AOTTensorRT(options={"dryrun": True})


def test_a_missing_extra_is_said_before_a_missing_device(monkeypatch):
    monkeypatch.setattr("profiling.errors.find_spec", lambda name: None)
    assert "python -m pip install torch_tensorrt" in TensorRT().unavailable(CPU)
    monkeypatch.setattr("profiling.errors.find_spec", lambda name: ModuleSpec(name, None, origin="a file"))
    assert TensorRT().unavailable(CPU) == "TensorRT needs a CUDA device, this run is on cpu"
    assert TensorRT().unavailable(CUDA) is None


def test_text_that_is_no_report_is_none():
    assert read_report("Detected support for 3 operators out of 4 in subgraph.") == []
