"""From Python: a module that a script holds is measured as by the command, and is left as it was."""

import errno
import gc
import itertools
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from fixed_component import Net as Planted
from make_record import record as made_record
from torch import nn

import profiling
from profiling.compare.__main__ import main as compare
from profiling.components.held import shuffled
from profiling.errors import InputError
from profiling.metrics.latency import Latency
from profiling.metrics.parity import Parity
from profiling.report import render
from profiling.report.__main__ import main as report
from profiling.report.result import RunResult
from profiling.results.environment import read_environment
from profiling.results.jsonl import append_record
from profiling.run.cell import inputs_text
from profiling.variants.recipe import Recipe
from profiling.variants.rewrite import Rewrite
from profiling.variants.transforms import ChannelsLast
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


def inputs():
    return {"x": torch.randn(4, 8, generator=torch.Generator().manual_seed(0))}


def measured(module, given, **options):
    """Measure the baseline alone, and return its record, which must be ok."""
    (record,) = profiling.profile(module, given, **{**ONE, **options}).records
    assert record.status == "ok", record.reason
    return record


@dataclass(frozen=True, kw_only=True)
class Other(Variant):
    """Call the module; a variant of the script's own."""

    def __call__(self, component, folder):
        return Step(run=component.call)


@pytest.fixture(scope="module")
def result():
    variants = {"baseline": Recipe(), "other": Other(), "idle": Recipe(transforms=[ChannelsLast()])}
    return profiling.profile(Net(), inputs(), variants, fps=0.001, **QUICK)


def test_records_and_the_answer(result):
    statuses = {record.cell: record.status for record in result.records}
    assert statuses == {("Net", "baseline"): "ok", ("Net", "other"): "ok", ("Net", "idle"): "skipped"}
    best = result.best("Net")
    assert best is result.best()
    assert (best.parity.passed, best.weights, best.notes) == (True, "the caller's", ())
    assert best.inputs == "x 4×8"
    said = " ".join(str(result).split())
    assert "0.001 FPS: undecided: 0 of " in said, "too few calls to tell"
    assert f"Net, {best.variant}: max " in said, "which carry no p99 either"
    assert "1 cell skipped: idle (" in said
    assert repr(result) == str(result), "a notebook shows it by itself"
    with pytest.raises(InputError, match=r"best\('net'\): name one of Net"):
        result.best("net")


def test_inputs_are_recorded_by_shapes_and_plain_values_whatever_their_dtype():
    class Cache:
        def __init__(self, length):
            self.keys, self.uses = torch.zeros(2, length), time.monotonic()

    for dtype in (torch.float32, torch.bfloat16):
        given = {"x": torch.zeros(4, 8, dtype=dtype), "t": torch.tensor(1.0), "steps": 4, "size": (8, 16)}
        assert inputs_text({**given, "cache": Cache(9)}) == (
            "cache.keys 2×9, size.0 8, size.1 16, steps 4, t scalar, x 4×8"
        )
    many = [inputs_text({"rows": [torch.zeros(shape)] * 6}) for shape in ((2, 3), (3, 2), (2, 3))]
    assert many[0] == many[2] != many[1]
    assert many[0].startswith("rows with 6 tensors and values (checksum ")


def test_a_saved_result_is_a_run(result, tmp_path, capsys):
    for name in "aab":
        result.save(tmp_path / name)
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


