"""Wrong input: command lines, YAML files, modules."""

import os
from pathlib import Path

import pytest
from as_user import OUTSIDE, QUICK
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from table import promise

from profiling.cli.config import read_component
from profiling.errors import InputError
from profiling.results.jsonl import read_records

CPU = ("device=cpu", "ceilings=off", "threads=1", "isolation=none")
#: By target: what is given where a row does not say otherwise.
GIVEN = {
    "generic_forward": ("component=[net]", "variant=[baseline]", "isolation=none", *QUICK),
    "realtime": (*CPU, "pipeline=mine", "variant=[baseline]", "loop.frames=2", "loop.warmup_frames=1"),
    "shape_sweep": (*CPU, "scale=tiny", "component=[net]"),
    "training_step": (*CPU, "scale=tiny"),
    "launch_overhead": (*CPU, "scale=tiny"),
    "tune": (*CPU, "scale=tiny", "component=[net]"),
}


def each_row(groups):
    """Make a parameter of each row of each target."""
    return [pytest.param(name, *row, id=f"{name}: {row[0]}"[:100]) for name, group in groups.items() for row in group]


def is_refused(outcome, says):
    code, err = outcome
    assert code == 2, err
    (line,) = (line for line in err.splitlines() if not line.startswith("run: "))  # the progress of the check
    assert line.startswith("error: ")
    assert says in line
    assert not list(Path("runs").rglob("*.*")), "nothing is left"


