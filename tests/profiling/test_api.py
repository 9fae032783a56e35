"""From Python: a module that a script holds is measured as by the command, and is left as it was."""

import copy
import gc
import importlib
import os
import random
import subprocess
import sys
import threading
import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from make_record import record as made_record
from torch import nn

import profiling
from profiling.compare.__main__ import main as compare
from profiling.components.held import shuffled
from profiling.errors import InputError, WrongOutputError
from profiling.metrics.latency import Latency
from profiling.metrics.parity import Parity
from profiling.report.__main__ import main as report
from profiling.report.result import RunResult
from profiling.results.environment import read_environment
from profiling.results.jsonl import append_record
from profiling.trace.counters import snapshot
from profiling.variants.inductor import Inductor
from profiling.variants.recipe import Compiler, Outcome, Recipe
from profiling.variants.rewrite import Rewrite
from profiling.variants.variant import Step, Variant

ROOT = Path(__file__).resolve().parents[2]
LATENCY = Latency(min_iterations=5, max_iterations=20, max_seconds=0.2, warmup_min_iterations=1, warmup_max_seconds=0.2)
QUICK = {"metrics": {"parity": Parity(), "latency": LATENCY}, "ceilings": "off", "quiet": True}
ONE = {"variants": ["baseline"], **QUICK}


class Net(nn.Module):
    """State of every kind: dropout, running statistics, a buffer that forward writes, and nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, scale=1.0):
        self.calls += 1
        y = self.body(x) * scale
        return {"y": y, "parts": [y[:, :2], (y.sum(),)]}


class TakesATuple(nn.LSTM):
    """Refuses a list in place of its state, takes a dict, and a flag."""

    def forward(self, x, state, options, *, double=False):
        assert type(state) is tuple
        output, state = super().forward(x, state)
        return (output * options["gain"][0] if double else output), state


@dataclass(frozen=True, kw_only=True)
class Reversed(Variant):
    """Call the module; a variant of the script's own."""

    def __call__(self, component, folder):
        return Step(run=component.call)


@dataclass(frozen=True, kw_only=True)
class Stale(Variant):
    """Return the output of the inputs that it was prepared with, whatever they are now."""

    def __call__(self, component, folder):
        output = component.call()
        return Step(run=lambda: output)


def inputs():
    return {"x": torch.randn(4, 8, generator=torch.Generator().manual_seed(0))}


@pytest.fixture(scope="module")
def result():
    return profiling.profile(Net(), inputs(), {"baseline": Recipe(), "other": Reversed()}, fps=0.001, **QUICK)