def test_a_result_whose_report_cannot_be_written_is_saved_and_says_so(result, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(render, "write_text", cannot_be_written)
        with pytest.raises(InputError, match=r"report\.html could not be written: No space left on device\..*report"):
            result.save(tmp_path / "a")
    assert result.save(tmp_path / "a").joinpath("report.html").exists()


def cannot_be_written(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_folder_of_a_result_ends_with_it_but_not_with_a_forked_worker(tmp_path):
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
    _, record = run.records
    assert (record.variant, record.status) == ("mine", "ok"), record.reason
    assert [(step.kind, step.name) for step in record.recipe] == [("transform", "rescaled"), ("transform", "Rewrite")]
    assert all(map(torch.equal, before, module.parameters())), "a copy was transformed"
    with profiling.prepare(module, inputs(), recipe) as step:
        torch.testing.assert_close(step(**inputs()), module(**inputs()))


def unchanged(module):
    return module


def test_equal_code_is_not_called_wrong_where_eager_is_as_wrong_after_the_timing():
    """It multiplies by the number of its calls, which nothing that is put back holds."""
    calls = itertools.count(1)
    module = Planted(lambda self, x: self.linear(x) * next(calls), linear=nn.Linear(8, 8))
    variants = {"baseline": Recipe(), "same": Recipe(transforms=[unchanged])}
    result = profiling.profile(module, {"x": torch.ones(2, 8)}, variants, **QUICK)
    reasons = [record.reason for record in result.records]
    assert all("undecided: " in reason for reason in reasons), reasons
    assert not any("wrong after it" in reason for reason in reasons), reasons


def test_seconds_end_the_turns():
    calls = {"min_iterations": 10**6, "max_iterations": 10**6, "warmup_min_iterations": 1}
    latency = Latency(**calls, warmup_max_seconds=0.2)
    options = {**QUICK, "metrics": {"parity": Parity(), "latency": latency}}
    run = profiling.profile(Net(), inputs(), {"baseline": Recipe(), "other": Recipe()}, seconds=0.5, **options)
    assert {record.turns.stopped_by for record in run.records} == {"time"}


def test_in_one_process_a_baseline_that_has_ended_holds_no_memory(monkeypatch):
    """Where another cell does not fit beside it, the cell that follows needs the memory of the first one."""
    built, alive = [], []

    def build():
        gc.collect()
        alive.append(sum(each() is not None for each in built))
        module = nn.Linear(4, 4)
        built.append(weakref.ref(module))
        return module

    measured(build, {"input": torch.zeros(2, 4)})
    with_one, before = max(alive), len(alive)
    monkeypatch.setattr("profiling.run.in_turns.CellsInTurns.lacking_memory", lambda *_: "there is none")
    variants = {"baseline": Recipe(), "again": Recipe()}
    profiling.profile(build, {"input": torch.zeros(2, 4)}, variants, **QUICK)
    assert max(alive[before:]) <= with_one


def test_everything_is_left_as_it_was():
    module, given = Net().bfloat16(), {"x": torch.randn(4, 8, dtype=torch.bfloat16)}
    module.body[2].eval()  # one part is in another mode than the others
    module(**given)["y"].sum().backward()
    module.register_forward_hook(lambda *_: None)
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
        record = measured(module, given)
        assert state() == before
    finally:
        torch.use_deterministic_algorithms(False)
    assert record.dtype == "bfloat16"


def test_a_process_that_the_application_starts_meanwhile_stays_its_own():
    module, started = Net(), list[subprocess.Popen[bytes]]()

    def start(*_):
        if not started:
            started.append(subprocess.Popen(["sh", "-c", "exit 3"], start_new_session=True))

    module.register_forward_hook(start)
    measured(module, {"x": torch.randn(4, 8)})
    assert [each.wait() for each in started] == [3], "its exit code is not taken from it"


def test_tf32_as_torchs_current_interface_sets_it():
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        result = profiling.profile(Net(), inputs(), **ONE)
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
    assert read_environment(result.folder).tf32 is True


class Scaled(nn.Module):
    def forward(self, x, factor: float = 2.0):
        return x * factor


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_torchscript_module():
    module = torch.jit.script(Scaled())
    measured(module, {"x": torch.randn(4, 8)})
    with pytest.raises(InputError, match=r"inputs do not fit .*forward\(x, factor=2\.0\): missing .*'x'"):
        profiling.profile(module, {"factor": 3.0}, **ONE)
    with profiling.prepare(module, {"x": torch.ones(4, 8)}, variant="baseline") as step:
        assert torch.equal(step(torch.full((4, 8), 3.0)), torch.full((4, 8), 6.0))


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm:FutureWarning")
def test_a_weight_that_a_hook_computes_is_copied_and_frozen_parameters_count():
    """The weight of the older `weight_norm` is an attribute with a history, which Python alone cannot copy."""
    module = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 8)), nn.Linear(8, 8).requires_grad_(False))
    before = module[0].weight
    record = measured(module, {"input": torch.randn(4, 8)})
    assert module[0].weight is before
    assert before.grad_fn is not None
    assert record.parameter_dtypes == {"float32": record.parameters} == {"float32": 2 * 72 + 8}


class Cache:
    """Keys of the calls so far, as a transformers DynamicCache has them; forward assigns longer ones."""

    def __init__(self) -> None:
        self.keys = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


