"""Bad input: one line that says what to type next, exit code 2, and nothing that was finished is lost."""

import os
import pickle
import subprocess
import sys

import pytest
import torch
from as_user import ROOT, environment

from profiling.errors import python_command

COMPONENT = "component=[net]"
BASELINE = "variant=[baseline]"

WRONG = {
    "component": (["component=[wrld_model]", BASELINE], "Did you mean 'world_model'"),
    "variant": ([COMPONENT, "variant=[compil]"], "Did you mean 'compile'"),
    "metric": ([COMPONENT, BASELINE, "metric=[latncy]"], "Did you mean 'latency'"),
    "key": ([COMPONENT, BASELINE, "tarce=true"], "Did you mean 'trace'"),
    "option": ([COMPONENT, "variant=[compile]", "variant.compile.moed=default"], "variant.compile.mode"),
    "mode": ([COMPONENT, "variant=[compile]", "variant.compile.mode=max-autotun"], "Did you mean 'max-autotune'"),
    "inductor": ([COMPONENT, "variant=[compile]", "+variant.compile.options.max_autotun=true"], "max_autotune"),
    "group": ([COMPONENT, "component.ney.checkpoint=x"], "component.net"),
    "nothing": (["component=[]", BASELINE], "component=[]"),
    "device": ([COMPONENT, BASELINE, "device=gpu"], "cuda"),
    "dtype": ([COMPONENT, BASELINE, "dtype=float15"], "float16"),
    "scale": ([COMPONENT, BASELINE, "scale=small"], "tiny"),
    "iterations": ([COMPONENT, BASELINE, "metric.latency.max_iterations=0"], "at least 1"),
    "seconds": ([COMPONENT, BASELINE, "metric.latency.max_seconds=-1"], "above 0"),
    "number": ([COMPONENT, BASELINE, "metric.latency.max_iterations=many"], "max_iterations"),
    "endless": ([COMPONENT, BASELINE, "cell_timeout=inf"], "cell_timeout"),
    "frames": ([COMPONENT, BASELINE, "+component.net.frames_per_call=abc"], "frames_per_call"),
    "timeout": ([COMPONENT, BASELINE, "cell_timeout=0"], "cell_timeout"),
    "seed": ([COMPONENT, BASELINE, "seed=one"], "seed"),
    "isolation": ([COMPONENT, BASELINE, "isolation=thread"], "process"),
    "checkpoint": ([COMPONENT, BASELINE, "+component.net.checkpoint=missing.pt"], "does not exist"),
    "required": ([COMPONENT, BASELINE, "checkpoint=required"], "component.net.checkpoint=PATH"),
    "resume": ([COMPONENT, BASELINE, "resume=no_run"], "no such folder"),
    "target": ([COMPONENT, BASELINE, "component.net.module._target_=outside_net.Nett"], "Did you mean 'Net'"),
    "argument": ([COMPONENT, BASELINE, "+component.net.module.widht=3"], "widht"),
    "loose interval": ([COMPONENT, BASELINE, "metric.latency.interval=2"], "below 1"),
    "top key": (["component=[misnamed]", BASELINE], "misnamed:"),
    "broken yaml": (["component=[broken]", BASELINE], "broken.yaml"),
    "raises": (["component=[raises]", BASELINE], "this module never works"),
    "nothing returned": (["component=[nothing]", BASELINE], "holds no tensor"),
    "no module": (["component=[no_module]", BASELINE], "not a torch.nn.Module"),
    "input name": (["component=[wrong_name]", BASELINE], "Did you mean 'gain'"),
    "input shape": (["component=[wrong_shape]", BASELINE], "x float32 [2, 9]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_line_says_what_to_type(profile, case):
    overrides, text = WRONG[case]
    outcome = profile(*overrides, *(() if case == "isolation" else ("isolation=none",)))
    assert outcome.code == 2, outcome.out + outcome.err
    assert any(text in line for line in (outcome.err + outcome.out).splitlines()), outcome.err + outcome.out
    if "Traceback" in outcome.err:  # a cell's own log, which isolation=none shows
        assert (outcome.folder / "results.jsonl").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without CUDA")
def test_cuda_without_cuda(profile):
    outcome = profile(COMPONENT, BASELINE, "device=cuda", "isolation=none")
    assert outcome.code == 2
    assert "device=cpu" in outcome.err


def test_a_bad_cell_costs_no_good_one(profile):
    outcome = profile("component=[raises,net]", "variant=[baseline,faulty_raise]", "isolation=none")
    assert outcome.code == 2
    reasons = {cell: record.reason for cell, record in outcome.records.items()}
    assert "never works" in reasons["raises", "baseline"]
    assert "never works" in reasons["raises", "faulty_raise"], "the component failed before, with baseline"
    assert outcome.records["raises", "faulty_raise"].prepare is None
    assert reasons["net", "baseline"] is None
    assert "planted" in reasons["net", "faulty_raise"]


class Evil:
    def __reduce__(self):
        return os.system, ("touch it_ran",)


def bad_checkpoints(folder):
    good = {"first.weight": torch.ones(16, 8), "first.bias": torch.ones(16), "last.weight": torch.ones(4, 16)}
    good["last.bias"] = torch.ones(4)
    cases = {
        "empty": (lambda path: path.write_bytes(b""), "empty"),
        "text": (lambda path: path.write_text("hello\n" * 50), "text"),
        "code": (lambda path: path.write_bytes(pickle.dumps(Evil(), 2)), "code"),
        "shapes": (lambda path: torch.save({**good, "first.weight": torch.ones(16, 9)}, path), "first.weight"),
        "names": (lambda path: torch.save({"other": torch.ones(2)}, path), "other"),
        "nan": (lambda path: torch.save({**good, "last.bias": torch.full((4,), torch.nan)}, path), "last.bias"),
    }
    for name, (write, text) in cases.items():
        path = folder / f"{name}.pt"
        write(path)
        yield path, text
    torch.save(good, folder / "good.pt")
    cut = folder / "cut.pt"
    cut.write_bytes((folder / "good.pt").read_bytes()[:700])
    yield cut, "cut"


def test_bad_checkpoints(profile, tmp_path):
    for path, text in bad_checkpoints(tmp_path):
        outcome = profile(
            COMPONENT, BASELINE, "isolation=none", f"+component.net.checkpoint={path}", folder=tmp_path / path.stem
        )
        assert outcome.code == 2, path
        (record,) = outcome.records.values()
        assert record.status == "failed"
        assert path.name in record.reason
        assert text in record.reason
        assert "\n" not in record.reason
    assert not (tmp_path / "it_ran").exists()
    good = f"+component.net.checkpoint={tmp_path / 'good.pt'}"
    outcome = profile(COMPONENT, BASELINE, "isolation=none", good, folder=tmp_path / "ok")
    (record,) = outcome.records.values()
    assert record.status == "ok"
    assert record.weights == str(tmp_path / "good.pt")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(profile, tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    outcome = profile(COMPONENT, BASELINE, folder=locked / "run")
    assert outcome.code == 2
    assert "hydra.run.dir" in outcome.err


def test_a_run_folder_below_a_file(profile, tmp_path):
    (tmp_path / "file").write_text("x")
    outcome = profile(COMPONENT, BASELINE, folder=tmp_path / "file" / "run")
    assert outcome.code == 2
    assert "hydra.run.dir=FOLDER" in outcome.err


@pytest.mark.parametrize("target", sorted(path.stem for path in (ROOT / "conf").glob("*.yaml")))
def test_help_fits_a_screen(target):
    start = [sys.executable, "-m", f"profiling.{target}", "--help"]
    done = subprocess.run(start, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.replace(python_command(), ".venv/bin/python").splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert f"-m profiling.{target} [KEY=VALUE" in done.stdout
    for word in ("device=auto", "resume=RUN", "Examples", "130"):
        assert word in done.stdout
    for group in ("component", "variant", "metric") if target == "generic_forward" else ():
        for path in (ROOT / "conf" / group).glob("*.yaml"):
            assert path.stem in done.stdout.split(), f"{group} {path.stem} is not in the help"


def test_a_reader_that_closes_the_pipe_is_no_error():
    start = [sys.executable, "-u", "-m", "profiling.generic_forward", "--help"]
    with subprocess.Popen(start, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""