PASSES = "variant=[fx_cuda_graph]"
COMPILED, COMPILER = "variant=[compile]", "step.compile"
OWN = "variant.own_halved_twice"
FIRST, SECOND = "pipeline.stages.first", "pipeline.stages.second"
#: By target: words of the command line, and of the error.
REFUSED = {
    "generic_forward": (
        # names
        ("--config-name=tune", "each target has one config"),
        ("component=[nan]", "numbers are no names. Write component=[NAME,NAME]"),
        ("component=nan", "numbers are no names. Write component=[NAME,NAME]"),
        ("component=[null]", "component=[null] does not name YAML files"),
        ("component=null", "component=[NAME,NAME]"),
        ("component=[]", "Name at least one component"),
        ("component=[nte]", "Did you mean"),
        ("variant=[compil]", "Did you mean 'compile'"),
        ("variant=[compile+cuda_graph,compile_cuda_graph]", "both are the recipe"),
        ("settings=5", "settings=NAME"),
        # keys
        ("tarce=true", "Did you mean 'trace'? --cfg job lists all keys."),
        ("++tarce=true", "there is no key 'tarce' in the config"),
        ("+tarce=true", "+ adds a key, and only options are read. Write an option without +; --cfg job lists them."),
        ("component.net.checkpont=x", "--cfg job lists all keys; to add one, write +component.net.checkpont=VALUE"),
        ("target_fps=60", "no key 'target_fps' in the config. --cfg job lists"),  # and none that is near
        ("component.ney.checkpoint=x", "no key 'ney' in component. Did you mean 'net'?"),
        ("component.net.module.widht=3", "Did you mean"),
        (f"{COMPILED} variant.compile.mode=a", "step.compile.mode="),
        (f"{COMPILED} +{COMPILER}.options.triton.max_tiles=2", "as one key: '+step"),
        ("~device", "cannot be deleted"),
        ("=5", "names no key"),
        ("seed=1 ++seed=1", "seed is given twice"),
        # values
        (f"{COMPILED} {COMPILER}.mode=fast", "max-autotune"),
        (f"{COMPILED} +{COMPILER}.options.max_autotun=true", "max_autotune"),
        (f"{COMPILED} {COMPILER}.fullgraph=a", "fullgraph='a' must be true or false"),
        (f"variant=[own_halved_twice] +{OWN}.compilr=null", "Did you mean 'compiler'"),
        (f"variant=[own_halved_twice] {OWN}.compiler=a", "compiler='a' is no Compiler"),
        (f"variant=[own_halved_twice] {OWN}.capture={{warmup:3}}", "Give it a _target_"),
        (f"variant=[own_halved_twice] {OWN}.transforms=[5]", "_partial_"),
        (f"variant=[own_halved_twice] +{OWN}._target_=5", "dotted path"),
        ("variant.baseline=5", "variant.baseline=5 is no mapping"),
        ("variant=[]", "Name at least one variant"),
        ("seed.x=3", "no key 'x' in seed"),
        (f"{PASSES} step.cuda_graph.warmup=0", "warmup=0"),
        (f"{PASSES} step.fx_passes.passes=5", "variant.fx_passes+cuda_graph"),
        ("~metric.latency._target_", "metric.latency has no _target_"),
        ("metric.latency.max_iterations=many", "max_iterations"),
        ("+component.net.checkpoint=missing.pt", "does not exist"),
        ("checkpoint=required", "component.net.checkpoint=PATH"),
        ("device=gpu", "cuda"),
        ("dtype=float15", "Did you mean 'float16'"),
        ("isolation=thread", "process"),
        ("cell_timeout=soon", "cell_timeout='soon' must be a number, not text"),
        ("seed=${nope}", "nope"),
        ("resume=no_run", "no such folder"),
        ("resume=[a]", "no such folder"),
        ("hydra.run.dir=null", "hydra.run.dir"),
        ("hydra.run.dir=/proc/run", "hydra.run.dir=FOLDER"),
        # words that are no KEY=VALUE
        ([""], "--help"),
        ("seed", "cannot read seed. Write KEY=VALUE"),
        ("metric=[latency", "cannot read metric=[latency. Write KEY=VALUE, with complete brackets"),
        ("dtype=flöat", "\"dtype='...'\""),
        ("dtype=auto --config-dir=x seed=1", "before the first KEY=VALUE"),
        ("--seconds=3", "keys have none: seconds=3"),
        ("hydra.run.dri=x", "there is no key 'dri' in hydra.run. Did you mean 'dir'?"),
        ("--config-name", "expected one argument"),
        ([os.fsdecode(b"device=\xff")], "control characters, or bytes that are not UTF-8"),
    ),
    "realtime": (
        ("loop=5", "loop"),
        ("checkpoint=required", "checkpoint=required, but caches has none"),  # before any cell
        ("loop.frames=many", "loop.frames"),
        ("fps=60", "no key 'fps' in the config. Did you mean 'loop.fps'?"),
        ("loop.actions=5", "loop.actions"),
        ("+loop.frame=3", "Did you mean 'frames'"),
        ("stages=5", "stages"),
        ("mix=[a]", "mix"),
        ("mix={first:[a],second:[b]}", "mix.first"),
        ("mix={first:baseline}", "second:baseline}"),
        ("mix={first:baseline,second:compil}", "Did you mean 'compile'"),
        ("+pipeline.warmup_frames=0", "pipeline.warmup_frames=0 must be a whole"),
        ("+pipeline.delivr=[second]", "Did you mean 'deliver'"),
        ("pipeline.deliver=[secnd]", "Did you mean 'second'"),
        ("~pipeline.sources.camera", "there is no stage or source camera"),
        ("~pipeline.sources.camera.draw", "pipeline.sources.camera has no values"),
        (f"{FIRST}.inputs.x=camera.imag", "Did you mean 'image'"),
        (f"{FIRST}.inputs.x=second", "which is a cycle"),
        (f"{FIRST}.component=cache", "Did you mean 'caches'? Name it in component=[...] too."),
        (f"+{FIRST}.evry=2", "Did you mean 'every'"),
        (f"+{FIRST}.every=0", "every=0 must be a whole number, at least 1"),
        (f"{SECOND}.inputs.x=frist", "Did you mean 'first'"),
        (f"{SECOND}.inputs.x=first@-7", "first@-7 is no edge"),
        ("pipeline.stages=[1]", "Cannot merge DictConfig with ListConfig"),
    ),
    "shape_sweep": (
        ("values=[1,a]", "values"),
        ("values=[1000000000000]", "elements"),
        ("values=[0]", "whole numbers"),
        ("axis=[x]", "axis"),
        ("component=[image_decoder] axis=bach", "Did you mean 'batch'"),
        ("component=[mimi_decoder] axis=codes.9", "codes.2"),
        ("axis=y.1", "axis"),
        ("component.net.inputs.x=5 component.net.inputs.gain=5", "has a shape"),
    ),
    "training_step": (
        ("training=5", "training"),
        ("training.steps=0", "training.steps"),
        ("+training.stesp=3", "Did you mean 'steps'"),
        ("training.lr_changes=[[1,a]]", "lr_changes"),
        ("variant=[channels_last_compile]", "variant.channels_last+compile.transforms are for forward passes"),
        ("optimizer=null", "optimizer"),
        ("optimizer._target_=5", "optimizer"),
        ("~optimizer.lr", "_partial_: true and lr"),
    ),
    "launch_overhead": (
        ("trace=true", "no step to trace"),
        ("component=[net]", "component"),
    ),
    "tune": (
        ("steps=[cuda_grph]", "Did you mean 'cuda_graph'"),
        ("steps=[]", "names no step to search"),
        ("steps=[[compile]]", "there is no step"),
        ("steps=[pdl]", "needs compile or"),
        ("+step.compile.rules.cost=1", "step.compile.rules.cost is unknown"),
        ("seconds=0", "seconds=0"),
        ("seconds=null", "needs a budget"),
        ("max_rel_l2=-1", "max_rel_l2"),
        ("component=[net,image_decoder]", "Start a search for each"),
        ("seed=0", "a search times recipes in processes of their own"),
        ("devices=[cpu,cpu] device=auto isolation=process", "twice"),
        ("devices=cpu isolation=process", "devices=[cuda:0"),
        (
            "steps=[channels_last] devices=[cpu,cpu:0] device=auto isolation=process",
            "these steps are searched on 1 at most",
        ),
        ("variant=[compile]", "variant"),
    ),
}


