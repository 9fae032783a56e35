"""Recipes: steps run in their order, each with what it changed; what does not fit is refused when it is read."""

import gc
import math
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import pytest
import torch
from fixed_component import Net
from fixed_component import fixed_component as component
from playing import component_of, normal
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from profiling.components.reference import eager_reference
from profiling.components.trajectory import learn
from profiling.errors import InputError, SkippedError
from profiling.fx_passes.linear import FuseParallelLinears
from profiling.graphs import CaptureError
from profiling.metrics.metric import Subject
from profiling.metrics.parity import Parity
from profiling.trace.counters import snapshot
from profiling.variants.aot_inductor import AOTInductor
from profiling.variants.cuda_graph import CudaGraph
from profiling.variants.inductor import Inductor, find_vector_instructions, missing_toolchain, repeated_blocks
from profiling.variants.quantize import Quantize
from profiling.variants.recipe import Compiler, Outcome, Recipe, Transform, check_changes
from profiling.variants.rewrite import Rewrite
from profiling.variants.transforms import ChannelsLast
from profiling.variants.variant import Variant

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
INT8, FREEZES = Quantize(config="Int8WeightOnlyConfig"), AOTInductor(options={"freezing": True})


class Wrapped(nn.Module):
    def __init__(self, module, add):
        super().__init__()
        self.module, self.add = module, add

    def forward(self, x):
        return self.module(x) + self.add


def shifted(module, add):
    """A transform of a user's own that returns another module."""
    return Wrapped(module, add)


@dataclass(frozen=True)
class Seen(Transform):
    """Notes what it was applied to."""

    shapes: list

    def apply(self, module, component):
        self.shapes.append(tuple(component.inputs["x"].shape))
        return Outcome(Wrapped(module, 0), changed=2, notes=("seen",))


@dataclass(frozen=True)
class Recording(Compiler):
    """A compiler that negates, and tells in `log` what it is asked for."""

    log: list
    fails: bool = False

    @contextmanager
    def flags(self, folder):
        self.log.append("flags")
        try:
            yield
        finally:
            self.log.append("restored")

    def compile(self, module, examples, folder, written):
        if self.fails:
            raise RuntimeError("planted")
        self.log.append([tuple(each["x"].shape) for each in examples])
        close = lambda: self.log.append("closed")  # noqa: E731
        return Outcome(lambda x: -module(x), changed=7, notes=("negated",), close=close)


@dataclass(frozen=True, kw_only=True)
class FakeCapture(CudaGraph):
    """Stands for a capture where there is no GPU."""

    log: list

    def captured(self, component, module, call):
        class Engine:
            __call__ = staticmethod(call)
            clear = staticmethod(lambda: self.log.append("cleared"))
            static_step = staticmethod(lambda **inputs: None)

        self.log.append(("captured", type(module).__name__, call(component.inputs["x"]).tolist()))
        return Engine()


@pytest.fixture
def _without_a_gpu(monkeypatch):
    monkeypatch.setattr("profiling.variants.recipe.preserved_generators", lambda *_: nullcontext())


@pytest.mark.usefixtures("_without_a_gpu")
@pytest.mark.parametrize("captures", [False, True])
def test_steps_run_in_their_order_and_are_closed_in_reverse(captures, tmp_path):
    net, log, shapes = component(Wrapped(nn.Identity(), 0), torch.ones(2), torch.ones(3)), [], []
    recipe = Recipe(
        transforms=[partial(shifted, add=1), Seen(shapes), partial(shifted, add=2)],
        compiler=Recording(log),
        capture=FakeCapture(log=log) if captures else None,
    )
    step = recipe.prepare(net, tmp_path)
    assert step.run().tolist() == [-4, -4]
    assert [extra().tolist() for extra in step.extra_steps] == [[-4, -4, -4]]
    assert shapes == [(2,)], "the component's own inputs"
    compiled = [(2,), (3,)] if captures else [(3,), (2,)]  # in the order of the capture
    began = ["flags", compiled, *([("captured", "Wrapped", [-4, -4])] if captures else [])]
    assert log == began
    rows = [(each.kind, each.name, each.changed, each.notes) for each in step.recipe]
    assert rows[:4] == [
        ("transform", "shifted", None, ()),
        ("transform", "Seen", 2, ("seen",)),
        ("transform", "shifted", None, ()),
        ("compiler", "Recording", 7, ("negated",)),
    ]
    assert [(kind, changed) for kind, _, changed, _ in rows[4:]] == ([("capture", 2)] if captures else [])
    if captures:
        assert (step.eager_step.call().tolist(), step.eager_step.module) == ([-4, -4], None)
    assert all(each.seconds >= 0 for each in step.recipe)
    step.close()
    assert log[len(began) :] == [*(["cleared"] if captures else []), "closed", "restored"]
    eager = Recipe()(net, tmp_path)
    assert (eager.recipe, eager.eager_step.module) == ((), net.module)
    assert torch.equal(eager.run(), net.call())
    log.clear()
    with pytest.raises(RuntimeError, match="planted"):
        Recipe(compiler=Recording(log, fails=True))(net, tmp_path)
    assert log == ["flags", "restored"], "a failed step leaves no flags"