def rescaled(module, factor):
    """A transform of the caller's own."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(factor).div_(factor)
    return module


def test_a_recipe_with_transforms_of_the_callers_own():
    module, recipe = Net(), Recipe(transforms=[partial(rescaled, factor=3.0), Rewrite()])
    before = [parameter.clone() for parameter in module.parameters()]
    run = profiling.profile(module, inputs(), {"baseline": Recipe(), "mine": recipe}, **QUICK)
    (record,) = (record for record in run.records if record.variant == "mine")
    assert record.status == "ok", record.reason
    assert [(step.kind, step.name) for step in record.recipe] == [("transform", "rescaled"), ("transform", "Rewrite")]
    assert all(map(torch.equal, before, module.parameters())), "a copy was transformed"
    with profiling.prepare(module, inputs(), recipe) as step:
        torch.testing.assert_close(step(**inputs()), module(**inputs()))


def with_other_layers(module):
    layer = nn.Linear(4, 4)
    layer.load_state_dict(module[0].state_dict())
    module[0] = layer
    return module


def test_layers_that_a_transform_replaces_are_not_held():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    replaced = weakref.ref(module[0])
    with profiling.prepare(module, {"input": torch.ones(2, 4)}, Recipe(transforms=[with_other_layers])):
        gc.collect()
        assert replaced() is None
        assert not module[1].training
    assert module[1].training


class Unchanged:
    """A transform that no YAML can describe."""

    def __call__(self, module):
        return module


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (lambda module: module, "defined inside a function"),
        (partial(rescaled, 3.0), r"rescaled has arguments without a name: 3\.0. Write partial\(rescaled, NAME=VALUE\)"),
        (Unchanged(), "Unchanged cannot be written as YAML. Make its class a dataclass"),
        (Unchanged().__call__, "method cannot be written as YAML"),
    ],
)
def test_a_transform_that_another_process_cannot_be_told(transform, says):
    with pytest.raises(InputError, match=says):
        profiling.profile(Net(), inputs(), {"mine": Recipe(transforms=[transform])}, **QUICK)


def test_records_and_the_answer(result):
    assert {record.cell: record.status for record in result.records} == {
        ("Net", "baseline"): "ok",
        ("Net", "other"): "ok",
    }
    best = result.best("Net")
    assert best is result.best()
    assert best.parity.passed
    assert best.weights == "the caller's"
    text = str(result)
    assert "fastest" in text
    said = " ".join(text.split())
    assert "0.001 FPS: undecided: 0 of " in said, "too few calls to tell"
    assert f"Net, {best.variant}: max " in said, "which carry no p99 either"
    assert "<table>" in result._repr_mimebundle_()["text/html"]
    assert "fastest correct" in result._repr_mimebundle_()["text/html"]
    with pytest.raises(InputError, match=r"best\('net'\): name one of Net"):
        result.best("net")


def test_seconds_end_the_turns():
    latency = Latency(interval=1e-6, max_iterations=10**6, warmup_min_iterations=1, warmup_max_seconds=0.2)
    options = {**QUICK, "metrics": {"parity": Parity(), "latency": latency}}
    run = profiling.profile(Net(), inputs(), {"baseline": Recipe(), "other": Recipe()}, seconds=0.5, **options)
    assert {record.turns.stopped_by for record in run.records} == {"time"}


def test_a_saved_result_is_a_run(result, tmp_path, capsys):
    result.save(tmp_path / "a")
    result.save(tmp_path / "a")
    result.save(tmp_path / "b")
    assert report([str(tmp_path / "a")]) == 0
    assert "fastest" in capsys.readouterr().out
    assert compare([str(tmp_path / "a"), str(tmp_path / "b")]) in (0, 2)  # 2: too few samples to tell
    assert "Net" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "a").iterdir()} >= {"results.jsonl", "environment.json", "report.html"}
    assert len((tmp_path / "a" / "results.jsonl").read_text().splitlines()) == len(result.records)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"is not empty: it holds notes\.txt"):
        result.save(tmp_path / "c")
    with pytest.raises(InputError, match=r"save\('/proc/x'\): .*Name another folder"):
        result.save("/proc/x")


def test_a_forked_worker_that_ends_does_not_remove_the_folder_of_a_result(tmp_path):
    (tmp_path / "run").mkdir()
    append_record(tmp_path / "run", made_record())
    held = RunResult(tmp_path / "run", temporary=True)
    worker = os.fork()
    if worker == 0:
        del held
        gc.collect()
        os._exit(0)
    os.waitpid(worker, 0)
    assert held.folder.is_dir()
    del held
    gc.collect()
    assert not (tmp_path / "run").exists()


def test_everything_is_left_as_it_was():
    module, given = Net().bfloat16(), {"x": torch.randn(4, 8, dtype=torch.bfloat16)}
    module.body[2].eval()  # one part is in another mode than the others
    module(**given)["y"].sum().backward()
    hook_calls = []
    module.register_forward_hook(lambda *_: hook_calls.append(1))
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)

    def state():
        return (
            [(name, t.dtype, t.device, t.tolist()) for name, t in module.state_dict().items()],
            [(p.grad.tolist(), p.requires_grad) for p in module.parameters()],
            [part.training for part in module.modules()],
            (given["x"].tolist(), len(module._forward_hooks)),
            (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()),
            (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()),
            (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
            torch.are_deterministic_algorithms_enabled(),
        )

    torch.backends.cudnn.allow_tf32 = True
    torch.use_deterministic_algorithms(True)
    try:
        before = state()
        result = profiling.profile(module, given, **ONE)
        assert state() == before
    finally:
        torch.use_deterministic_algorithms(False)
    assert result.records[0].status == "ok"
    assert result.records[0].dtype == "bfloat16"


def test_tf32_as_torchs_current_interface_sets_it():
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        result = profiling.profile(Net(), inputs(), **ONE)
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
    assert result.records[0].status == "ok", result.records[0].reason
    assert read_environment(result.folder).tf32 is True


def test_frozen_parameters_count():
    net = nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8))
    (record,) = profiling.profile(net, {"input": torch.ones(2, 8)}, **ONE).records
    assert record.parameters == 144
    assert record.parameter_dtypes == {"float32": 144}


class Cache:
    """Keys of the calls so far, as a transformers DynamicCache has them; forward assigns longer ones."""

    def __init__(self) -> None:
        self.keys = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


class Decoder(nn.Module):
    """Averages over the cache, after the input has been appended to it."""

    def forward(self, x, cache, again=None):
        assert again in (None, cache), "they were one object"
        cache.keys = torch.cat([cache.keys, x])
        return cache.keys.mean(0), cache


def test_a_cache_among_the_inputs_is_copied_and_each_module_begins_with_it_as_it_was():
    cache = Cache()
    before = cache.keys
    (record,) = profiling.profile(Decoder(), {"x": torch.ones(1, 8), "cache": cache, "again": cache}, **ONE).records
    assert record.status == "ok", record.reason
    assert cache.keys is before


def test_an_input_that_cannot_be_copied_is_one_line():
    cache = Cache()
    cache.lock = threading.Lock()
    with pytest.raises(InputError, match=r"inputs: a Cache cannot be copied .*Pass a function `seed -> inputs`"):
        profiling.profile(Decoder(), {"x": torch.ones(1, 8), "cache": cache}, **ONE)


def test_a_result_for_the_old_inputs_fails():
    stale = profiling.profile(Net(), inputs(), {"baseline": Recipe(), "stale": Stale()}, **QUICK)
    assert stale.best().variant == "baseline"
    (record,) = (record for record in stale.records if record.variant == "stale")
    assert record.status == "failed"
    assert record.reason.startswith("parity")


class Hungry(nn.Module):
    def forward(self, x):
        return x + torch.empty(2**60).sum()


def test_a_module_that_runs_out_of_memory_is_no_wrong_input():
    (record,) = profiling.profile(Hungry(), {"x": torch.ones(4)}, **ONE).records
    assert record.status == "failed"
    assert "DefaultCPUAllocator" in record.reason
    assert not record.bad_input


class MakesFloats(nn.Linear):
    def forward(self, x):
        return super().forward(x * torch.ones(8))


def test_a_module_that_mixes_dtypes_once_it_is_cast():
    with pytest.raises(InputError, match=r"same dtype.* casts weights to bfloat16 \(cast: module\).* cast: autocast"):
        profiling.profile(MakesFloats(8, 8), {"x": torch.ones(2, 8)}, dtype=torch.bfloat16, **ONE)
    for options in ({"autocast": torch.bfloat16}, {}):
        (record,) = profiling.profile(MakesFloats(8, 8), {"x": torch.ones(2, 8)}, **options, **ONE).records
        assert record.status == "ok", record.reason


class OnlyMask(nn.Module):
    def forward(self, mask):
        return mask * torch.ones(4)


class PositionsOnly(nn.Module):
    def forward(self, x, /):
        return x


class AnyNumber(nn.Module):
    def forward(self, *xs):
        return sum(xs)


class Guided(nn.Module):
    """Follows the gradient of its own output, as classifier guidance does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.layer(x).sum(), x)[0]


