"""Bad input: one line that says what to type next, exit code 2, and nothing that was finished is lost."""

import contextlib
import json
import subprocess
import sys

import torch
from as_user import ROOT, environment

from profiling.cli.groups import step_nodes
from profiling.components.spec import Settings
from profiling.errors import python_command
from profiling.run.probe import resolve

COMPONENT = "component=[net]"
BASELINE = "variant=[baseline]"


def test_a_bad_cell_costs_no_good_one(profile):
    outcome = profile("component=[raises,net_made]", "variant=[baseline,faulty_raise]", "isolation=none")
    assert outcome.code == 2
    reasons = {cell: record.reason for cell, record in outcome.records.items()}
    assert "never works" in reasons["raises", "baseline"]
    assert "never works" in reasons["raises", "faulty_raise"], "the component failed before, with baseline"
    assert outcome.records["raises", "faulty_raise"].prepare is None
    assert reasons["net_made", "baseline"] is None, "its inputs are from code"
    assert "planted" in reasons["net_made", "faulty_raise"]


def test_a_checkpoint_is_loaded_or_its_row_says_why_not(profile, tmp_path):
    good = {"first.weight": torch.ones(16, 8), "first.bias": torch.ones(16), "last.weight": torch.ones(4, 16)}
    torch.save({**good, "last.bias": torch.ones(4)}, tmp_path / "good.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "good.pt").read_bytes()[:99])
    for name, status in (("good.pt", "ok"), ("cut.pt", "failed")):
        path = tmp_path / name
        given = f"+component.net.checkpoint={path}"
        outcome = profile(COMPONENT, BASELINE, "isolation=none", given, folder=tmp_path / path.stem)
        (record,) = outcome.records.values()
        assert (outcome.code, record.status) == (0 if status == "ok" else 2, status)
        assert record.weights == str(path) if status == "ok" else path.name in record.reason


#: The help of each target, and the large libraries that were imported for it or one before it.
HELP = """
import contextlib, io, json, runpy, sys
for target in sys.argv[1:]:
    sys.argv = ["profiling", "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_module(f"profiling.{target}", run_name="__main__")
    large = sorted({"torch", "numpy", "scipy", "requests"} & set(sys.modules))
    print(json.dumps([target, said.getvalue(), large]))
"""
TARGETS = sorted(path.stem for path in (ROOT / "conf").glob("*.yaml"))


def test_help_fits_a_screen_and_imports_no_large_library():
    """It answers in less than a second because it imports neither torch nor numpy nor a chart library."""
    targets = ["checkpoints", *(name for name in TARGETS if name != "tune"), "tune"]
    done = subprocess.run([sys.executable, "-c", HELP, *targets], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    helps = {target: (said, large) for target, said, large in map(json.loads, done.stdout.splitlines())}
    for target, (said, large) in helps.items():
        assert target == "tune" or not large, target  # the help of tune still imports numpy
        lines = said.replace(python_command(), ".venv/bin/python").splitlines()
        assert len(lines) <= 46, target
        assert max(map(len, lines)) <= 100, target
        if target != "checkpoints":
            for words in (f"-m profiling.{target} [KEY=VALUE", "device=auto", "resume=RUN", "Examples", "130"):
                assert words in said, target
    said = helps["generic_forward"][0].split()
    shipped = {path.stem for group in ("component", "metric") for path in (ROOT / "conf" / group).glob("*.yaml")}
    assert shipped | set(step_nodes()) <= set(said)
    assert set(step_nodes()) <= set(helps["tune"][0].split())


def test_a_reader_that_closes_the_pipe_is_no_error():
    start = [sys.executable, "-u", "-m", "profiling.generic_forward", "--help"]
    with subprocess.Popen(start, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_the_dtype_of_a_run_is_what_its_own_gpu_supports(monkeypatch):
    """A machine whose second GPU has no bfloat16."""
    current = [0]

    @contextlib.contextmanager
    def switched(device):
        current.append(device.index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", switched)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: current[-1] == 0)
    chosen = [resolve(Settings(device=device)) for device in ("cuda:0", "cuda:1")]
    assert [(each.device, each.dtype) for each in chosen] == [("cuda:0", "bfloat16"), ("cuda:1", "float32")]