@pytest.mark.usefixtures("_without_a_gpu")
def test_a_reset_that_replaces_what_a_graph_reads_is_refused(tmp_path):
    def resetting(reset):
        module = Wrapped(nn.Identity(), 0)
        module.position = nn.Buffer(torch.zeros(4))
        module.reset = lambda: reset(module)
        return replace(component(module, torch.ones(2)), policy="reset")

    keeps = resetting(lambda module: module.position.zero_())
    replaces = resetting(lambda module: setattr(module, "position", torch.zeros(4)))
    recipe = Recipe(capture=FakeCapture(log=[]))
    assert recipe.prepare(keeps, tmp_path).run().tolist() == [1, 1]
    with pytest.raises(CaptureError, match=r"replaces tensors that the CUDA graph reads \(position; 1 in"):
        recipe.prepare(replaces, tmp_path)


def broken(module):
    raise ValueError("no room")


class ReturnsModule(Transform, Compiler):
    def apply(self, module, component):
        return module

    def compile(self, module, examples, folder, written):
        return module


class ReturnsNoStep(Variant):
    def __call__(self, component, folder):
        return component.call


@pytest.mark.parametrize(
    ("variant", "error", "says"),
    [
        (Recipe(transforms=[broken]), RuntimeError, "transform broken raised ValueError: no room"),
        (Recipe(transforms=[print]), InputError, "transform print returned NoneType"),
        (
            Recipe(transforms=[ReturnsModule()]),
            InputError,
            r"apply\(\) of ReturnsModule returned Linear\. Return .*Out",
        ),
        (Recipe(compiler=ReturnsModule()), InputError, r"compile\(\) of ReturnsModule returned Linear\. Return .*Out"),
        (ReturnsNoStep(), InputError, r"ReturnsNoStep\(\) returned .*method\. Return .*Step\("),
    ],
)
def test_what_a_users_own_part_raises_and_returns_names_it(variant, error, says, tmp_path):
    with pytest.raises(error, match=says):
        variant.prepare(component(nn.Linear(1, 1), input=torch.ones(1)), tmp_path)


def remembers(self, x):
    """Count calls in a buffer and in a Python number."""
    self.calls += 1
    self.total.add_(x[0])
    return self.second(self.first(x)) + self.total + self.calls