class Scaled(nn.Module):
    def forward(self, x, factor: float = 2.0):
        return x * factor


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_torchscript_module():
    module = torch.jit.script(Scaled())
    (record,) = profiling.profile(module, {"x": torch.randn(4, 8)}, **ONE).records
    assert record.status == "ok", record.reason
    with pytest.raises(InputError, match=r"inputs do not fit .*forward\(x, factor=2\.0\): missing .*'x'"):
        profiling.profile(module, {"factor": 3.0}, **ONE)
    with profiling.prepare(module, {"x": torch.ones(4, 8)}, variant="baseline") as step:
        assert torch.equal(step(torch.full((4, 8), 3.0)), torch.full((4, 8), 6.0))


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm:FutureWarning")
def test_a_weight_that_a_hook_computes_is_copied():
    """The weight of the older `weight_norm` is an attribute with a history, which Python alone cannot copy."""
    module = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 8)))
    before = module[0].weight
    (record,) = profiling.profile(module, {"input": torch.randn(4, 8)}, **ONE).records
    assert record.status == "ok", record.reason
    assert module[0].weight is before
    assert before.grad_fn is not None


def test_where_the_check_has_no_other_inputs_a_note_says_so():
    mask = torch.tensor([True, False, True, True])
    one = profiling.profile(OnlyMask(), {"mask": mask}, **ONE)
    assert any("give other ones as check_inputs" in note for note in one.records[0].notes)
    assert "check_inputs" in str(one)
    other = profiling.profile(OnlyMask(), {"mask": mask}, check_inputs={"mask": ~mask}, **ONE)
    assert other.records[0].notes == ()


def test_inputs_drawn_from_a_seed_and_a_function_that_builds_the_module():
    seeds = []

    def draw(seed):
        seeds.append(seed)
        return {"input": torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))}

    result = profiling.profile(partial(nn.Linear, 8, 8), draw, **ONE)
    assert result.records[0].status == "ok"
    assert len(set(seeds)) > 1


def given(**other):
    return {"module": Net(), "inputs": inputs(), **other}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            given(inputs={"z": torch.ones(4, 8)}),
            r"inputs do not fit Net\.forward\(x, scale=1\.0\): forward has no .*'z'",
        ),
        (given(inputs={"xx": torch.ones(4, 8)}), "forward has no argument 'xx'. Did you mean 'x'"),
        (given(inputs={}), "inputs is empty"),
        (given(check_inputs={"y": torch.ones(4, 8)}), "check_inputs do not fit Net"),
        (given(module=5), "module has the type int. Pass a torch.nn.Module"),
        (given(module=lambda x: x + 1), "module is a function that wants x. Pass a torch.nn.Module, or a function"),
        (given(module=lambda: 5), "what the function returned has the type int, and is not a torch.nn.Module"),
        (given(module=lambda: nn.Linear(8, 8)), r"inputs do not fit Linear\.forward"),
        (given(variants="baseline"), r"variants='baseline' is a text. Give a list: variants=\['baseline'\]"),
        (given(metrics=["latenzy"]), "there is no metric 'latenzy'. Did you mean 'latency'"),
        (given(dtype=torch.int64), "dtype=int64 is none of"),
        (given(module=Net().double()), r"module computes in float64.* Pass dtype=torch\.float32, which casts copies"),
        (given(module=PositionsOnly()), r"inputs do not fit .* Arguments are passed by name: wrap the module"),
        (given(module=AnyNumber()), r"inputs do not fit .* Arguments are passed by name: wrap the module"),
        (
            given(module=Guided()),
            r"raised RuntimeError: .* Calls run under torch\.inference_mode\(\): begin",
        ),
        (given(device="cuda:99"), "device=cuda:99"),
        (given(fps=0), "fps=0 must be a number above 0"),
        (given(rounds=0), "rounds=0"),
        (given(seconds=0), "seconds=0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_argument_is_one_line(arguments, message):
    with pytest.raises(InputError, match=message) as error:
        profiling.profile(**{**ONE, **arguments})
    assert "\n" not in str(error.value)


def refuses(graph, inputs):
    raise AssertionError("what the user compiled is called")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x).relu()