@promise("option")
@pytest.mark.parametrize(("target", "words", "says"), each_row(REFUSED))
def test_what_is_refused_before_anything_runs(started, target, words, says):
    is_refused(started(words, target=target, quick=GIVEN[target]), says)


@promise("option")
def test_a_config_that_is_shown_of_a_sweep(started):
    is_refused(started("--cfg=job --multirun seed=1", quick=""), "Leave out --multirun")


@promise("option")
@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        # It would hide that of the tool.
        (
            "variant/baseline.yaml",
            "baseline: {compiler: null}\n",
            "the tool has a variant baseline of its own",
        ),
        ("step/mine.yaml", "compile: {_target_: a.b}\n", "the tool has a step compile of its own"),
    ],
)
def test_a_name_of_the_tools_own(started, tmp_path, file, text, says):
    own = tmp_path / "own" / file
    own.parent.mkdir(parents=True)
    own.write_text(text)
    is_refused(started("component=[net]", config_dir=tmp_path / "own"), says)


@promise("option")
@pytest.mark.parametrize("config_dir", ["empty", "component"])
def test_a_yaml_that_is_nearby(started, tmp_path, config_dir):
    for name in ("empty", "component"):
        (tmp_path / name).mkdir()
    (tmp_path / "component" / "mine.yaml").write_text("mine: {module: {_target_: builtins.int}, inputs: {}}\n")
    is_refused(started("component=[mine]", config_dir=config_dir), "Add --config-dir=. to use component/mine.yaml.")


@promise("option")
def test_a_target_without_a_yaml(started):
    is_refused(started(target="my_target", run=lambda cfg, folder: 0), "Its YAML must be conf/my_target.yaml")