def decodes(self, x, cache, again=None):
    """Average over the cache, after the input has been appended to it."""
    assert again in (None, cache), "they were one object"
    cache.keys = torch.cat([cache.keys, x])
    return cache.keys.mean(0), cache


def test_a_cache_among_the_inputs_is_copied_and_each_module_begins_with_it_as_it_was():
    cache = Cache()
    before = cache.keys
    measured(Planted(decodes), {"x": torch.ones(1, 8), "cache": cache, "again": cache})
    assert cache.keys is before
    cache.lock = threading.Lock()
    with pytest.raises(InputError, match=r"inputs: a Cache cannot be copied .*Pass a function `seed -> inputs`"):
        profiling.profile(Planted(decodes), {"x": torch.ones(1, 8), "cache": cache}, **ONE)


def test_a_module_that_runs_out_of_memory_is_no_wrong_input():
    hungry = Planted(lambda self, x: x + torch.empty(2**60).sum())
    (record,) = profiling.profile(hungry, {"x": torch.ones(4)}, **ONE).records
    assert (record.status, record.bad_input) == ("failed", False)
    assert "DefaultCPUAllocator" in record.reason


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr])
def test_where_the_check_has_no_other_inputs_a_note_says_so(layout):
    """A mask, and a sparse tensor, stay as they are."""
    mask, product = torch.eye(4), Planted(lambda self, a: a @ self.weight, weight=nn.Parameter(torch.randn(4, 4)))
    given = {"a": mask if layout == torch.strided else mask.to_sparse(layout=layout)}
    one = profiling.profile(product, given, **ONE)
    assert any("give other ones as check_inputs" in note for note in one.records[0].notes)
    assert "check_inputs" in str(one)
    if layout == torch.strided:
        assert measured(product, given, check_inputs={"a": 1 - mask}).notes == ()


def test_inputs_drawn_from_a_seed_and_a_function_that_builds_the_module():
    seeds = set()

    def draw(seed):
        seeds.add(seed)
        return {"input": torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))}

    measured(partial(nn.Linear, 8, 8), draw)
    assert len(seeds) > 1