class CompiledBlock(Block):
    @torch.compile(backend=refuses)
    def forward(self, x):
        return super().forward(x)


def compiled(how):
    """Return a module that its user has compiled, so that calls of what was compiled raise."""
    net = nn.Sequential(nn.Linear(8, 8), Block())
    if how == "whole":
        return torch.compile(net, backend=refuses)
    if how == "part":
        net[1].layer = torch.compile(net[1].layer, backend=refuses)
    if how == "in place":
        net[1].compile(backend=refuses)
    if how == "method":
        net[1].forward = torch.compile(net[1].forward, backend=refuses)
    if how == "class":
        net[1] = CompiledBlock()
    return net


COMPILED = {
    "whole": "the module was compiled already",
    "part": "1.layer was compiled already",
    "in place": "1 was compiled already",
    "method": "1.forward was compiled already",
    "class": "1.forward was compiled already",
}


@pytest.mark.parametrize(("how", "built"), [*((how, False) for how in COMPILED), ("whole", True)])
def test_inside_of_a_compiled_module(how, built):
    module = partial(compiled, how) if built else compiled(how)
    (record,) = profiling.profile(module, {"input": torch.ones(2, 8)}, **ONE).records
    assert record.status == "ok", record.reason
    assert [note for note in record.notes if "compiled already" in note] == [
        f"{COMPILED[how]} (torch.compile): what is inside is measured, and variants compile it"
    ]
    assert record.component == ("module" if built else "Sequential")
    assert record.parameters == 144


@pytest.mark.parametrize("how", COMPILED)
def test_a_step_of_a_compiled_module(how):
    module, x = compiled(how), torch.randn(2, 8)
    parts = list(module.modules())
    with (
        pytest.warns(UserWarning, match="compiled already"),
        profiling.prepare(module, {"input": x}, variant="baseline") as step,
    ):
        output = step(x)
    assert list(map(id, module.modules())) == list(map(id, parts)), "as the caller had it"
    with pytest.raises(Exception, match="what the user compiled is called"):
        module(x)
    torch._dynamo.reset()
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(module(x), output)


def test_shuffled_keeps_values_and_leaves_masks_and_positions():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 50)
    again = shuffled(values, generator)
    assert not torch.equal(again, values)
    assert torch.equal(again.flatten().sort().values, values.flatten().sort().values)
    tokens = torch.tensor([[5, 3, 9, 1, 7, 2]])
    assert not torch.equal(shuffled(tokens, generator), tokens)
    for kept in (
        torch.arange(10),
        torch.tensor([True, False]),
        torch.zeros(5).masked_fill(torch.arange(5) > 2, -torch.inf),
        torch.ones(3),
        torch.tensor(0.5),
        torch.zeros(0),
    ):
        assert torch.equal(shuffled(kept, generator), kept)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "complex32", "float4_e2m1fn_x2"])
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_shuffled_keeps_the_values_of_dtypes_that_torch_compares_not(name):
    dtype = getattr(torch, name)
    numbers = torch.tensor([5, 3, 6, 1, 7, 2, 4, 0], dtype=torch.uint8)
    tensor = numbers.view(dtype) if name.startswith("float4") else numbers.float().to(dtype)
    again = shuffled(tensor, torch.Generator().manual_seed(0))
    width = tensor.itemsize
    values, kept = again.view(torch.uint8).reshape(-1, width).tolist(), tensor.view(torch.uint8).reshape(-1, width)
    assert sorted(values) == sorted(kept.tolist())
    assert (values == kept.tolist()) == name.startswith("float4")


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, a):
        return a @ self.weight


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_input(layout):
    (record,) = profiling.profile(Weighted(), {"a": torch.eye(8).to_sparse(layout=layout)}, **ONE).records
    assert record.status == "ok", record.reason
    assert any("give other ones as check_inputs" in note for note in record.notes)