#: Changes of the YAML of the component net.
COMPONENT = (
    ("module=my_package.Net", "module is my_package.Net. Write a mapping, like module: {_target_:"),
    ("module._target_=''", "dotted path"),
    ("inputs=null", "net.inputs is None. Write a mapping, like inputs:"),
    ("modul=5", "state, sweep. Did you mean 'module'"),
    ("point=5", "Leave it out"),
    ("tiny=null", "tiny must be a mapping, not null"),
    ("tiny.inputs=5", "tiny.inputs=5 must be a mapping"),
    ("tiny.frames_per_call=-1", "at least 0"),
    ("tiny.modul=5", "Did you mean 'module'"),
    ("initialise={width:5}", "net.initialise has no _target_"),
    ("sweep={axs:x}", "sweep.axs is unknown"),
    ("cast=modul", "Did you mean 'module'"),
    ("checkpoint=5", "checkpoint=5 must be text or null"),
    ("frames_per_call=-1", "frames_per_call=-1 must be a whole number"),
    ("kind=video", "must be image, audio or null"),
    ("state=snapshots", "is none of snapshot, reset, none"),
    ("warmup_inputs={x:{shape:[4,8]}}", "must be a list"),
    ("warmup_inputs=[3]", "must be a mapping"),
    ("warmup_inputs=[{x:{shape:[0,8]}}]", "must be positive integers"),
    ("inputs.x.shape=[2,-8]", "positive"),
    ("inputs.x.shape=[2,true]", "shape[1] must be a whole number"),
    ("inputs.x.shape=[1000000,1000000]", "elements"),
    ("inputs.x.dtype=float99", "Did you mean 'float64'"),
    ("inputs.x.distribution=gaussian", "normal"),
    ("inputs.gain.high=inf", "finite"),
    ("inputs.gain.high=0.1", "above low"),
    ("inputs.y={shpae:[2,8]}", "Did you mean 'shape' by 'shpae'"),
    ("inputs.y={dtype:int64,high:9}", "has no shape"),
    ("inputs.y=[{z:{shape:[2],lwo:1}}]", "y.0.z.lwo is unknown"),
    ("inputs.y={_target_:''}", "dotted path"),
    ("inputs.y={tuple:64}", "{tuple: [64, 64]}"),
    ("inputs.y={5:{shape:[1]}}", "the key 5 must be text"),
    ("inputs.y={shape:[2],dtype:int64,distribution:normal}", "dtype=int64, which takes integers or bernoulli"),
    ("inputs.y={shape:[2],dtype:bool,distribution:uniform}", "bernoulli. Write {shape: [2], dtype: bool}"),
    ("inputs.y={shape:[2],dtype:int64}", "Write {shape: [2], dtype: int64, low: 0, high: 1000}"),
    ("inputs.y={shape:[2],dtype:uint8,high:300}", "within uint8, 0 to 255"),
    ("inputs.y={shape:[2],dtype:int64,high:1.5}", "whole number"),
    ("inputs.y={shape:[2],distribution:normal,low:0}", "has no range"),
    ("inputs.y={shape:[2],value:one}", "is no number"),
    ("inputs.y={shape:[2],value:1,low:0}", "Leave one of the two out"),
    ("inputs.y={shape:[2,3],value:[1,2]}", "cannot be repeated"),
    ("inputs.y={shape:[2,2],value:[[1],[1,2]]}", "different lengths"),
    ("inputs.y={shape:[2],dtype:bool,value:2}", "2 does not fit"),
)


def node_of(component, change):
    """Return the YAML of a component, changed by an override as one would write it on the command line."""
    node = OmegaConf.load(OUTSIDE / "component" / f"{component}.yaml")[component]
    if change:
        given = OverridesParser.create().parse_override(change)
        OmegaConf.update(node, given.key_or_group, given.value(), force_add=True, merge=False)
    return OmegaConf.to_container(node)


@promise("component yaml")
@pytest.mark.parametrize(("change", "says"), COMPONENT, ids=lambda value: value)
def test_component_yaml(change, says):
    with pytest.raises(InputError) as error:
        read_component("net", node_of("net", change))
    assert says in str(error.value)


FILES = (
    ("is not UTF-8", b"mine: {module: \xff}", "mine.yaml"),
    ("is cut off", b"mine: {module: {", "mine.yaml"),
    ("has the same key twice", b"mine: {module: 1, module: 2}", "duplicate key"),
    ("contains itself", b"mine: &x\n  module: {_target_: torch.nn.ReLU, x: *x}\n  inputs: {}\n", "contains itself"),
    ("has 50 MB", b"mine: {}\n# " + b"x" * 50_000_000, "has 50 MB; a config has at most 2"),
    ("is nested two thousand times", b"mine: " + b"[" * 2000, "mine.yaml is not valid: maximum recursion depth"),
    ("is a list", b"- 1\n- 2\n", "component"),
    ("is empty", b"", "mine"),
    ("names a file outside the run", b"mine: {}\n../../x: {module: {_target_: a.B}, inputs: {}}", "`mine:`"),
)


