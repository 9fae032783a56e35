"""Ahead-of-time packages: what they hold, what is refused, and that an application loads what was measured."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from fixed_component import Net, fixed_component
from torch import nn
from torch._inductor import config, cpp_builder
from torch._library.triton import triton_ops_to_kernels
from torch.utils._pytree import _register_namedtuple

import profiling
from profiling.components.reference import eager_reference
from profiling.components.trees import map_tensors
from profiling.errors import InputError, SkippedError, missing_package
from profiling.fx_passes.convolution import FoldBatchNorm
from profiling.variants.aot_inductor import AOTInductor, exported, grouped, own_operators
from profiling.variants.quantize import Quantize
from profiling.variants.recipe import Recipe
from profiling.variants.rewrite import Rewrite
from profiling.variants.tensorrt import AOTTensorRT

pytestmark = pytest.mark.skipif(AOTInductor().unavailable(torch.device("cpu")) is not None, reason="no C++ compiler")


def prepared(module, *inputs, folder, transforms=(), **options):
    first, *extra = [each if isinstance(each, dict) else {"x": each} for each in inputs]
    net = replace(fixed_component(module, **first), extra_inputs=tuple(extra))
    with torch.inference_mode():
        net.start()
        eager_reference(net)
        compiler = options.pop("compiler", None) or AOTInductor(**options)
        return net, Recipe(transforms=transforms, compiler=compiler).prepare(net, folder / "kernels" / "net.aot")


class Named(NamedTuple):
    only: torch.Tensor


_register_namedtuple(Named, serialized_type_name="test.Named")


@torch.library.triton_op("test_packages::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """Double the input; it launches no Triton kernel that would go into a package."""
    return x * 2


def remembers(self, x):
    """Append the input to a cache, count the call in a tensor, and return a value computed from both."""
    row = F.relu(self.table + self.linear(x), inplace=True)
    self.cache[:2] = self.cache[1:].clone()
    self.cache.view(-1).split(4)[2].copy_(row[0])
    self.at.add_(1)
    return {"y": (self.cache.sum(0) * self.at, [x * 2], None), "named": Named(x), "none": []}


def test_operators_of_ones_own_are_named_unless_a_package_has_their_kernels(monkeypatch):
    program = exported(
        fixed_component(Net(lambda self, x: twice(x)), torch.ones(3)).module, [{"x": torch.ones(3)}]
    ).program
    assert [each.partition(": ")[2] for each in own_operators(program)] == ["test_packages.twice.default"]
    monkeypatch.setitem(triton_ops_to_kernels, "test_packages::twice", [object()])
    assert list(own_operators(program)) == []


@pytest.mark.slow
def test_a_package_follows_the_buffers_that_calls_change(tmp_path):
    """A position and a cache go on from call to call, and a reset of the module is one of the package."""
    module = Net(remembers, linear=nn.Linear(4, 4), cache=torch.zeros(3, 4), table=torch.ones(4))
    module.register_buffer("at", torch.zeros((), dtype=torch.long), persistent=False)
    net, step = prepared(module, torch.randn(1, 4), folder=tmp_path)
    (row,) = step.recipe
    (package,) = row.packages
    assert (row.name, row.changed, package.dynamic) == ("AOTInductor", 1, ())
    assert package.file == "kernels/net.aot/Net.pt2"
    assert package.bytes == (tmp_path / package.file).stat().st_size
    assert min(package.export_s, package.compile_s, package.load_s) > 0
    assert row.seconds > package.export_s + package.compile_s + package.load_s
    assert row.notes == ("buffers that calls change are shared with the module: at, cache",)
    with torch.inference_mode():
        for _ in range(2):
            net.reset()
            eager = [map_tensors(torch.clone, net.call()) for _ in range(3)]
            net.reset()
            calls = [map_tensors(torch.clone, step.run()) for _ in range(3)]
            torch.testing.assert_close(calls, eager)
            assert type(calls[0]["named"]) is Named
            assert net.module.at == net.kept.warm_calls + 3
    step.close()


def counts(self, x):
    self.calls += 1
    return x * self.calls


@pytest.mark.parametrize("compiler", [AOTInductor(), AOTTensorRT()])
def test_state_that_a_file_would_keep_is_refused_before_the_export(tmp_path, compiler):
    with pytest.raises(SkippedError, match=f"{type(compiler).__name__} cannot follow .* `calls` is a Python number"):
        prepared(Net(counts, calls=0), torch.ones(2), folder=tmp_path, compiler=compiler)
    no_buffers = Net(lambda self, x: x + self.inner.caches[0].add_(x[0]) + self.held[0].add_(1), inner=nn.Identity())
    no_buffers.held, no_buffers.inner.caches = [torch.zeros(4)], [torch.zeros(4)]
    with pytest.raises(SkippedError, match=r"calls write to inner\.caches\[0\], held\[0\]\. Make each a buffer"):
        prepared(no_buffers, torch.randn(1, 4), folder=tmp_path)


@pytest.mark.slow
def test_one_package_for_several_shapes_and_one_for_each(tmp_path):
    torch.manual_seed(0)
    shapes = [{"x": torch.randn(n, 4), "pair": (torch.randn(4), torch.randn(n, 1)), "scale": 2.0} for n in (2, 5, 1)]

    class Sums(nn.Module):
        def forward(self, x, pair, scale):
            return {"y": (x + pair[0]) * pair[1] * scale}

    for dynamic, packages in ((True, [("x.0", "pair.1.0")]), (False, [(), (), ()])):
        net, step = prepared(Sums(), *shapes, folder=tmp_path / str(dynamic), dynamic=dynamic)
        assert [package.dynamic for package in step.recipe[0].packages] == packages
        assert len(list(tmp_path.glob(f"{dynamic}/**/*.pt2"))) == len(packages)
        with torch.inference_mode():
            for run, inputs in zip((*step.extra_steps, step.run), (*shapes[1:], shapes[0]), strict=True):
                torch.testing.assert_close(run(), net.module(**inputs))


def test_a_rewritten_module_has_a_package_for_each_shape():
    module, examples = nn.Linear(4, 4), [{"input": torch.ones(rows, 4)} for rows in (2, 3)]
    net = fixed_component(module, **examples[0])
    rewritten = Rewrite().apply(module, replace(net, extra_inputs=(examples[1],))).call
    assert [len(grouped(each, examples, dynamic=True)) for each in (module, rewritten)] == [1, 2]
    for each in examples:
        torch.testing.assert_close(rewritten(**each), module(**each))


@pytest.fixture
def static_compiler(tmp_path):
    """A compiler without libstdc++.so: a package that holds a copy would crash the process that loads it."""
    compiler = cpp_builder.get_cpp_compiler()
    static = tmp_path / "static-g++"
    static.write_text(
        f"""#!/bin/sh