class Shared(nn.Module):
    """Returns its input itself, a view of it, and a tensor of its own that each call overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("out", torch.zeros(4, 8))

    def forward(self, x, scale=1.0):
        self.out.copy_(x * scale)
        return x, {"view": x[:2]}, self.out


def test_a_prepared_step_runs_on_new_inputs_and_its_outputs_stay():
    module = Net()
    module.body[2].eval()
    with profiling.prepare(module, inputs(), variant="baseline") as step:
        for seed in (1, 2):
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
            with torch.inference_mode():
                expected = module(x)["y"]
            assert torch.equal(step(x=x)["y"], expected)
            assert torch.equal(step(x)["parts"][0], expected[:, :2])
        assert not any(part.training for part in module.modules())
    assert [part.training for part in module.body] == [True, True, False]
    with pytest.raises(InputError, match="this step is closed"):
        step(x=x)
    shared = profiling.prepare(Shared(), inputs(), variant=Recipe())
    first, second = shared(x=torch.ones(4, 8)), shared(x=torch.zeros(4, 8))
    for one, zero in ((first[0], second[0]), (first[1]["view"], second[1]["view"]), (first[2], second[2])):
        assert one.min() == 1
        assert zero.max() == 0
        assert not one.is_inference()
    raw = profiling.prepare(Shared(), inputs(), variant="baseline", clone=False)
    assert raw(x=torch.ones(4, 8))[0].data_ptr() == raw(x=torch.zeros(4, 8))[0].data_ptr()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"x": torch.ones(5, 8)}, r"step: x is float32 \[5, 8\], it was prepared for float32 \[4, 8\]"),
        ({"x": torch.ones(4, 8, dtype=torch.float64)}, "step: x is float64"),
        ({"y": torch.ones(4, 8)}, r"step\(y\): x \(float32 \[4, 8\]\) is missing\. It was prepared with x"),
        ({}, r"step\(\): x .* is missing"),
        ({"x": torch.ones(4, 8), "scale": 2.0}, r"step\(x, scale\): scale \(2\.0\) is new\. It was prepared with x"),
        ({"x": [torch.ones(4, 8)]}, "step"),
    ],
)
def test_a_wrong_call_of_a_prepared_step_is_one_line(call, message):
    with profiling.prepare(Net(), inputs(), variant="baseline") as step, pytest.raises(InputError, match=message):
        step(**call)


def test_arguments_that_forward_does_not_take_are_not_dropped():
    x = torch.ones(4, 8)
    with profiling.prepare(Net(), inputs(), variant="baseline") as step:
        for args, named in (((x, x, x, x), {}), ((x,), {"x": x})):
            with pytest.raises(InputError, match=r"do not fit forward\(x.* by its name: step\(x=\.\.\.\)"):
                step(*args, **named)


class WritesItsState(nn.Module):
    """Updates a state among its inputs in place, as a streaming layer does."""

    def forward(self, x, states):
        states[0].mul_(0.5).add_(x)
        return states[0] * 2


def test_an_input_that_a_call_writes_to_is_written_to_by_a_prepared_step():
    x, state, other = torch.ones(3), torch.zeros(3), torch.zeros(3)
    with profiling.prepare(WritesItsState(), {"x": x, "states": [state]}, variant="baseline") as step:
        assert torch.equal(state, torch.zeros(3)), "preparing writes to copies"
        assert [float(step(x=x, states=[state])[0]) for _ in range(3)] == [2.0, 3.0, 3.5]
        assert float(step(x=x, states=[other])[0]) == 2.0
    assert (float(state[0]), float(other[0])) == (1.75, 1.0)
    assert torch.equal(x, torch.ones(3))


class Remembers(nn.Module):
    """Writes a row into a memory among its inputs."""

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(4, 4, bias=False)

    def forward(self, x, memory, at):
        memory.index_copy_(0, at, self.key(x))
        return memory.mean(0)


def test_a_write_that_the_inputs_of_prepare_hide_is_copied_back():
    """Of zeros the written row is zeros, too: the memory is written to and stays what it was."""
    torch.manual_seed(0)
    module = Remembers().eval()
    mine, theirs, zeros = torch.zeros(8, 4), torch.zeros(8, 4), torch.zeros(8, 4)
    given = {"x": torch.zeros(1, 4), "memory": zeros, "at": torch.tensor([0])}
    with profiling.prepare(module, given, variant="baseline") as step, torch.no_grad():
        for place in range(3):
            x, at = torch.randn(1, 4), torch.tensor([place])
            torch.testing.assert_close(step(x=x, memory=mine, at=at), module(x, theirs, at))
    torch.testing.assert_close(mine, theirs)
    assert not zeros.any()


def test_a_variant_that_changes_nothing_is_wrong_input():
    with pytest.raises(InputError, match=r"does not apply .* torch\.compile compiled nothing.* variant='baseline'"):
        profiling.prepare(nn.Identity(), {"input": torch.ones(2)}, variant="compile")


class Caches(nn.Module):
    """Makes a table in its first call, and adds to a cache in each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table, self.made = nn.Linear(8, 8), None, 0
        self.register_buffer("cache", torch.zeros(8, 8))

    def forward(self, x):
        if self.table is None:
            self.table, self.made = torch.eye(8, dtype=x.dtype), self.made + 1
        self.cache.add_(x.mean() * self.table)
        return self.layer(x) @ self.table + self.cache[0]