@promise("component yaml")
@pytest.mark.parametrize(("content", "says"), [pytest.param(content, says, id=what) for what, content, says in FILES])
def test_yaml_files(started, tmp_path, content, says):
    (tmp_path / "conf" / "component").mkdir(parents=True)
    (tmp_path / "conf" / "component" / "mine.yaml").write_bytes(content)
    spellings = ("component=[mine]", "component=mine", "+component=mine")
    for chosen in spellings if content == b"" or says == "`mine:`" else spellings[:1]:
        is_refused(started([chosen, "variant=[baseline]"], config_dir=tmp_path / "conf"), says)


@promise("component yaml")
def test_a_large_file_that_another_one_includes(started, tmp_path):
    folder = tmp_path / "conf" / "component"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("defaults: [other]\nmine: {}")
    (folder / "other.yaml").write_bytes(b"mine: {}\n# " + b"x" * 3_000_000)
    is_refused(started(["component=[mine]", "variant=[baseline]"], config_dir=tmp_path / "conf"), "other.yaml has 3 MB")


# What is known when a network is built or called: an error in its row.


@pytest.fixture
def records_of(started, tmp_path):
    """Run components of these YAML nodes, none of which can run; return their records."""

    def run(nodes, *words):
        folder = tmp_path / "conf" / "component"
        folder.mkdir(parents=True)
        names = [f"mine{number}" for number in range(len(nodes))]
        for name, node in zip(names, nodes, strict=True):
            OmegaConf.save({name: node}, folder / f"{name}.yaml")
        words = (f"component=[{','.join(names)}]", "hydra.run.dir=run", *words)
        code, err = started(words, quick=GIVEN["generic_forward"], config_dir=tmp_path / "conf")
        assert code == 2, err
        return read_records(Path("run")).records

    return run


#: Component, change of its YAML, and words of the reason in the row.
NETWORKS = (
    ("net", "inputs={x:{shape:[2,8]},gian:{shape:[1]}}", "Did you mean 'gain'"),
    ("net", "inputs.x.shape=[2,9]", "x float32 [2, 9]"),
    ("net", "inputs.x=5", "(inputs: x 5, gain float32 [1])"),
    ("wrong_nesting", "", "x.0 float32 [2, 8]"),
    (
        "net",
        "module._target_=elsewhere.Net",
        "no module 'elsewhere'. Run the command in the folder that holds it, or add that folder to PYTHONPATH",
    ),
    ("net", "module._target_=Net", "Write the module, too: my_package.Net"),
    ("nested", "inputs.position.row=2", "Did you mean 'rows'? It takes rows"),
    ("nested", "inputs.position={_target_:outside_net.make_position}", "missing 1 required keyword-only argument"),
    ("remembers", "warmup_inputs=[{x:{shape:[4,9]}}]", ".warmup_inputs[0]: "),
    ("remembers", "warmup_inputs=[{y:{shape:[4,8]}}]", "unexpected keyword argument 'y'"),
)
CHECKED = (
    ("net", "inputs={x:{shape:[2,8]}}", "missing a required argument: 'gain'. Correct the entry"),
    ("raises", "", "Raises.forward raised ValueError: this module never works"),
    ("net", "inputs.x.shape=[2,9]", "Net.forward raised"),
)


@promise("module")
@pytest.mark.parametrize(("rows", "words"), [(NETWORKS, ()), (CHECKED, ("check=true",))], ids=["timed", "checked"])
def test_what_does_not_fit_a_network(records_of, rows, words):
    records = records_of([node_of(*row[:2]) for row in rows], *words)
    for (*_, says), record in zip(rows, records, strict=True):
        assert says in record.reason
        assert (record.check is not None) == bool(words), "the report knows that nothing was to be timed"
        assert record.metrics.wall_ms is None


#: By target: words of the command line, and of the reason in the row.
ROWS = {
    "launch_overhead": (("check=true", "launch_overhead runs no component"),),
    "training_step": (
        (
            "component=[world_model_training] variant=[baseline] metric=[parity]",
            "metric.parity is for forward passes: leave it out",
        ),
    ),
    "realtime": (
        ("metric=[latency]", "metric.latency times single steps, and the loop has its own clocks. Use metric"),
        ("+pipeline.sources.camera.file=no.npz", "numpy.savez(path, image=[n, 2, 8])"),
        (f"~{SECOND}.inputs.gain", "net also takes gain. Give it an edge"),
        (f"+{SECOND}.inputs.y=first", "net has no such input, only x, gain"),
        (f"{SECOND}.inputs.x=first.9", "Read it as first"),
        (f"{SECOND}.inputs.gain=first", "the input takes float32 [1]"),
        (f"{SECOND}.inputs.gain={{distribution:integers,high:9}}", "does not fit"),
    ),
}


