"""Called from Python.

What goes wrong in an application that records its frames, or with a module that a script passes.
"""

import os
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from fixed_component import Net as Planted
from recorded_frames import script
from table import promise
from test_api import ONE, Net, inputs, rescaled
from torch import nn

import profiling
from profiling import FrameRecorder
from profiling.errors import InputError
from profiling.report.__main__ import main as report
from profiling.results.frames import read_series
from profiling.results.jsonl import read_records
from profiling.variants.recipe import Recipe

KILLED = """
import os, signal, sys
import profiling
frames = profiling.FrameRecorder(fps=60, folder="killed")
for number in range(100):
    with frames.frame():
        with frames.stage("world"):
            if number == 60:
                os.kill(os.getpid(), signal.SIGKILL)
        if number % 50 == 49:
            with frames.stage("text"): pass
"""


UNSAVED = """
import profiling
frames = profiling.FrameRecorder(fps=60)
for _ in range(3):
    with frames.frame(), frames.stage("world"):
        pass
"""


@promise("killed run")
def test_a_killed_process_keeps_its_frames(tmp_path, capsys):
    assert script(KILLED, tmp_path).returncode == -9
    assert report([str(tmp_path / "killed")]) == 0
    assert "60 frames" in capsys.readouterr().out
    (planned,) = read_records(tmp_path / "killed").records
    assert (planned.status, planned.realtime.target_fps) == ("failed", 60)
    result = FrameRecorder.recover(tmp_path / "killed")
    loop = result.records[0].realtime
    assert (loop.frames, loop.stages) == (60, ("world", "text"))
    assert "recovered from the journal" in result.records[0].notes[0]
    assert report([str(tmp_path / "killed")]) == 0
    with pytest.raises(InputError, match="holds no frames that were not saved"):
        FrameRecorder.recover(tmp_path / "killed")


@promise("killed run")
def test_frames_that_were_never_saved_are_said_to_be_there(tmp_path):
    done = script(UNSAVED, tmp_path)
    (run,) = (tmp_path / "runs" / "realtime").iterdir()
    assert done.stderr == f"3 frames were not saved. To save them: profiling.FrameRecorder.recover({str(run)!r})\n"
    assert FrameRecorder.recover(run).records[0].realtime.frames == 3


@promise("full disk")
@pytest.mark.parametrize("closed", [False, True])
def test_a_full_disk_does_not_end_the_loop(planted, make_recorder, tmp_path, monkeypatch, closed):
    clock = planted(device=False)
    write, left = os.write, iter(range(12))  # the names, ten frames, and a part of one

    def write_until_full(descriptor, lines):
        line = next(left, None) if lines.startswith(b"[") else 0  # of the journal
        if line is None:
            raise OSError(28, "No space left on device")
        return write(descriptor, lines if line != 11 else lines[:20])

    monkeypatch.setattr(os, "write", write_until_full)
    frames = make_recorder()
    for number in range(30):
        with frames.frame():
            clock.work(1)
            if number >= 20:
                with frames.stage("late"):
                    clock.work(1)
    if closed:
        frames.close()
    (record,) = frames.save(tmp_path / "run").records
    assert (record.realtime.frames, record.realtime.stages) == (30, ("late",))
    assert record.notes == ("the journal ends before frame 10: No space left on device",)


@promise("recorder")
def test_an_exception_goes_on_and_marks_the_frame(planted, make_recorder, tmp_path):
    clock = planted(device=False)
    frames = make_recorder()
    for number in range(50):
        raised = pytest.raises(ValueError, match="from the application") if number == 20 else nullcontext()
        with raised, frames.frame():
            clock.work(1)
            with frames.stage("world"):
                clock.work(1)
                if number == 20:
                    clock.work(50)
                    raise ValueError("from the application")
    (record,) = frames.save(tmp_path / "run").records
    assert record.realtime.frames == 50
    assert record.realtime.slow.frames[0].frame == 20
    assert record.realtime.slow.frames[0].causes == ("stage world",), "an exception takes no time by itself"
    assert "1 of 50 frames raised an exception" in record.notes