@pytest.mark.parametrize("variant", ["baseline", "compile"])
def test_a_prepared_step_is_the_one_that_is_measured_also_where_the_first_call_makes_state(variant):
    (record,) = profiling.profile(Caches(), inputs(), [variant], **QUICK).records
    assert record.status == "ok"
    module, given = Caches(), inputs()
    torch.manual_seed(5)
    random_state = torch.random.get_rng_state()
    before = snapshot()
    with profiling.prepare(module, given, variant) as step:
        assert snapshot().since(before).graphs == record.prepare.graphs
        assert (module.made, module.cache.abs().max().item()) == (0, 0.0), "values are put back"
        assert torch.equal(torch.random.get_rng_state(), random_state)
        table, before = module.table, snapshot()
        assert table is not None, "what the first calls made stays"
        outputs = [step(**given) for _ in range(3)]
        assert snapshot().since(before).graphs == 0
        assert module.table is table
        fresh = Caches()
        fresh.load_state_dict(module.state_dict() | {"cache": torch.zeros(8, 8)})
        for output in outputs:
            torch.testing.assert_close(output, fresh(**given))


class Streams(nn.Module):
    """Counts its calls in a Python number, and adds its inputs up in a buffer that it had before, and in a new one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.pos, self.made = nn.Linear(4, 4), 0, None
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        if self.made is None:
            self.made = x.new_zeros(4)
        self.pos += 1
        self.total += x.mean(0)
        self.made += x.mean(0)
        return self.layer(x) + self.total + self.made + self.pos


def test_a_session_of_a_prepared_step():
    torch.manual_seed(0)
    module, x = Streams(), torch.randn(2, 4)
    other = copy.deepcopy(module)
    with torch.inference_mode():
        module(x), other(x)
    state = module.pos, module.total.clone(), module.made.clone()
    with profiling.prepare(module, {"x": x}, variant="baseline") as step, torch.inference_mode():
        assert (module.pos, module.total.tolist(), module.made.tolist()) == (1, state[1].tolist(), state[2].tolist())
        expected = [other(x) for _ in range(3)]
        for _ in range(2):
            torch.testing.assert_close([step(x) for _ in range(3)], expected)
            assert module.pos == 4
            step.reset()
            assert (module.pos, module.made.tolist()) == (1, state[2].tolist())
        step(x)
    assert module.pos == 2, "closing leaves the session where it is"
    with pytest.raises(InputError, match="this step is closed"):
        step.reset()


@dataclass(frozen=True, kw_only=True)
class Repeats(Variant):
    """Stands for a graph: makes the device's work of a call again, and none of what Python does in one."""

    def __call__(self, component, folder):
        layer, scale = component.module.layer, component.module.scale()
        return Step(run=lambda: layer(component.inputs["x"]) * scale)


CALLS = 0


class CountsOutside(nn.Module):
    """Counts its calls in a global variable, or in that of a closure: no walk of its attributes finds either."""

    def __init__(self, scale) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), scale

    def forward(self, x):
        return self.layer(x) * self.scale()


def in_a_global():
    global CALLS
    CALLS += 1
    return CALLS


def in_a_closure():
    calls = 0

    def count():
        nonlocal calls
        calls += 1
        return calls % 2 + 1

    return count


@pytest.mark.parametrize("scale", [in_a_global, in_a_closure()], ids=["global", "closure"])
def test_a_step_that_repeats_a_number_outside_of_the_module_is_refused(scale):
    with pytest.raises(WrongOutputError, match=r"the prepared step is refused: .*(from call \d on|two eager calls)"):
        profiling.prepare(CountsOutside(scale), {"x": torch.ones(2, 4)}, Repeats())


def test_a_first_value_that_is_not_zero_is_refused():
    class Largest(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.largest = nn.Linear(4, 4), None
            nn.init.constant_(self.layer.bias, -9.0)  # its outputs are below 0

        def forward(self, x):
            if self.largest is None:
                self.largest = torch.full((2, 4), -100.0)
            self.largest.copy_(torch.maximum(self.largest, self.layer(x)))
            return self.largest.clone()

    with pytest.raises(WrongOutputError, match=r"`largest` is made in the first call.*register_buffer"):
        profiling.prepare(Largest(), {"x": torch.ones(2, 4)}, variant="baseline")


class Running(nn.Module):
    """Counts its calls in a parameter."""

    def __init__(self):
        super().__init__()
        self.calls = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def test_a_parameter_that_calls_write_to_is_as_it_was_before_the_first_call():
    module = Running()
    with profiling.prepare(module, {"x": torch.ones(3)}, variant="baseline") as step:
        assert float(module.calls) == 0
        assert [float(step(torch.ones(3))[0]) for _ in range(3)] == [1, 2, 3]
        step.reset()
        assert float(step(torch.ones(3))[0]) == 1


class Noise(nn.Module):
    def forward(self, x):
        return torch.randn_like(x)


def test_of_random_outputs_a_compiled_step_is_handed_out_with_a_warning():
    with (
        pytest.warns(UserWarning, match=r"cannot tell: .*fallback_random"),
        profiling.prepare(Noise(), {"x": torch.ones(2, 4)}, variant="compile") as step,
    ):
        assert step(torch.ones(2, 4)).shape == (2, 4)


def test_a_second_thread_is_refused():
    inside, go_on = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x):
            inside.set()
            go_on.wait(20)
            return x * 2

    go_on.set()
    with profiling.prepare(Waits(), {"x": torch.ones(2)}, variant="baseline") as step:
        inside.clear()
        go_on.clear()
        first = threading.Thread(target=step, args=(torch.ones(2),))
        first.start()
        inside.wait(20)
        with pytest.raises(RuntimeError, match=r"another thread is in a call of this step"):
            step(torch.ones(2))
        go_on.set()
        first.join()
        assert step(torch.ones(2)).tolist() == [2, 2]