case " $* " in
*" -print-file-name=libstdc++.so "*) echo libstdc++.so ;;
*" -shared "*) exec {compiler} "$@" -static-libstdc++ ;;
*) exec {compiler} "$@" ;;
esac
"""
    )
    static.chmod(0o755)
    with config.patch({"cpp.cxx": (str(static),)}):  # monkeypatch would delete the option at its end
        yield


@pytest.mark.skipif(sys.platform != "linux", reason="g++ links to libstdc++ on Linux")
@pytest.mark.usefixtures("static_compiler")
@pytest.mark.slow
def test_an_application_loads_what_was_prepared_without_this_tool(tmp_path):
    """As docs/python.md has it: a fresh process that imports nothing but torch."""
    page = (Path(__file__).parents[3] / "docs" / "python.md").read_text(encoding="utf-8")
    (code,) = (each for each in re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M) if "aoti_load" in each)
    module = nn.Sequential(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.ReLU()).eval()
    x = torch.randn(2, 4, 9)
    passes = Rewrite(passes=[FoldBatchNorm()])  # its graph is called by a module, whose names an export copies
    recipe = Recipe(transforms=[passes], compiler=AOTInductor())
    with profiling.prepare(module, {"input": x}, recipe, package=tmp_path / "decoder.pt2") as step:
        expected = module(x)
        torch.testing.assert_close(step(input=x), expected)
    torch.save(x, tmp_path / "x.pt")
    script = f"""
import torch, sys
x = torch.load("x.pt")
{code.replace("x=x", "input=x")}
torch.save(output, "output.pt")
try:
    decoder(input=x[:1])
except RuntimeError as error:
    assert "unmatched dim value" in str(error), error
else:
    raise AssertionError("another shape is not refused")