class Held(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.register_buffer("weight", linear.weight.detach().clone())
        self.bias = linear.bias

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


def replacing(module):
    """Replace a weight and a buffer by others of the same values, and a layer by one with a buffer as its weight."""
    module.first.weight = nn.Parameter(module.first.weight.detach().clone())
    module.total = module.total.clone()
    module.second[0] = Held(module.second[0])
    return module


@pytest.mark.parametrize("learns", [True, False])
@torch.inference_mode()
def test_a_reset_restores_the_state_and_keeps_what_a_transform_replaced(tmp_path, learns):
    layers = {"first": nn.Linear(4, 4), "second": nn.Sequential(nn.Linear(4, 4))}
    net = component(Net(remembers, **layers, total=torch.zeros(4), calls=0), torch.ones(2, 4))
    if learns:
        learn(net)
    net.reset()
    calls, expected = net.module.calls, net.call().clone()
    net.reset()
    replaced = [weakref.ref(each.weight) for each in (net.module.first, net.module.second[0])]
    step = Recipe(transforms=[replacing]).prepare(net, tmp_path)
    if learns:
        gc.collect()
        assert [each() for each in replaced] == [None, None], "replaced weights take no memory"
    held, total = net.module.second[0], net.module.total
    for _ in range(2):
        net.reset()
        torch.testing.assert_close(step.call(), expected)
        assert (net.module.second[0] is held, net.module.total is total) == (True, True)
    assert net.module.calls == calls + 1
    restore, calls = net.kept.keep(), net.module.calls
    held.weight.zero_()
    step.run()
    restore()
    assert net.module.calls == calls
    net.reset()
    torch.testing.assert_close(step.call(), expected, msg="what a transform added is kept, too")


@torch.inference_mode()
def test_passes_and_a_compiler_work_together(tmp_path):
    parts = {name: nn.Linear(4, 4) for name in "ab"}  # a pass makes them one
    net = component(
        Net(lambda self, x: self.a(x) * self.b(x) * x.shape[0], **parts), torch.randn(2, 4), torch.randn(3, 4)
    )
    recipe = Recipe(transforms=[Rewrite(passes=[FuseParallelLinears()])])
    (fused,) = recipe(net, tmp_path).explain()["passes"]
    assert (fused.replaced, fused.replay_ms, "CUDA" in fused.unmeasured) == (2, None, True)
    step = replace(recipe, compiler=Inductor())(net, tmp_path)
    torch.testing.assert_close(step.run(), net.call())
    torch.testing.assert_close(step.extra_steps[0](), net.module(**net.extra_inputs[0]))
    assert step.explain() == {}, "what a pass gains is measured in code that the compiler replaces"
    step.close()
    assert [(each.name, each.changed) for each in step.recipe] == [("Rewrite", 4), ("Inductor", 2)]


@pytest.mark.parametrize("dimensions", [2, 3])
def test_channels_last_changes_convolutions_only(dimensions, tmp_path):
    down, norm, up, layout = {
        2: (nn.Conv2d, nn.BatchNorm2d, nn.ConvTranspose2d, torch.channels_last),
        3: (nn.Conv3d, nn.BatchNorm3d, nn.ConvTranspose3d, torch.channels_last_3d),
    }[dimensions]
    layers = nn.Sequential(down(3, 8, 3), norm(8), up(8, 4, 3), down(4, 16, 1))
    net = component(layers, input=torch.randn(1, 3, *[6] * dimensions))
    expected = net.call()
    step = Recipe(transforms=[ChannelsLast()]).prepare(net, tmp_path)
    torch.testing.assert_close(step.run(), expected)
    assert all(net.module[place].weight.is_contiguous(memory_format=layout) for place in (0, 2))
    of_one_element = (4, 1, *[4] * dimensions)
    assert net.module[3].weight.stride() == of_one_element, "the strides that libraries look at"
    assert [each.changed for each in step.recipe] == [3]


def test_channels_last_keeps_features_of_earlier_calls_in_the_layout_and_other_state_as_it_is(tmp_path):
    class Stream(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv3d(4, 4, (3, 1, 1))
            for name, shape in {"features": (1, 4, 2, 5, 6), "ring": (1, 3, 2, 5, 6), "table": (1, 4, 2, 5, 6)}.items():
                self.register_buffer(name, torch.randn(shape))
            self.frames = torch.randn(3, 1, 4, 2, 5, 6)
            self.places = list(self.frames)  # its memory, under other tensors

        def forward(self, x):
            seen = torch.cat([self.features, x], 2)
            self.features.copy_(seen[:, :, -2:])
            self.ring.view(-1).add_(1)
            self.places[1].copy_(x)
            return self.conv(seen) + self.table[:, :, :1] + self.ring.mean() + self.frames.mean()

    net = component_of(Stream(), normal(1, 4, 2, 5, 6))
    reference = eager_reference(net)
    net.reset()
    before = net.module.features.clone()
    step = Recipe(transforms=[ChannelsLast()]).prepare(net, tmp_path)
    layouts = [each.is_contiguous(memory_format=torch.channels_last_3d) for each in net.module.buffers()]
    assert layouts == [True, False, False], "no convolution reads the ring, and no call writes to the table"
    assert net.module.places[1].is_contiguous(), "the memory of two tensors"
    assert step.recipe[0].notes == ("tensors of its state that are kept in this layout, too: 1",)
    assert Parity().measure(Subject(net, step, reference, None, 0)).problem is None
    assert torch.equal(net.module.features, before), "put back"
    with torch.no_grad():
        net.module(x=net.inputs["x"])
        net.module.features.zero_()


def test_channels_last_counts_parametrised_convolutions_only_if_their_weight_follows(tmp_path):
    layers = [nn.Conv2d(8, 8, 3) for _ in range(4)]
    parametrize.register_parametrization(layers[1], "weight", nn.Tanh())
    parametrizations.weight_norm(layers[2])  # computes its weight contiguous
    nn.utils.spectral_norm(layers[3])  # a hook computes the weight
    kept = [each for layer in layers[2:] for each in layer.parameters()]
    net = component(nn.Sequential(*layers), input=torch.randn(1, 8, 12, 12))
    expected, addresses = net.call(), [each.data_ptr() for each in kept]
    prepared = Recipe(transforms=[ChannelsLast()]).prepare(net, tmp_path)
    torch.testing.assert_close(prepared.run(), expected)
    (step,) = prepared.recipe
    assert [each.weight.is_contiguous(memory_format=torch.channels_last) for each in layers[:3]] == [True, True, False]
    assert (step.changed, [each.data_ptr() for each in kept]) == (2, addresses)
    assert step.notes[0].startswith("2 of 4 convolutions keep their layout: each call computes their weight in it")


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (ChannelsLast(), "ChannelsLast changes nothing: Linear has no 2D or 3D convolution"),
        (Rewrite(passes=[FuseParallelLinears()]), "Rewrite changes nothing: no graph pass matches anything in Linear"),
        (Rewrite(passes=[FuseParallelLinears(), lambda graph: graph]), None),  # one that counts nothing
        (lambda module: module, None),
    ],
)
def test_a_transform_that_counts_no_changes_skips_the_cell(transform, says, tmp_path):
    linear = component(nn.Linear(2, 2), input=torch.ones(1, 2))
    step = Recipe(transforms=[transform], needs_changes=False)(linear, tmp_path)
    assert step.recipe[0].changed == (None if says is None else 0)
    for check in (lambda: Recipe(transforms=[transform])(linear, tmp_path), lambda: check_changes([step.recipe] * 2)):
        with nullcontext() if says is None else pytest.raises(SkippedError, match=says):
            check()
    other_stage = [msgspec.structs.replace(step.recipe[0], changed=1)]
    check_changes([step.recipe, other_stage])


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.up(x))