def test_inputs_as_a_list_of_calls():
    seen = []

    class Sees(nn.Module):
        def forward(self, x):
            seen.append(x[0].item())
            return x * 2

    listed = [{"x": torch.full((2,), float(value))} for value in (3, 5, 7)]
    (record,) = profiling.profile(Sees(), listed, **ONE).records
    assert (record.status, record.state.calls, record.parity.calls, record.notes) == ("ok", 3, 3, ())
    assert set(seen) == {3, 5, 7}
    with profiling.prepare(Sees(), listed, variant="baseline") as step:
        assert step(torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(InputError, match="inputs is an empty list"):
        profiling.profile(Sees(), [], **ONE)
    with pytest.raises(InputError, match=r"inputs\[1\] do not fit Sees\.forward\(x\)"):
        profiling.profile(Sees(), [*listed[:1], {"y": torch.ones(2)}], **ONE)


@dataclass(frozen=True)
class Replayed(Compiler):
    """Stands for what runs none of the module's Python code."""

    runs_no_python: ClassVar[bool] = True

    def compile(self, module, examples, folder, written):
        return Outcome(lambda x: module.layer(x), changed=1)


class CountsCalls(nn.Module):
    """Counts its calls for statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


def test_a_counter_that_outputs_do_not_depend_on_is_allowed():
    given, recipe = {"x": torch.ones(2, 4)}, Recipe(compiler=Replayed())
    refusal = r"Replayed cannot follow the module's state: `calls` is a Python number that each call changes \(\d → \d"
    with pytest.raises(InputError, match=refusal):
        profiling.prepare(CountsCalls(), given, recipe)
    profiling.prepare(CountsCalls(), given, recipe, allow=["calls"]).close()
    for allow, status in (((), "skipped"), (["calls"], "ok")):
        both = profiling.profile(CountsCalls(), given, {"baseline": Recipe(), "mine": recipe}, allow=allow, **QUICK)
        assert {record.variant: record.status for record in both.records} == {"baseline": "ok", "mine": status}


def test_the_limit_of_recompiles_names_the_number_and_its_line(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "data" / "outside"))
    module = importlib.import_module("stateful_nets").Position()
    x = torch.ones(2, 8)
    with pytest.warns(UserWarning, match=r"torch\.compile recompiles in each call: self\.pos == \d"):
        step = profiling.prepare(module, {"x": x}, variant="compile")
    says = r"self\.pos == \d+ no longer holds at tests/data/outside/stateful_nets\.py:\d"
    with step, torch._dynamo.config.patch(recompile_limit=11), pytest.raises(RuntimeError, match=says):
        [step(x) for _ in range(16)]


def test_what_cannot_be_prepared_is_one_line():
    with pytest.raises(InputError, match=r"variant='compile\+cuda_graph' cannot run here: CUDA graphs need a CUDA"):
        profiling.prepare(Net(), inputs())
    module = Net()
    with pytest.raises(InputError, match=r"Net\.forward raised RuntimeError: mat1 and mat2 .*x float32 \[4, 9\]"):
        profiling.prepare(module, {"x": torch.ones(4, 9)}, variant="baseline")
    assert (module.training, module.calls.item()) == (True, 0), "as it was before the call that failed"
    with pytest.raises(InputError, match=r"is not a torch\.nn\.Module"):
        profiling.prepare(Net, inputs(), variant="baseline")


@dataclass(frozen=True, kw_only=True)
class EndsBadly(Variant):
    """Call the module; its step cannot be closed."""

    def __call__(self, component, folder):
        def close():
            raise RuntimeError("planted")

        return Step(run=component.call, close=close)


def test_a_step_that_cannot_be_closed_leaves_the_module_as_it_was():
    module = Net().train()
    step = profiling.prepare(module, inputs(), EndsBadly())
    assert not module.training
    with pytest.raises(RuntimeError, match="planted"):
        step.close()
    assert module.training
    with pytest.raises(InputError, match="this step is closed"):
        step(**inputs())


def test_compiled_steps_may_be_closed_in_any_order(tmp_path):
    config = torch._dynamo.config
    before = config.recompile_limit, config.fail_on_recompile_limit_hit
    first, second = ExitStack(), ExitStack()
    for stack in (first, second):
        stack.enter_context(Inductor().flags(tmp_path))
    first.close()
    assert config.fail_on_recompile_limit_hit
    second.close()
    assert (config.recompile_limit, config.fail_on_recompile_limit_hit) == before


def test_what_a_process_imports_and_draws():
    """The package alone imports nothing large; a first use draws no number; what compiles nothing needs no Dynamo.

    Importing Dynamo takes seconds. Torch would import it for the dispatch mode that watches calls.
    """
    code = """
import random, sys, profiling
assert set(profiling.__all__) <= set(dir(profiling))
large = {"torch", "numpy", "hydra", "msgspec", "rich", "yaml"} & set(sys.modules)
assert not large, large
before = random.getstate()
profiling.profile, profiling.prepare, profiling.FrameRecorder
assert random.getstate() == before
import torch
class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
    def forward(self, x):
        self.calls += 1
        return x + self.calls
with profiling.prepare(Counts(), {"x": torch.ones(2)}, variant="baseline") as step:
    assert [float(step(torch.ones(2))[0]) for _ in range(2)] == [2, 3]
sys.exit("Dynamo was imported" if "torch._dynamo" in sys.modules else None)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="has no attribute 'profil'"):
        profiling.profil  # noqa: B018