assert not [name for name in sys.modules if name.startswith(("profiling", "models"))]
"""
    checked = {**os.environ, "AOTI_RUNTIME_CHECK_INPUTS": "1"}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=checked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(torch.load(tmp_path / "output.pt"), expected)


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (lambda self, x: {"picture": SimpleNamespace(pixels=x)}, r"cannot export Net.*SimpleNamespace'> in output"),
        (
            lambda self, x: [Pair(x, x)],
            r"cannot return .*Pair'> .* register using `_register_namedtuple`\. Or return a dict",
        ),
        (lambda self, x: {"a": [x, 0.5]}, "holds 0.5, and a package returns only tensors"),
    ],
)
def test_what_a_package_cannot_return_is_said_before_it_is_compiled(output, says, tmp_path):
    with pytest.raises(SkippedError, match=says):
        prepared(Net(output), torch.ones(2), folder=tmp_path)
    assert not list(tmp_path.rglob("*"))


def branches(self, x):
    return x + 1 if x.sum() > 0 else x  # the line that an export names


@pytest.mark.parametrize("strict", [False, True])
def test_what_cannot_be_exported_names_its_line(strict):
    line = branches.__code__.co_firstlineno + 1
    with pytest.raises(SkippedError, match=rf"cannot export Net at {__file__}:{line}: ") as raised:
        exported(Net(branches), [{"x": torch.ones(2)}], strict=strict)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: exported(Net(branches), [{"x": torch.ones(n), "scale": float(n)} for n in (2, 3)]),
            r"differ in more than sizes: scale\. Write dynamic: false",
        ),
        (lambda: AOTInductor(options={"triton.cudagraphs": True}), "holds no CUDA graphs. Give the recipe a capture"),
        (lambda: AOTInductor(options={"aot_inductor.output_path": "a"}), "packages are written to the run folder"),
        (lambda: AOTInductor(options={"max_autotun": True}), "no such option. Did you mean 'max_autotune'"),
        (lambda: package("compile", "a.pt2"), "makes no package. Use variant='aot_inductor'"),
        (lambda: package("aot_inductor", "a.so"), r"must end with \.pt2"),
        (lambda: package("aot_inductor", "missing/a.pt2"), "there is no folder .*missing'. Create it first"),
    ],
)
def test_what_is_wrong_is_said_before_compiling(call, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=says):
        call()


def package(variant, name):
    return profiling.prepare(nn.Linear(2, 2), {"input": torch.ones(1, 2)}, variant, package=Path(name).absolute())


@pytest.mark.slow
@pytest.mark.skipif(missing_package("torchao") is not None, reason="needs the extra quant")
def test_quantised_weights_run_in_a_package_without_torchao(tmp_path):
    module = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 64)).eval()
    x = torch.randn(32, 128)
    with torch.inference_mode():
        expected = module(x)
    quantised = Quantize(config="Int8DynamicActivationInt8WeightConfig")
    _, step = prepared(module, {"input": x}, folder=tmp_path, transforms=[quantised])
    transform, compiler = step.recipe
    assert transform.changed == 2
    assert compiler.notes == ()  # no operators of torchao are left in it
    code = "import sys, torch; f = torch._inductor.aoti_load_package(sys.argv[1]); x, y = torch.load(sys.argv[2])\n"
    code += "print(float((f(input=x) - y).norm() / y.norm()), 'torchao' in sys.modules)"
    torch.save((x, expected), tmp_path / "x.pt")
    file = tmp_path / "kernels" / "net.aot" / "Sequential.pt2"
    loaded = subprocess.run(
        [sys.executable, "-c", code, file, tmp_path / "x.pt"], capture_output=True, text=True, check=True
    )
    error, has_torchao = loaded.stdout.split()[-2:]
    assert float(error) < 0.02
    assert has_torchao == "False"
    step.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["image_decoder", "audio_decoder", "world_model"])
def test_the_networks_of_the_main_job_run_as_packages(profile, name):
    outcome = profile(f"component=[{name}]", "variant=[aot_inductor]", "isolation=none")
    record = outcome.records[name, "aot_inductor"]
    assert record.status == "ok", record.reason
    assert 0 < record.parity.rel_l2 < 1e-5
    (package,) = record.recipe[0].packages
    assert (outcome.folder / package.file).stat().st_size == package.bytes
