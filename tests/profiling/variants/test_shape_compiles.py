"""What a compiled module compiles for one shape after another, with each value of torch.compile's option `dynamic`."""

import pytest
import torch

from profiling.errors import InputError
from profiling.shape_sweep import with_dynamic
from profiling.variants.inductor import first_calls

INPUTS = [{"x": torch.ones(rows, 3), "scale": 2.0} for rows in (4, 5, 6)]


@pytest.fixture(autouse=True)
def _no_code_of_others():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("dynamic", "graphs"),
    [(False, [1, 1, 1]), (True, [1, 0, 0]), (None, [1, 1, 0])],
    ids=["a graph for each shape", "one for all", "a second one for all others"],
)
def test_graphs_of_each_new_shape(dynamic, graphs):
    def module(x, scale):
        return torch.sin(x) * scale

    shapes = first_calls(torch.compile(module, dynamic=dynamic, backend="eager"), INPUTS)
    assert [shape.graphs for shape in shapes] == graphs
    assert [shape.inputs for shape in shapes] == [f"x float32 [{rows}, 3]" for rows in (4, 5, 6)]
    assert sum(shape.recompiles for shape in shapes) == sum(graphs) - 1
    assert all(shape.seconds > 0 for shape in shapes)


def test_a_sweep_runs_compiled_variants_with_each_value():
    compiler = {"_target_": "profiling.variants.inductor.Inductor", "mode": "default", "dynamic": None}
    own = {"_target_": "my.Variant"}
    variants = {"baseline": {"compiler": None}, "compile": {"compiler": compiler, "capture": None}, "own": own}
    assert with_dynamic(variants, []) == variants
    expanded = with_dynamic(variants, [False, True, None])
    dynamic = {"compile@dynamic=false": False, "compile@dynamic=true": True, "compile@dynamic=null": None}
    assert list(expanded) == ["baseline", *dynamic, "own"]
    assert {name: expanded[name]["compiler"]["dynamic"] for name in dynamic} == dynamic
    for target in ("aot_inductor.AOTInductor", "tensorrt.AOTTensorRT"):  # a package is made with true or false
        aot = {"compiler": {"_target_": f"profiling.variants.{target}", "dynamic": True}}
        assert list(with_dynamic({"aot": aot}, [False, None, True])) == ["aot@dynamic=false", "aot@dynamic=true"]
        assert with_dynamic({"aot": aot}, [None]) == {"aot@dynamic=true": aot}
    for values in (["maybe"], 3, [1]):
        with pytest.raises(InputError, match="dynamic="):
            with_dynamic({}, values)
