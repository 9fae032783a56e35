"""Wrong input."""

import importlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
import torch
from as_user import OUTSIDE, QUICK, ROOT, command, environment
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from table import promise

import profiling.compare.__main__ as compare
import profiling.report.__main__ as report
from profiling import history
from profiling.cli.app import launch
from profiling.cli.config import read_component
from profiling.errors import InputError, shell_words
from profiling.machine import run_queue
from profiling.metrics import memory, monitor
from profiling.results.jsonl import append_record, read_records
from profiling.results.record import Record

NET = ("component=[net]", "variant=[baseline]")
COMPILED, PASSES = ("component=[net]", "variant=[compile]"), ("component=[net]", "variant=[fx_cuda_graph]")
COMPILER = "step.compile"
OWN = ("component=[net]", "variant=[own_halved_twice]")


def rows(group):
    """Make a parameter of each row: (what is planted, overrides, words of the line)."""
    return [pytest.param(overrides, says, id=planted) for planted, overrides, says in group]


@pytest.fixture
def started(tmp_path, monkeypatch, capsys):
    """Run a target in this process; return (exit code, error lines)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.syspath_prepend(str(tmp_path))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}

    def start(*overrides, target="generic_forward", config_dir=OUTSIDE, quick=(*QUICK, "isolation=none"), run=None):
        given = {item.partition("=")[0].lstrip("+~") for item in overrides}
        defaults = [item for item in quick if item.partition("=")[0] not in given]
        monkeypatch.setattr(sys, "argv", ["-", f"--config-dir={config_dir}", *defaults, *overrides])
        if run is not None:
            return launch(target, run), capsys.readouterr().err
        file = target if (Path(__file__).parents[2] / "profiling" / f"{target}.py").is_file() else f"{target}.__main__"
        code = launch(target, importlib.import_module(f"profiling.{file}").run)
        return code, capsys.readouterr().err

    yield start
    for number, handler in handlers.items():
        signal.signal(number, handler)


def is_refused(outcome, says):
    code, err = outcome
    assert code == 2, err
    (line,) = (line for line in err.splitlines() if not line.startswith("run: "))  # the progress of the check
    assert line.startswith("error: ")
    assert says in line
    assert not list(Path("runs").rglob("*.*")), "nothing is left"


ARGUMENTS = (
    ("a number in place of a component", ("component=[5]", "variant=[baseline]"), "component=[NAME,NAME]"),
    ("another config than that of the target", ("--config-name=tune",), "each target has one config"),
    ("a component that YAML reads as a number", ("component=[nan]",), "(nan is read as a number)"),
    ("null in place of the components", ("component=null", "variant=[baseline]"), "component=[NAME,NAME]"),
    ("null in place of the variants", ("component=[net]", "variant=null"), "variant=[NAME,NAME]"),
    ("null in place of the metrics", (*NET, "metric=null"), "metric=[NAME,NAME]"),
    ("a number in place of the settings", (*NET, "settings=5"), "settings=NAME"),
    ("an unknown component", ("component=[nte]", "variant=[baseline]"), "Did you mean"),
    ("an unknown variant", ("component=[net]", "variant=[compil]"), "Did you mean 'compile'"),
    ("an unknown metric", (*NET, "metric=[latncy]"), "Did you mean 'latency'"),
    ("an unknown key", (*NET, "tarce=true"), "Did you mean 'trace'"),
    ("a key of a component that was not chosen", (*NET, "component.ney.checkpoint=x"), "component.net"),
    ("an unknown option of a compiler", (*COMPILED, f"{COMPILER}.moed=a"), "mode"),
    ("an unknown mode", (*COMPILED, f"{COMPILER}.mode=fast"), "max-autotune"),
    ("an unknown option of inductor", (*COMPILED, f"+{COMPILER}.options.max_autotun=true"), "max_autotune"),
    ("a flag of a compiler that is text", (*COMPILED, f"{COMPILER}.fullgraph=a"), "fullgraph must be true or false"),
    ("a mode of a compiler that is a list", (*COMPILED, f"{COMPILER}.mode=[a]"), "mode must be text"),
    ("an option of a recipe in place of one of its step", (*COMPILED, "variant.compile.mode=a"), "step.compile.mode="),
    ("an unknown key of a recipe", (*OWN, "+variant.own_halved_twice.compilr=null"), "Did you mean 'compiler'"),
    ("a compiler that is text", (*OWN, "variant.own_halved_twice.compiler=a"), "compiler='a' is no Compiler"),
    (
        "a compiler without its class",
        (*OWN, "variant.own_halved_twice.compiler={mode: default}"),
        "is no Compiler. Give it a",
    ),
    ("a variant whose _target_ is no text", (*OWN, "+variant.own_halved_twice._target_=5"), "dotted path"),
    ("two compilers in a recipe", ("component=[net]", "variant=[compile+aot_inductor]"), "compile and aot_inductor"),
    ("an option without its compiler", ("component=[net]", "variant=[pdl+cuda_graph]"), "pdl needs compile or"),
    (
        "a step that does not exist",
        ("component=[net]", "variant=[int8_weigths+compile]"),
        "Did you mean 'int8_weights'",
    ),
    ("one recipe under two names", ("variant=[compile+cuda_graph,compile_cuda_graph]",), "both are the recipe"),
    ("a nested option of inductor", (*COMPILED, f"+{COMPILER}.options.triton.max_tiles=2"), "as one key: '+step"),
    ("a capture without its class", (*OWN, "variant.own_halved_twice.capture={warmup: 3}"), "Give it a _target_"),
    ("no warm-up calls before a capture", (*PASSES, "step.cuda_graph.warmup=0"), "warmup=0"),
    ("transforms that are no list", (*OWN, "variant.own_halved_twice.transforms=5"), "is no list"),
    ("a transform that cannot be called", (*OWN, "variant.own_halved_twice.transforms=[5]"), "_partial_"),
    ("a flag of a metric that is text", (*NET, "metric.latency.cold=a"), "cold must be true or false"),
    ("passes that are a number", (*PASSES, "step.fx_passes.passes=5"), "variant.fx_passes+cuda_graph"),
    ("passes that cannot be called", (*PASSES, "step.fx_passes.passes=[5]"), "_partial_"),
    ("an unknown device", (*NET, "device=gpu"), "cuda"),
    ("an unknown dtype", (*NET, "dtype=float15"), "Did you mean 'float16'"),
    ("an unknown scale", (*NET, "scale=small"), "tiny"),
    ("an unknown choice of ceilings", (*NET, "ceilings=always"), "ceilings=always is none of auto, off."),
    ("an unknown isolation", (*NET, "isolation=thread"), "process"),
    ("no iterations", (*NET, "metric.latency.max_iterations=0"), "at least 1"),
    ("a number of iterations that is text", (*NET, "metric.latency.max_iterations=many"), "max_iterations"),
    ("no time for a cell", (*NET, "cell_timeout=0"), "cell_timeout"),
    ("a seed that is text", (*NET, "seed=one"), "seed"),
    ("a checkpoint that is not there", (*NET, "+component.net.checkpoint=missing.pt"), "does not exist"),
    ("a checkpoint is required, and there is none", (*NET, "checkpoint=required"), "component.net.checkpoint=PATH"),
    ("a folder to resume that is not there", (*NET, "resume=no_run"), "no such folder"),
    ("a key that its YAML does not list", (*NET, "component.net.kind=image"), "+component.net.kind=VALUE"),
    ("a misspelt key of a module", (*NET, "component.net.module.widht=3"), "Did you mean"),
    ("no component", ("component=[]", "variant=[baseline]"), "Name at least one component"),
    ("a deleted option (`~device`)", (*NET, "~device"), "cannot be deleted"),
    ("a value without a key (`=5`)", (*NET, "=5"), "names no key"),
    ("the same option twice", (*NET, "seed=1", "seed=2"), "seed is given twice"),
    ("the same option twice, once with a plus", (*NET, "seed=1", "++seed=1"), "seed is given twice"),
    ("an empty argument", (*NET, ""), "--help"),
    ("a word that is no KEY=VALUE", (*NET, "seed"), "cannot read seed. Write KEY=VALUE"),
    ("a list that does not end", (*NET, "metric=[latency"), "cannot read metric=[latency. "),
    ("a value that ends with a comma", (*NET, "seed=1,"), "cannot read seed=1,. "),
    ("a value with a quote or letters beyond ASCII", (*NET, "dtype=flöat"), "\"dtype='...'\""),
    ("an unknown option (`--nope`)", (*NET, "--nope"), "--help"),
    ("an option between two keys", (*NET, "--config-dir=x", "seed=1"), "before the first KEY=VALUE"),
    ("a key with dashes (`--seconds=3`)", (*NET, "--seconds=3"), "write seconds=3"),
    ("an option without its value", (*NET, "--config-name"), "expected one argument"),
    ("an argument with a line break", (*NET, "device=cpu\n"), "control characters"),
    ("an argument that is not UTF-8", (*NET, os.fsdecode(b"device=\xff")), "not UTF-8"),
    ("an argument that is cut off", (*NET, "seed=${"), "seed="),
    ("a reference to a key that is not there", (*NET, "seed=${nope}"), "nope"),
    ("an option that refers to itself", (*NET, "seed=${seed}"), "Recursive"),
    ("a list in place of a folder to resume", (*NET, "resume=[a]"), "no such folder"),
    ("null in place of the run's folder", (*NET, "hydra.run.dir=null"), "hydra.run.dir"),
    ("a list in place of a device", (*NET, "device=[cpu]"), "device"),
    ("a flag in place of a number", (*NET, "rounds=true"), "rounds=True"),
    ("text in place of a number of rounds", (*NET, "rounds=many"), "whole number"),
    ("no number in place of a time", (*NET, "cell_timeout=soon"), "cell_timeout"),
)


@promise("option")
@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        # It would hide that of the tool.
        ("variant/baseline.yaml", "baseline: {compiler: null}\n", "baseline.yaml has the name of a recipe of the tool"),
        ("step/mine.yaml", "compile: {_target_: a.b}\n", "the tool has a step compile of its own"),
    ],
)
def test_a_name_of_the_tools_own(started, tmp_path, file, text, says):
    own = tmp_path / "own" / file
    own.parent.mkdir(parents=True)
    own.write_text(text)
    is_refused(started(*NET, config_dir=tmp_path / "own"), says)


@promise("option")
@pytest.mark.parametrize(
    "named",
    [
        pytest.param("empty", id="a component's YAML is here, and --config-dir names another folder"),
        pytest.param("component", id="--config-dir names the folder component itself"),
    ],
)
def test_a_yaml_that_is_nearby(started, tmp_path, named):
    for name in ("empty", "component"):
        (tmp_path / name).mkdir()
    (tmp_path / "component" / "mine.yaml").write_text("mine: {module: {_target_: builtins.int}, inputs: {}}\n")
    is_refused(started("component=[mine]", config_dir=named), "Add --config-dir=. to use component/mine.yaml.")


@promise("option")
def test_a_target_without_a_yaml(started):
    is_refused(started(target="my_target", run=lambda cfg, folder: 0), "Its YAML must be conf/my_target.yaml")


@promise("option")
@pytest.mark.parametrize(("overrides", "says"), rows(ARGUMENTS))
def test_arguments(started, overrides, says):
    is_refused(started(*overrides), says)


COMPONENT = (
    ("a module that is text", "component.net.module=my_package.Net", "module=my_package.Net must be a mapping"),
    ("`tiny: null`", "+component.net.tiny=null", "tiny must be a mapping, not null"),
    ("`tiny: 5`", "+component.net.tiny=5", "tiny must be a mapping"),
    ("`tiny` as a list", "+component.net.tiny=[1]", "tiny must be a mapping, not a list"),
    ("`tiny.inputs: 5`", "+component.net.tiny.inputs=5", "tiny.inputs must be a mapping"),
    ("`tiny.frames_per_call: 0`", "+component.net.tiny.frames_per_call=0", "at least 1"),
    ("an unknown key in `tiny`", "+component.net.tiny.modul=5", "Did you mean 'module'"),
    ("`checkpoint: 5`", "+component.net.checkpoint=5", "checkpoint must be text or null"),
    ("`kind` as a list", "+component.net.kind=[image]", "kind must be text or null"),
    ("an unknown kind", "+component.net.kind=video", "must be image, audio or null"),
    ("a flag in place of frames_per_call", "+component.net.frames_per_call=true", "frames_per_call"),
    ("an unknown key", "+component.net.modul=5", "state, sweep. Did you mean 'module'"),
    ("a key that only the tool sets", "+component.net.point=5", "Leave it out"),
    ("`initialise: 5`", "+component.net.initialise=5", "initialise must be a mapping"),
    ("`sweep: 5`", "+component.net.sweep=5", "sweep must be a mapping"),
    ("`module: null`", "component.net.module=null", "module is missing"),
    ("a _target_ that is no text", "component.net.module._target_=5", "dotted path"),
    ("an empty _target_", "component.net.module._target_=''", "dotted path"),
    ("`inputs: null`", "component.net.inputs=null", "inputs is missing"),
    ("`inputs: 5`", "component.net.inputs=5", "inputs=5 must be a mapping"),
    ("a misspelt shape", "+component.net.inputs.y={shpae:[2,8]}", "Did you mean 'shape' by 'shpae'"),
    ("an input without a shape", "+component.net.inputs.y={dtype:int64,high:9}", "has no shape"),
    ("a misspelt shape deep inside", "+component.net.inputs.y=[{z:{shape:[2],lwo:1}}]", "y.0.z.lwo is unknown"),
    ("an input of an unknown dtype", "+component.net.inputs.x.dtype=float99", "Did you mean 'float64'"),
    (
        "normal numbers as integers",
        "+component.net.inputs.y={shape:[2],dtype:int64,distribution:normal}",
        "does not fit dtype=int64, which takes integers or bernoulli",
    ),
    (
        "a uniform mask",
        "+component.net.inputs.y={shape:[2],dtype:bool,distribution:uniform}",
        "which takes bernoulli. Write {shape: [2], dtype: bool}",
    ),
    (
        "integers without a range",
        "+component.net.inputs.y={shape:[2],dtype:int64}",
        "Write {shape: [2], dtype: int64, low: 0, high: 1000}",
    ),
    (
        "integers beyond their dtype",
        "+component.net.inputs.y={shape:[2],dtype:uint8,high:300}",
        "within uint8, 0 to 255",
    ),
    ("a fraction as the end of integers", "+component.net.inputs.y={shape:[2],dtype:int64,high:1.5}", "whole number"),
    ("a range of normal numbers", "+component.net.inputs.y={shape:[2],distribution:normal,low:0}", "has no range"),
    ("a range of a mask", "+component.net.inputs.y={shape:[2],dtype:bool,low:0}", "has no range"),
    ("a value and a range", "+component.net.inputs.y={shape:[2],value:1,low:0}", "Leave one of the two out"),
    ("values that do not fit the shape", "+component.net.inputs.y={shape:[2,3],value:[1,2]}", "cannot be repeated"),
    ("values of different lengths", "+component.net.inputs.y={shape:[2,2],value:[[1],[1,2]]}", "different lengths"),
    ("a value that does not fit the dtype", "+component.net.inputs.y={shape:[2],dtype:bool,value:2}", "2 does not fit"),
    ("a value that is text", "+component.net.inputs.y={shape:[2],value:one}", "is no number"),
    ("a factory of one argument without a name", "+component.net.inputs.y={_target_:''}", "dotted path"),
    ("a shape that is a number", "component.net.inputs.x.shape=5", "shape must be a list"),
    ("a flag in a shape", "component.net.inputs.x.shape=[2,true]", "shape[1] must be a whole number"),
    ("a fraction in a shape", "component.net.inputs.x.shape=[2,8.5]", "shape[1] must be a whole number"),
    ("a negative length in a shape", "component.net.inputs.x.shape=[2,-8]", "positive"),
    ("a shape of a trillion elements", "component.net.inputs.x.shape=[1000000,1000000]", "elements"),
    ("a dtype that is a number", "+component.net.inputs.x.dtype=5", "dtype must be text"),
    ("an unknown distribution", "+component.net.inputs.x.distribution=gaussian", "normal"),
    ("a distribution that is a list", "+component.net.inputs.x.distribution=[1]", "distribution must be text"),
    ("a bound that is text", "component.net.inputs.gain.low=abc", "low must be a number"),
    ("a bound that is not finite", "component.net.inputs.gain.high=inf", "finite"),
    ("bounds in the wrong order", "component.net.inputs.gain.high=0.1", "above low"),
    ("an unknown key of an input", "+component.net.inputs.x.shap=5", "Did you mean 'shape'"),
)


@promise("component yaml")
@pytest.mark.parametrize(("override", "says"), [pytest.param(item, says, id=what) for what, item, says in COMPONENT])
def test_component_yaml(override, says):
    given = OverridesParser.create().parse_override(override)
    key, value = given.key_or_group, given.value()
    node = OmegaConf.load(OUTSIDE / "component" / "net.yaml")
    OmegaConf.update(node, key.removeprefix("component."), value, force_add=True)
    with pytest.raises(InputError) as error:
        read_component("net", OmegaConf.to_container(node)["net"])
    assert says in str(error.value)


@promise("component yaml")
@pytest.mark.parametrize(
    ("override", "says"),
    rows(
        (
            ("a component", "+component.net.inputs.y={shape:[2],value:one}", "is no number"),
            ("a variant that is a number", "variant.baseline=5", "variant.baseline=5 is no mapping"),
            ("a metric without _target_", "~metric.latency._target_", "metric.latency has no _target_"),
        )
    ),
)
def test_yaml_of_each_group(started, override, says):
    is_refused(started(*NET, override), says)


#: By target: what is planted, overrides, words of the line.
TARGETS = {
    "realtime": (
        ("`loop: 5`", ("loop=5",), "loop"),
        ("text in place of frames", ("loop.frames=many",), "loop.frames"),
        ("a list in place of a schedule", ("loop.schedule=[a]",), "loop.schedule"),
        ("a number in place of the actions", ("loop.actions=5",), "loop.actions"),
        ("`stages: 5`", ("stages=5",), "stages"),
        ("`mix` with a list", ("mix=[a]",), "mix"),
        ("a mix of lists", ("mix={world:[a],picture:[b],sound:[c]}",), "mix.world"),
        ("a deleted loop", ("~loop",), "cannot be deleted"),
    ),
    "shape_sweep": (
        ("`values: {}`", ("component=[net]", "values={}"), "values"),
        ("text among the values", ("component=[net]", "values=[1,a]"), "values"),
        ("a list in place of the axis", ("component=[net]", "axis=[x]"), "axis"),
        ("an axis that is not there", ("component=[net]", "axis=y.1"), "axis"),
        (
            "inputs without a tensor",
            ("component=[net]", "component.net.inputs.x=5", "component.net.inputs.gain=5"),
            "has a shape",
        ),
        ("a value of a trillion", ("component=[net]", "values=[1000000000000]"), "elements"),
    ),
    "training_step": (
        ("`training: 5`", ("training=5",), "training"),
        ("no steps", ("training.steps=0",), "training.steps"),
        ("a misspelt option", ("+training.stesp=3",), "Did you mean 'steps'"),
        ("a misspelt optimizer", ("optimizer=sdg",), "Did you mean 'sgd'"),
        (
            "a transform that only forward passes have",
            ("variant=[channels_last_compile]",),
            "variant.channels_last+compile.transforms are for forward passes",
        ),
        ("text in place of steps", ("training.steps=many",), "training.steps"),
        ("changes that are text", ("training.lr_changes=[[1,a]]",), "lr_changes"),
        ("changes that are a number", ("training.lr_changes=5",), "lr_changes"),
        ("`optimizer: null`", ("optimizer=null",), "optimizer"),
        ("an optimizer that is a number", ("optimizer._target_=5",), "optimizer"),
    ),
    "launch_overhead": (
        ("`trace=true`", ("trace=true",), "no step to trace"),
        ("text in place of rounds", ("calibration.rounds=many",), "rounds"),
        ("`calibration: 5`", ("calibration=5",), "calibration"),
        ("counts that are text", ("calibration.counts=[a,b,c]",), "counts"),
        ("a component", ("component=[net]",), "component"),
    ),
    "tune": (
        ("an unknown step", ("component=[net]", "steps=[cuda_grph]"), "Did you mean 'cuda_graph'"),
        ("no steps", ("component=[net]", "steps=[]"), "leaves nothing to search"),
        ("a step without the one that it needs", ("component=[net]", "steps=[pdl]"), "needs compile or"),
        (
            "a key that no step has",
            ("component=[net]", "+step.compile.rules.cost=1"),
            "step.compile.rules.cost is unknown",
        ),
        ("no seconds", ("component=[net]", "seconds=0"), "seconds=0"),
        ("`seconds: null`", ("component=[net]", "seconds=null"), "needs a budget"),
        ("a negative limit of the error", ("component=[net]", "max_rel_l2=-1"), "max_rel_l2"),
        ("two components", ("component=[net,image_decoder]",), "Start a search for each"),
        ("all in one process", ("component=[net]",), "a search times recipes in processes of their own"),
        ("a device twice", ("component=[net]", "devices=[cpu,cpu]", "device=auto", "isolation=process"), "twice"),
        ("devices that are no list", ("component=[net]", "devices=cpu", "isolation=process"), "devices=[cuda:0"),
        (
            "more devices than alternatives among the steps",
            ("component=[net]", "steps=[channels_last]", "devices=[cpu,cpu:0]", "device=auto", "isolation=process"),
            "these steps are searched on 1 at most",
        ),
        ("variants", ("component=[net]", "variant=[compile]"), "variant"),
    ),
}


@promise("option")
@pytest.mark.parametrize(
    ("target", "overrides", "says"),
    [
        pytest.param(target, items, says, id=f"{target}: {what}")
        for target, group in TARGETS.items()
        for what, items, says in group
    ],
)
def test_targets(started, target, overrides, says):
    quick = ("device=cpu", "scale=tiny", "threads=1", "ceilings=off", "isolation=none")
    is_refused(started(*overrides, target=target, quick=quick), says)


LAUGHS = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
CELLS = (
    ("an input that forward does not have", ("component=[wrong_name]",), "Did you mean 'gain'"),
    ("an input of another shape than forward needs", ("component=[wrong_shape]",), "x float32 [2, 9]"),
    (
        "a module that is not on Python's path",
        ("component=[net]", "component.net.module._target_=elsewhere.Net"),
        "there is no module 'elsewhere'. Run the command in the folder that holds it, or add that folder to PYTHONPATH",
    ),
    (
        "a class without its module",
        ("component=[net]", "component.net.module._target_=Net"),
        "Write the module, too: my_package.Net",
    ),
    (
        "a misspelt option of a function that makes inputs",
        ("component=[nested]", "+component.nested.inputs.position.row=2"),
        "Did you mean 'rows'? It takes rows",
    ),
    (
        "a function that makes inputs without an option that it needs",
        ("component=[nested]", "~component.nested.inputs.position.rows"),
        "missing 1 required keyword-only argument: 'rows'",
    ),
    (
        "a number in place of a tensor",
        ("component=[net]", "component.net.inputs.x=5"),
        "(inputs: x 5, gain float32 [1])",
    ),
    ("a list in place of a tensor", ("component=[wrong_nesting]",), "x.0 float32 [2, 8]"),
)


@promise("module")
@pytest.mark.parametrize(("overrides", "says"), [pytest.param(items, says, id=what) for what, items, says in CELLS])
def test_cells(started, overrides, says):
    code, err = started(*overrides, "variant=[baseline]")
    assert code == 2
    assert says in " ".join(err.split())


FILES = (
    ("is not UTF-8", b"mine: {module: \xff}", "mine.yaml"),
    ("holds a NUL", b"mine: {module: \0}", "mine.yaml"),
    ("is cut off", b"mine: {module: {", "mine.yaml"),
    ("has the same key twice", b"mine: {module: 1, module: 2}", "duplicate key"),
    ("contains itself", b"mine: &x\n  module: {_target_: torch.nn.ReLU, x: *x}\n  inputs: {}\n", "contain itself"),
    ("stands for ten billion values by its aliases", LAUGHS.encode(), "100,000 values"),
    (
        "has 50 MB",
        b"mine: {module: {_target_: a.B}, inputs: {}}\n# " + b"x" * 50_000_000,
        "has 50 MB; a config has at most 2",
    ),
    ("is nested two thousand times", b"mine: " + b"[" * 2000, "nested too deeply"),
    ("is a list", b"- 1\n- 2\n", "component"),
    ("is empty", b"", "mine"),
    ("has a key that is no text", b"5: {module: {_target_: torch.nn.ReLU}}", "mine"),
    ("has another top key", b"other: {module: {_target_: torch.nn.ReLU}, inputs: {input: {shape: [1]}}}", "`mine:`"),
    ("sets a file outside the run as its name", b"../../x: {module: {_target_: a.B}, inputs: {}}", "`mine:`"),
    ("has a date in place of a shape", b"mine: {module: {_target_: a.B}, inputs: {x: {shape: 2026-01-01}}}", "shape"),
    ("has a number as a tuple", b"mine: {module: {_target_: a.B}, inputs: {x: {tuple: 64}}}", "{tuple: [64, 64]}"),
    ("has keys that are numbers", b"mine: {module: {_target_: a.B}, inputs: {5: {shape: [1]}}}", "inputs"),
)


@promise("component yaml")
@pytest.mark.parametrize(("content", "says"), [pytest.param(content, says, id=what) for what, content, says in FILES])
def test_yaml_files(started, tmp_path, content, says):
    (tmp_path / "conf" / "component").mkdir(parents=True)
    (tmp_path / "conf" / "component" / "mine.yaml").write_bytes(content)
    for chosen in ("component=[mine]", "component=mine")[: 1 + (content == b"")]:
        is_refused(started(chosen, "variant=[baseline]", config_dir=tmp_path / "conf"), says)


MODULES = (
    ("has another class", "class Nett: pass", "Did you mean 'Nett'"),
    ("cannot be parsed", "def f(:", "SyntaxError"),
    ("imports what is not installed", "import not_installed_anywhere", "not_installed_anywhere"),
    ("exits when it is imported", "import sys; sys.exit(0)", "SystemExit"),
    ("raises an exception without text", "class E(Exception):\n  def __str__(self): raise ValueError\nraise E", "E: "),
    ("raises an exception of a thousand lines", "raise ValueError('a\\n' * 1000)", "ValueError: a"),
    (
        "does not call super().__init__()",
        "class Net(torch.nn.Module):\n  def __init__(self): pass",
        "super().__init__()",
    ),
    (
        "sets a layer before super().__init__()",
        "class Net(torch.nn.Module):\n  def __init__(self): self.x = torch.nn.ReLU()",
        "Net: ",
    ),
    ("has a layer without sizes", "class Net(torch.nn.LazyLinear):\n  def __init__(self): super().__init__(3)", "lazy"),
    ("is on device meta", "def Net(): return torch.nn.Linear(2, 2, device='meta')", "meta"),
    ("is no module", "def Net(): return 5", "not a torch.nn.Module"),
    ("is not callable", "Net = 5", "Net"),
    ("calls itself without end", "def Net(): return Net()", "RecursionError"),
    ("has inputs that are null", "Net = torch.nn.Identity\ndef inputs(m, **_): pass", "returned a NoneType"),
    (
        "has inputs that are a list",
        "Net = torch.nn.Identity\ndef inputs(m, **_): return [torch.ones(1)]",
        "returned a list",
    ),
    ("returns its plain input", "Net = torch.nn.Identity\ndef inputs(m, **_): return {'input': 5}", "holds no tensor"),
    (
        "has inputs on another device",
        "Net = torch.nn.Identity\ndef inputs(m, **_): return {'input': [torch.ones(1, device='meta')]}",
        "inputs.input.0 is on meta, the module on cpu",
    ),
    (
        "has a generator as inputs",
        "Net = torch.nn.Identity\ndef inputs(m, **_): yield torch.ones(1)",
        "returned a generator",
    ),
    (
        "has a generator among its inputs",
        "Net = torch.nn.Identity\ndef inputs(m, **_): return {'input': (x for x in [1])}",
        "inputs.input is a generator, which can be read only once",
    ),
    ("has inputs by number", "Net = torch.nn.Identity\ndef inputs(m, **_): return {1: torch.ones(1)}", "Return a dict"),
    (
        "has other inputs in the second call",
        "Net = torch.nn.Identity\nn = [1]\n"
        "def inputs(m, **_):\n  n.append(1)\n  return {'input': [torch.ones(1)] * len(n)}",
        "with another seed, input.",
    ),
    (
        "has inputs of another shape in the second call",
        "Net = torch.nn.Identity\nn = [1]\ndef inputs(m, **_):\n  n.append(1)\n  return {'input': torch.ones(len(n))}",
        "with another seed, input is float32 [",
    ),
    (
        "has another plain value in the second call",
        "Net = torch.nn.Identity\nimport random\n"
        "def inputs(m, **_): return {'input': {'x': torch.ones(1), 't': random.random()}}",
        "Only values inside tensors may depend on the generator",
    ),
    (
        "returns a generator",
        "class Net(torch.nn.Module):\n  def forward(self, input): return (x for x in [input])",
        "it can be read only once",
    ),
    (
        "returns no tensor",
        "class Net(torch.nn.Module):\n  def forward(self, input): return {'text': 'done'}",
        "holds no tensor",
    ),
    ("returns nothing", "class Net(torch.nn.Module):\n  def forward(self, input): return None", "holds no tensor"),
)


@promise("module")
@pytest.mark.parametrize(("code", "says"), [pytest.param(code, says, id=what) for what, code, says in MODULES])
def test_user_modules(started, tmp_path, monkeypatch, code, says):
    """The error is known when the module is built, so that it is a row and other cells are measured."""
    name = f"planted_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(f"import torch\n{textwrap.dedent(code)}\n")
    made = f"{{_target_: {name}.inputs}}" if "def inputs" in code else "{input: {shape: [2]}}"
    (tmp_path / "conf" / "component").mkdir(parents=True)
    (tmp_path / "conf" / "component" / "mine.yaml").write_text(
        f"mine: {{module: {{_target_: {name}.Net}}, inputs: {made}}}"
    )
    code, err = started("component=[mine]", "variant=[baseline]", config_dir=tmp_path / "conf")
    assert code == 2, err
    assert says in " ".join(err.split())


COMMANDS = {"report": report.main, "compare": compare.main, "history": history.main}


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


SPECIAL = {
    "a FIFO": make_fifo,
    "a socket": make_socket,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "an empty folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path),
    "a folder in place of the records": lambda path: (path / "results.jsonl").mkdir(parents=True),
    "a FIFO in place of the records": lambda path: (path.mkdir(), os.mkfifo(path / "results.jsonl")),
    "an endless device in place of the records": lambda path: (
        path.mkdir(),
        (path / "results.jsonl").symlink_to("/dev/zero"),
    ),
    "records of 100 GB": lambda path: (
        path.mkdir(),
        (path / "results.jsonl").touch(),
        os.truncate(path / "results.jsonl", 10**11),
    ),
    "bytes that are no records": lambda path: path.write_bytes(bytes(range(256)) * 10),
    "nothing": lambda path: None,
}


@promise("damaged run")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [pytest.param(make, id=what) for what, make in SPECIAL.items()])
def test_no_run(make, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    make(Path("given"))
    for name, main in COMMANDS.items():
        assert main(["given"] * (2 if name == "compare" else 1)) == 2, name
        lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("skipped ")]
        assert len(lines) == 1, name
        assert lines[0].startswith("error: ")


@promise("damaged run")
@pytest.mark.timeout(30)
@pytest.mark.parametrize("file", ["environment.json", "config.yaml"])
def test_a_fifo_inside_a_run(file, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    append_record(run, Record(target="generic_forward", component="net", variant="baseline", status="ok"))
    os.mkfifo(run / file)
    assert report.main([str(run)]) == 0
    compare.main([str(run), str(run)])
    assert "Traceback" not in capsys.readouterr().err


@promise("surroundings")
def test_no_working_directory(started, tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    try:
        code, err = started(*NET)
    finally:
        os.chdir(tmp_path)
    assert code == 2
    assert "the working directory was deleted" in err


ENVIRONMENTS = {
    "folders: HOME is not set, TMPDIR does not exist, PYTHONPATH names what is not there": {
        "HOME": None,
        "TMPDIR": "/nonexistent",
        "PYTHONPATH": f"/nonexistent::{os.fsdecode(bytes([255]))}",
        "COLUMNS": "0",
    },
    "the locale is C, which has no UTF-8": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "COLUMNS is negative": {"COLUMNS": "-5"},
    "COLUMNS is larger than an integer of C": {"COLUMNS": "9" * 30},
    "COLUMNS is no number": {"COLUMNS": "\u00b2"},
}


@promise("surroundings")
@pytest.mark.parametrize("variables", [pytest.param(variables, id=what) for what, variables in ENVIRONMENTS.items()])
def test_environments(variables, tmp_path):
    """A command as a process, which is cheap for a report: it imports no torch."""
    append_record(tmp_path, Record(target="generic_forward", component="net", variant="baseline", status="ok"))
    path = f"{ROOT}{os.pathsep}{variables.get('PYTHONPATH', '')}"
    given = {**os.environ, **variables, "PYTHONPATH": path}
    env = {name: value for name, value in given.items() if value is not None}
    done = subprocess.run([sys.executable, "-m", "profiling.report", tmp_path], env=env, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"net: no latency was measured." in done.stdout
    assert done.stderr == b""


STREAMS = {
    "standard output is a full disk": (">/dev/full", 2, "cannot be written"),
    "standard output is closed": (">&-", 0, ""),
    "standard error is closed": ("2>&-", 0, ""),
    "standard error is a full disk": ("2>/dev/full", 0, ""),
    "all three standard streams are closed": ("<&- >&- 2>&-", 0, ""),
    "the reader of standard output is gone": ("| true", 0, ""),
}


@promise("streams")
@pytest.mark.parametrize(("streams", "code", "says"), [pytest.param(*case, id=what) for what, case in STREAMS.items()])
def test_streams(streams, code, says, tmp_path):
    append_record(tmp_path, Record(target="generic_forward", component="net", variant="baseline", status="ok"))
    line = f"set -o pipefail; {shell_words([sys.executable, '-m', 'profiling.report', tmp_path])} {streams}"
    done = subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == bool(says)
    assert (tmp_path / "report.html").exists()


@promise("streams")
@pytest.mark.slow
def test_a_run_without_streams(tmp_path):
    line = f"{shell_words(command(tmp_path / 'run', *NET, 'isolation=none'))} <&- >&- 2>&-"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment())
    assert done.returncode == 0
    assert [record.status for record in read_records(tmp_path / "run").records] == ["ok"]
    assert (tmp_path / "run" / "report.html").exists()


@promise("interrupt")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_signals(started, number):
    def run(cfg, folder):
        os.kill(os.getpid(), number)
        time.sleep(5)

    signal.signal(number, signal.SIG_DFL)  # tests under nohup inherit an ignored SIGHUP
    assert started(*NET, run=run)[0] == 130


@promise("interrupt")
def test_nohup(started):
    def run(cfg, folder):
        os.kill(os.getpid(), signal.SIGHUP)
        return 0

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert started(*NET, run=run)[0] == 0


@promise("surroundings")
def test_no_proc(started, tmp_path, monkeypatch):
    nowhere = tmp_path / "proc"
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(nowhere))
    monkeypatch.setattr(run_queue, "_THREADS", nowhere / "self" / "task")
    monkeypatch.setattr(memory, "reset_peak_host_rss", lambda: False)
    monkeypatch.setattr(monitor, "PROC", nowhere)
    code, err = started(*NET, "metric=[latency,memory]", f"hydra.run.dir={tmp_path / 'run'}")
    assert code == 0, err
    (record,) = read_records(tmp_path / "run").records
    assert record.wall_p50 is not None
    assert record.memory.peak_host_rss is None
    assert {kinds.host_rss for kinds in record.memory.phases.values()} == {None}
    frames = monitor.FrameMonitor(torch.device("cpu"))
    assert "host_rss" not in frames(0, 1.0)
    frames.close()