class Stack(nn.Module):
    """Three blocks of one size and two of another, as lists; a pair of layers of torch.nn; a block of its own."""

    def __init__(self):
        super().__init__()
        self.first = nn.ModuleList(Block(4) for _ in range(3))
        self.between = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.last = nn.Sequential(Block(8), nn.Sequential(Block(8), Block(8)), Block(8))
        self.alone = Block(8)
        self.caches = nn.ModuleList(nn.Identity() for _ in range(2))  # not called

    def forward(self, x):
        for block in self.first:
            x = block(x)
        return self.alone(self.last(self.between(x)))


def test_blocks_that_repeat_are_found():
    module = Stack()
    blocks = [*module.first, module.last[0], module.last[2], *module.last[1]]
    assert {id(each) for each in repeated_blocks(module)} == {id(each) for each in blocks}
    assert repeated_blocks(module.alone) == []
    assert repeated_blocks(nn.ModuleList([Stack(), Stack()])) != [], "blocks of blocks are compiled whole"
    block = Block(4)
    assert repeated_blocks(nn.ModuleList([block] * 6)) == [block], "a block that is applied six times"
    assert repeated_blocks(nn.ModuleList([block])) == []


@pytest.mark.parametrize("patched", [False, True], ids=["alike", "with a forward or hooks of their own"])
@torch.inference_mode()
def test_each_kind_of_block_is_compiled_once(tmp_path, patched):
    module = Stack()
    if patched:
        module.first[1].forward = lambda x: -x
        module.first[2].register_forward_hook(lambda module, inputs, output: 2 * output)
    net = component(module, torch.randn(2, 4))
    before, expected = snapshot(), net.call()
    step = Recipe(compiler=Inductor(regional=True)).prepare(net, tmp_path)
    (row,) = step.recipe
    kinds = 4 if patched else 2
    assert row.changed == snapshot().since(before).graphs == kinds
    assert row.notes == (f"graphs compiled: {kinds} for 7 repeated blocks (Block); the rest is eager",)
    again = snapshot()
    for _ in range(2):
        net.reset()
        torch.testing.assert_close(step.call(), expected)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(net.call(), expected), "the module itself is eager, bit for bit"
    assert snapshot().since(again).describe() is None
    step.close()
    assert not any("_compiled_call_impl" in vars(block) for block in net.module.modules())