class Mixed(nn.Module):
    """A module in two dtypes, which casts between them by name."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 64).bfloat16(), nn.Linear(64, 8)

    def forward(self, x):
        return self.head(self.body(x.to(torch.bfloat16)).float())


def of_one_cell(module, x, **options):
    (record,) = profiling.profile(
        module, {next(iter(signature(module.forward).parameters)): x}, **ONE, **options
    ).records
    assert record.status == "ok", record.reason
    return record


def test_a_module_is_measured_in_the_dtypes_that_it_has():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    record = of_one_cell(Mixed(), x)
    assert (record.cast, record.dtype) == ("none", "bfloat16")
    assert record.parameter_dtypes == {"bfloat16": 64 * 65, "float32": 8 * 65}
    # Cast to float32, it would give its half a tensor in bfloat16.
    assert record.parity.reference == "fp32 eager on bfloat16 weights"
    assert 1e-5 < record.parity.eager_rel_l2 < 0.1
    (note,) = (note for note in record.notes if note.startswith("parity against"))
    assert note.startswith("parity against fp32 eager on bfloat16 weights: forward fails (RuntimeError: ")


def test_a_dtype_casts_and_autocast_does_not():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    module = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    cast = of_one_cell(module, x, dtype=torch.bfloat16)
    assert (cast.cast, set(cast.parameter_dtypes), cast.dtype) == ("module", {"bfloat16"}, "bfloat16")
    called = of_one_cell(module, x, autocast=torch.bfloat16)
    assert (called.cast, set(called.parameter_dtypes), called.dtype) == ("autocast", {"float32"}, "bfloat16")
    for record in (cast, called):
        assert record.parity.reference == "fp32 eager"
        assert 1e-4 < record.parity.eager_rel_l2 < 0.1
    with pytest.raises(InputError, match="Give one of them"):
        profiling.profile(module, {"x": x}, dtype=torch.bfloat16, autocast=torch.bfloat16)


def test_a_prepared_step_under_autocast():
    module, x = nn.Linear(8, 8), torch.randn(4, 8)
    kind = type(module)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        expected = module(x)
    with profiling.prepare(module, {"input": x}, "baseline", autocast=torch.bfloat16) as step:
        output = step(input=x)
        assert output.dtype == torch.bfloat16
        torch.testing.assert_close(output, expected)
    assert type(module) is kind


def test_nested_inputs_and_plain_values():
    torch.manual_seed(0)
    module = TakesATuple(4, 4)
    state = tuple(torch.randn(2, 1, 1, 4))
    inputs = {"x": torch.randn(3, 1, 4), "state": state, "options": {"gain": [torch.tensor(2.0)]}, "double": True}
    result = profiling.profile(module, inputs, **ONE)
    (record,) = result.records
    assert (record.status, record.parity.passed) == ("ok", True)
    (note,) = record.notes
    assert note.startswith("parity was checked with the same options['gain'][0] that")
    with profiling.prepare(module, inputs, variant="baseline") as step:
        fresh = {**inputs, "state": tuple(torch.randn(2, 1, 1, 4))}
        torch.testing.assert_close(step(**fresh), module(**fresh))
        for wrong, says in (
            ({"double": False}, "double is False, it was prepared for True"),
            ({"state": state[:1]}, r"state\.1 \(float32 \[1, 1, 4\]\) is missing. It was prepared with x, state, "),
            ({"options": {"gain": [torch.zeros(3)]}}, r"options\['gain'\]\[0\] is float32 \[3\]"),
            ({"options": {"gain": [2.0]}}, r"options\.gain\.0 is 2\.0, and was float32 \[\]"),
        ):
            with pytest.raises(InputError, match=says):
                step(**{**inputs, **wrong})
