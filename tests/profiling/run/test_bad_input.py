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


def test_an_option_of_inductor_is_one_line(profile):
    option = "+variant.compile.compiler.options.max_autotun=true"
    outcome = profile(COMPONENT, "variant=[compile]", option, "isolation=none")
    assert outcome.code == 2
    assert "max_autotune" in outcome.err


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
    assert len(lines) <= 46
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