def surrounds(self, x):
    """Call a stack of blocks, which are called in a loop, and two blocks one straight after the other."""
    x = self.stack(torch.sin(x) + 1)
    x = self.pair[1](torch.tanh(self.pair[0](x)) * 2)
    return torch.cos(self.head(x)).square()


@torch.inference_mode()
def test_the_parts_between_blocks_are_compiled_too(tmp_path):
    """Whether blocks are called in a loop or one after the other, and with a state that is reset between calls."""
    parts = {"stack": Stack(), "pair": nn.ModuleList(Block(8) for _ in range(2)), "head": nn.Linear(8, 8)}
    net = component(Net(surrounds, **parts), torch.randn(2, 4), torch.randn(3, 4))
    expected, other = net.call(), net.module(**net.extra_inputs[0])
    step = Recipe(compiler=Inductor(regional=True, rest=True, fullgraph=True)).prepare(net, tmp_path)
    again = snapshot()
    for _ in range(2):
        net.reset()
        torch.testing.assert_close(step.call(), expected)
        torch.testing.assert_close(step.extra_steps[0](), other)
    assert snapshot().since(again).describe() is None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step.call()
    assert not {"aten::sin", "aten::cos", "aten::tanh"} & {event.name for event in profiler.events()}, "fused"
    step.close()
    (row,) = step.recipe
    parts = row.changed - 4  # two sizes of blocks, at two numbers of rows
    assert row.notes == (f"graphs compiled: 4 for 9 repeated blocks (Block), {parts} for the parts between them",)
    assert parts > 0
    assert not any("_compiled_call_impl" in vars(block) or block._forward_pre_hooks for block in net.module.modules())


@torch.inference_mode()
def test_that_no_part_between_blocks_is_compiled_is_said_and_without_blocks_nothing_is(tmp_path):
    def loop(call):
        """Call the blocks, or only their layers, in a loop, and more in the same function."""

        def forward(self, x):
            x = torch.sin(x)
            for block in self.blocks:
                x = call(block, x)
            return torch.cos(x)

        return component(Net(forward, blocks=nn.ModuleList(Block(4) for _ in range(3))), torch.ones(2, 4))

    step = Recipe(compiler=Inductor(regional=True, rest=True)).prepare(loop(Block.__call__), tmp_path)
    step.close()
    (row,) = step.recipe
    eager = "the rest is eager, although rest: true: what calls blocks in a loop is not compiled"
    assert (row.changed, row.notes) == (1, (f"graphs compiled: 1 for 3 repeated blocks (Block); {eager}",))
    regional = Recipe(compiler=Inductor(regional=True))
    with pytest.raises(SkippedError, match=r"Linear has none .* Write regional: false"):
        regional(component(nn.Linear(4, 4), input=torch.ones(1, 4)), tmp_path)
    with pytest.raises(SkippedError, match=r"a call of Net reaches the forward of none of them \(Block\)"):
        regional(loop(lambda block, x: block.up(x)), tmp_path)
    with pytest.raises(InputError, match="rest: true needs regional: true"):
        Inductor(rest=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compiler": Inductor(mode="reduce-overhead"), "capture": CudaGraph()}, "Write capture: null"),
        ({"compiler": Inductor(options={"triton.cudagraphs": True}), "capture": CudaGraph()}, "options.triton.cudagr"),
        ({"compiler": Inductor(mode="max-autotune", regional=True)}, "Capture the whole call"),
        ({"transforms": [INT8], "compiler": FREEZES}, "freezing would dequantise the weights of Quantize"),
        ({"capture": Inductor()}, "is no CudaGraph"),
        ({"transforms": ["drop"]}, r"transforms\.0='drop' is no function"),
        ({"transforms": [ChannelsLast]}, "is no function"),
        ({"transforms": [ChannelsLast()], "names": ["a", "b"]}, r"names=\['a', 'b'\]: there are 1 transforms"),
        ({"transforms": [FuseParallelLinears()]}, r"FuseParallelLinears rewrites a graph.*among the passes"),
        ({"tolerance": -1.0}, "tolerance=-1.0 must be a finite number, at least 0"),
        ({"tolerance": math.inf}, "tolerance=inf must be a finite number"),
    ],
)
def test_what_does_not_fit_is_refused(options, says):
    with pytest.raises(InputError, match=says):
        Recipe(**options)