@promise("pipeline")
@pytest.mark.parametrize(("target", "words", "says"), each_row(ROWS))
def test_what_does_not_fit_a_pipeline(started, target, words, says):
    code, err = started(words, target=target, quick=(*GIVEN[target], "hydra.run.dir=run"))
    assert code == 2, err
    (record,) = read_records(Path("run")).records
    assert says in record.reason
    assert (record.check is not None) == ("check=true" in words), "the report knows that nothing was to be timed"
    assert record.metrics.wall_ms is None


FORWARD = "class Net(torch.nn.Module):\n  def forward(self, input): return "
MODULES = (
    ("has another class", "class Nett: pass", "Did you mean 'Nett'"),
    ("cannot be parsed", "def f(:", "SyntaxError"),
    ("imports what is not installed", "import not_installed_anywhere", "not_installed_anywhere"),
    ("exits when it is imported", "import sys; sys.exit(0)", "SystemExit"),
    ("raises an exception without text", "class E(Exception):\n  def __str__(self): raise ValueError\nraise E", "E: "),
    ("calls no super().__init__()", "class Net(torch.nn.Module):\n  def __init__(self): pass", "super().__init__()"),
    ("has a layer without sizes", "def Net(): return torch.nn.LazyLinear(3)", "lazy"),
    ("is on device meta", "def Net(): return torch.nn.Linear(2, 2, device='meta')", "meta"),
    ("is no module", "def Net(): return 5", "not a torch.nn.Module"),
    ("is not callable", "Net = 5", "Net"),
    ("has a list as inputs", "def inputs(m, **_): return [torch.ones(1)]", "returned a list"),
    ("has a generator as inputs", "def inputs(m, **_): yield torch.ones(1)", "returned a generator"),
    ("has inputs by number", "def inputs(m, **_): return {1: torch.ones(1)}", "Return a dict"),
    ("returns its plain input", "def inputs(m, **_): return {'input': 5}", "holds no tensor"),
    (
        "has inputs on another device",
        "def inputs(m, **_): return {'input': [torch.ones(1, device='meta')]}",
        "inputs.input.0 is on meta, the module on cpu",
    ),
    (
        "has a generator among its inputs",
        "def inputs(m, **_): return {'input': (x for x in [1])}",
        "inputs.input is a generator, which can be read only once",
    ),
    (
        "has more inputs in the second call",
        "n = [1]\ndef inputs(m, **_):\n  n.append(1)\n  return {'input': [torch.ones(1)] * len(n)}",
        "with another seed, input.",
    ),
    (
        "has inputs of another shape in the second call",
        "n = [1]\ndef inputs(m, **_):\n  n.append(1)\n  return {'input': torch.ones(len(n))}",
        "with another seed, input is float32 [",
    ),
    (
        "has another plain value in the second call",
        "import random\ndef inputs(m, **_): return {'input': {'x': torch.ones(1), 't': random.random()}}",
        "Only values inside tensors may depend on the generator",
    ),
    ("returns a generator", f"{FORWARD}(x for x in [input])", "it can be read only once"),
    ("returns no tensor", f"{FORWARD}{{'text': 'done'}}", "holds no tensor"),
)


@promise("module")
def test_user_modules(records_of, tmp_path):
    """The error is known when the module is built, so that it is a row."""
    nodes = []
    for number, (_, code, _) in enumerate(MODULES):
        name, has_inputs = f"planted{number}", "def inputs" in code
        (tmp_path / f"{name}.py").write_text(f"import torch\n{'Net = torch.nn.Identity' * has_inputs}\n{code}\n")
        made = {"_target_": f"{name}.inputs"} if has_inputs else {"input": {"shape": [2]}}
        nodes.append({"module": {"_target_": f"{name}.Net"}, "inputs": made})
    for (what, _, says), record in zip(MODULES, records_of(nodes), strict=True):
        assert says in record.reason, what