def test_inputs_as_a_list_of_calls():
    seen = set()

    class Sees(nn.Module):
        def forward(self, x):
            seen.add(x[0].item())
            return x * 2

    listed = [{"x": torch.full((2,), float(value))} for value in (3, 5, 7)]
    record = measured(Sees(), listed)
    assert (record.state.calls, record.parity.calls, record.notes) == (3, 3, ())
    assert seen == {3, 5, 7}
    with profiling.prepare(Sees(), listed, variant="baseline") as step:
        assert step(torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(InputError, match="inputs is an empty list"):
        profiling.profile(Sees(), [], **ONE)
    with pytest.raises(InputError, match=r"inputs\[1\] do not fit Sees\.forward\(x\)"):
        profiling.profile(Sees(), [*listed[:1], {"y": torch.ones(2)}], **ONE)


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
    net = nn.Sequential(nn.Linear(8, 8), CompiledBlock() if how == "class" else Block())
    if how == "whole":
        return torch.compile(net, backend=refuses)
    if how == "part":
        net[1].layer = torch.compile(net[1].layer, backend=refuses)
    if how == "in place":
        net[1].compile(backend=refuses)
    if how == "method":
        net[1].forward = torch.compile(net[1].forward, backend=refuses)
    return net


@pytest.mark.parametrize(
    ("how", "part"),
    [("whole", "the module"), ("part", "1.layer"), ("in place", "1"), ("method", "1.forward"), ("class", "1.forward")],
)
def test_inside_of_a_compiled_module(how, part):
    module, x = compiled(how), torch.randn(2, 8)
    parts = [*module.modules()]
    record = measured(module, {"input": x})
    assert (record.component, record.parameters) == ("Sequential", 144)
    note = f"{part} was compiled already (torch.compile): what is inside is measured, and variants compile it"
    assert [each for each in record.notes if "compiled already" in each] == [note]
    with (
        pytest.warns(UserWarning, match="compiled already"),
        profiling.prepare(module, {"input": x}, variant="baseline") as step,
    ):
        output = step(x)
    assert [id(each) for each in module.modules()] == [id(each) for each in parts], "as the caller had it"
    with pytest.raises(Exception, match="what the user compiled is called"):
        module(x)
    torch._dynamo.reset()
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(module(x), output)


def test_a_function_that_builds_a_compiled_module():
    record = measured(partial(compiled, "whole"), {"input": torch.ones(2, 8)})
    assert record.component == "module"
    assert any("the module was compiled already" in note for note in record.notes)


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


@pytest.mark.parametrize("name", ["float8_e4m3fn", "uint16", "complex32", "float4_e2m1fn_x2"])
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_shuffled_keeps_the_values_of_dtypes_that_torch_compares_not(name):
    dtype = getattr(torch, name)
    numbers = torch.tensor([5, 3, 6, 1, 7, 2, 4, 0], dtype=torch.uint8)
    tensor = numbers.view(dtype) if name.startswith("float4") else numbers.float().to(dtype)
    again = shuffled(tensor, torch.Generator().manual_seed(0))
    width = tensor.itemsize
    values, kept = (each.view(torch.uint8).reshape(-1, width).tolist() for each in (again, tensor))
    assert sorted(values) == sorted(kept)
    assert (values == kept) == name.startswith("float4")


class MakesFloats(nn.Linear):
    def forward(self, input):
        return super().forward(input * torch.ones(64))


def test_a_module_is_measured_in_the_dtypes_that_it_has():
    """It casts between its two dtypes by name."""
    parts = {"body": nn.Linear(64, 64).bfloat16(), "head": nn.Linear(64, 8)}
    mixed = Planted(lambda self, x: self.head(self.body(x.to(torch.bfloat16)).float()), **parts)
    record = measured(mixed, {"x": torch.randn(4, 64, generator=torch.Generator().manual_seed(0))})
    assert (record.cast, record.dtype) == ("none", "bfloat16")
    assert record.parameter_dtypes == {"bfloat16": 64 * 65, "float32": 8 * 65}
    # Cast to float32, it would give its half a tensor in bfloat16.
    assert record.parity.reference == "fp32 eager on bfloat16 weights"
    assert 1e-5 < record.parity.eager_rel_l2 < 0.1
    (note,) = (note for note in record.notes if note.startswith("parity against"))
    assert note.startswith("parity against fp32 eager on bfloat16 weights: forward fails (RuntimeError: ")


def test_a_dtype_casts_and_autocast_does_not():
    given = {"input": torch.randn(4, 64, generator=torch.Generator().manual_seed(0))}
    cast = measured(nn.Linear(64, 8), given, dtype=torch.bfloat16)
    assert (cast.cast, set(cast.parameter_dtypes), cast.dtype) == ("module", {"bfloat16"}, "bfloat16")
    called = measured(MakesFloats(64, 8), given, autocast=torch.bfloat16)
    assert (called.cast, set(called.parameter_dtypes), called.dtype) == ("autocast", {"float32"}, "bfloat16")
    for record in (cast, called):
        assert record.parity.reference == "fp32 eager"
        assert 1e-4 < record.parity.eager_rel_l2 < 0.1
    with pytest.raises(InputError, match=r"same dtype.* casts weights to bfloat16 \(cast: module\).* cast: autocast"):
        profiling.profile(MakesFloats(64, 8), given, dtype=torch.bfloat16, **ONE)


def test_what_a_process_imports_and_draws(tmp_path):
    """The package alone imports nothing large, nor does recording frames; a first use draws no number.

    What compiles nothing needs no Dynamo, which takes seconds. Torch would import it for the mode that watches calls.
    """
    code = """
import random, sys, profiling
assert set(profiling.__all__) <= set(dir(profiling))
large = {"torch", "numpy", "hydra", "msgspec", "rich", "yaml"} & set(sys.modules)
assert not large, large
frames = profiling.FrameRecorder(fps=60)
for _ in range(3):
    with frames.frame(), frames.stage("world"):
        pass
assert not {"torch", "hydra", "omegaconf", "scipy"} & set(sys.modules)
frames.save(sys.argv[1])
assert not {"torch", "hydra"} & set(sys.modules)
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
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(start, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    recorded = read_environment(tmp_path / "run")
    assert (recorded.device.type, recorded.command[:6]) == ("cpu", "python")
    with pytest.raises(AttributeError, match="has no attribute 'profil'"):
        profiling.profil  # noqa: B018


def test_a_quiet_call_prints_nothing():
    """Torch's profiler, by which the roofline knows the operators, logs two lines for each of its sessions."""
    script = """import torch, profiling
net = torch.nn.Linear(8, 8)
profiling.profile(net, {"input": torch.ones(2, 8)}, ["baseline"], metrics=["latency"], seconds=1, quiet=True)
"""
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