@promise("recorder")
def test_a_device_that_fails_ends_device_times_only(planted, make_recorder, tmp_path):
    device = planted()
    frames = make_recorder()
    for number in range(20):
        device.fails = number >= 10
        with frames.frame(), frames.stage("world"):
            device.work(2)
            device.launch(1)
    frames.save(tmp_path / "run")
    (record,) = read_records(tmp_path / "run").records
    assert record.realtime.frames == 20
    assert record.notes == ("device times end: RuntimeError: an illegal memory access was encountered",)
    series = read_series(tmp_path / "run" / "cells" / "loop.recorded.frames.npz")
    assert np.isfinite(series["device_world_ms"]).sum() in (9, 10)
    np.testing.assert_allclose(series["host_world_ms"], 2)


class Locked(nn.Linear):
    """Holds what cannot be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("cannot pickle '_thread.lock' object")


class PositionsOnly(nn.Module):
    def forward(self, x, /):
        return x


def guided(self, x):
    """Return the gradient of an output with respect to the input, as classifier guidance needs it."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.layer(x).sum(), x)[0]


GUIDED = Planted(guided, layer=nn.Linear(8, 1))


class Unchanged:
    """A transform that no YAML can describe."""

    def __call__(self, module):
        return module


def given(**other):
    return {"module": Net(), "inputs": inputs(), **other}


def with_transform(transform):
    return given(variants={"mine": Recipe(transforms=[transform])})


SAME = Net()


@promise("python argument")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (given(inputs=torch.ones(2, 8)), r"inputs has the type Tensor\. Give the arguments .* name: inputs=\{'x': x\}"),
        (given(inputs={"x": torch.ones(4, 8, device="meta")}), "x is on meta, the module on cpu. Move one"),
        (
            given(module=Locked(8, 8), inputs={"input": torch.ones(2, 8)}),
            r"Locked cannot be copied .*lock.* Pass a function that builds it",
        ),
        (given(module=lambda: SAME), "the function returned the same module twice"),
        (given(variants=["basline"]), "there is no variant 'basline'. Did you mean 'baseline'"),
        (given(inputs={"xx": inputs()["x"]}), r"inputs do not fit Net\.forward\(x, scale=1\.0\): .*'xx'. Did you mean"),
        (given(inputs={}), "inputs is empty"),
        (given(check_inputs={"y": inputs()["x"]}), "check_inputs do not fit Net"),
        (given(module=5), "module has the type int. Pass a torch.nn.Module"),
        (given(module=lambda x: x + 1), "module is a function that wants x. Pass a torch.nn.Module, or a function"),
        (given(module=lambda: 5), "what the function returned has the type int, and is not a torch.nn.Module"),
        (given(module=lambda: nn.Linear(8, 8)), r"inputs do not fit Linear\.forward"),
        (given(variants="baseline"), r"variants='baseline' is a text. Give a list: variants=\['baseline'\]"),
        (given(metrics=["latenzy"]), "Did you mean 'latency'"),
        (given(dtype=torch.int64), "dtype=int64 is none of"),
        (given(dtype=torch.bfloat16, autocast=torch.bfloat16), "Give one of them"),
        (given(module=Net().double()), r"module computes in float64.* Pass dtype=torch\.float32, which casts copies"),
        (given(module=PositionsOnly()), r"inputs do not fit .* Arguments are passed by name: wrap the module"),
        (given(module=GUIDED), r"raised RuntimeError: .* Calls run under torch\.inference_mode\(\): begin"),
        (given(device="cuda:99"), "device=cuda:99: (torch .* Use device=cpu, or|this machine has)"),
        (given(fps=0), "fps=0 must be a finite number, above 0"),
        (given(seconds=0), "seconds=0"),
        (with_transform(lambda module: module), "defined inside a function"),
        (with_transform(partial(rescaled, 3.0)), r"rescaled has .* name: 3\.0. Write partial\(rescaled, NAME=VALUE\)"),
        (with_transform(Unchanged()), "Unchanged cannot be written as YAML. Make its class a dataclass"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_argument_is_one_line(arguments, message):
    with pytest.raises(InputError, match=message) as error:
        profiling.profile(**{**ONE, **arguments})
    assert "\n" not in str(error.value)