def test_it_is_unavailable_where_a_step_is_and_only_a_capture_aliases_outputs(monkeypatch):
    assert Recipe().aliasing() == Recipe()
    aliasing = Recipe(capture=CudaGraph(warmup=2)).aliasing()
    assert aliasing.capture == CudaGraph(warmup=2, alias_outputs=True)
    assert "CUDA graphs need a CUDA device" in (Recipe(capture=CudaGraph()).unavailable(CPU) or "")
    assert Recipe(compiler=Inductor(), capture=CudaGraph()).unavailable(CUDA) is None
    reduced = Recipe(compiler=Inductor(mode="reduce-overhead"))
    assert reduced.unavailable(CPU) == "mode=reduce-overhead needs a CUDA device"
    monkeypatch.setattr(Seen, "unavailable", lambda self, device: "it wants another library")
    assert Recipe(transforms=[broken]).unavailable(CPU) is None
    assert Recipe(transforms=[Seen([])]).unavailable(CUDA) == "it wants another library"

    started = []
    monkeypatch.setattr("torch._inductor.async_compile.maybe_warm_pool", lambda: started.append("pool"))
    for device, recipe in ((CPU, Recipe(compiler=Inductor())), (CUDA, Recipe()), (CUDA, Recipe(compiler=Inductor()))):
        assert not started
        recipe.start_workers(device)
    assert started == ["pool"], "workers of the compiler start for a GPU only"


@pytest.mark.parametrize(
    ("capability", "by_environment", "believed"),
    [("AVX512", None, True), ("AVX512", False, False), ("AVX2", None, None), ("DEFAULT", None, None)],
)
def test_vector_instructions_that_torch_uses_are_not_checked(monkeypatch, capability, by_environment, believed):
    picked = []
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    cpp = torch._inductor.config.cpp
    monkeypatch.setattr("torch._inductor.cpu_vec_isa.pick_vec_isa", lambda: picked.append(cpp.vec_isa_ok))
    with torch._inductor.config.patch({"cpp.vec_isa_ok": by_environment}):
        find_vector_instructions()
    assert picked == [believed]


@pytest.mark.parametrize("compiler", [Inductor, AOTInductor])
def test_an_option_without_an_effect_on_the_device_makes_it_unavailable(compiler, monkeypatch):
    def reason(device, **options):
        return Recipe(compiler=compiler(options=options)).unavailable(device) or ""

    pdl = {"triton.enable_pdl": True}
    assert "compute capability 9.0 or later. Leave the option out." in reason(CPU, **pdl)
    assert not reason(CPU, coordinate_descent_tuning=True, **{"triton.enable_pdl": False})
    for capability, has_pdl in (((8, 9), False), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert (not reason(CUDA, **pdl)) == has_pdl
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "enable_pdl changes nothing here" in reason(CUDA, **pdl), "it is of NVIDIA's GPUs"


@pytest.mark.parametrize("script", [None, "exit 1"])
def test_where_no_compiler_for_c_plus_plus_runs_a_recipe_that_compiles_is_refused(tmp_path, monkeypatch, script):
    compiler = tmp_path / "g++"
    if script is not None:
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    missing_toolchain.cache_clear()
    try:
        assert "apt-get install g++" in str(Inductor().unavailable(CPU))
    finally:
        missing_toolchain.cache_clear()
