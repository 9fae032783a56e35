"""memory_snapshot=true: it is recorded after everything that is measured, and sends nothing but itself."""

from contextlib import contextmanager

import pytest
import torch
from fixed_component import Net, fixed_component
from make_job import make_job
from make_record import record
from torch import nn

from profiling.components.spec import ComponentSpec, Settings
from profiling.report.recipes import recipes_section
from profiling.report.run_data import load_run
from profiling.results.jsonl import append_record
from profiling.results.record import record_with
from profiling.run import cell as cell_module
from profiling.run.cell import Cell
from profiling.run.events import Sections


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A cell on a device that is not there, whose steps and events are listed; `run` runs it."""
    events, sent = [], []

    @contextmanager
    def history(file):
        events.append("recording begins")
        file.parent.mkdir()
        try:
            yield
        finally:
            file.write_bytes(b"snapshot")
            events.append("snapshot is written")

    monkeypatch.setattr(cell_module, "memory_history", history)

    def called(self, x):
        events.append("call")
        return self.layer(x)

    class Planted(Cell):
        def measure(self):
            events.append("measured")
            if self.job.component.name == "greedy":
                raise torch.OutOfMemoryError("no room")

        def components(self):
            events.append("built again")
            return {"net": fixed_component(Net(called, layer=nn.Linear(2, 2)), x=torch.zeros(1, 2))}

    def run(name="net", *, device="cuda:0"):
        spec = ComponentSpec(name=name, module={"_target_": "torch.nn.Linear"}, inputs={"x": {"shape": [1]}})
        job = make_job("baseline", tmp_path, spec, settings=Settings(device=device, memory_snapshot=True))
        return Planted(job, lambda event: sent.append(event) if isinstance(event, Sections) else None).run()

    return run, events, sent


def test_it_is_recorded_after_everything_that_is_measured(planted, tmp_path):
    run, events, sent = planted
    assert run().status == "ok"
    assert events == ["measured", "recording begins", "built again", *["call"] * 5, "snapshot is written"]
    assert [list(each.sections) for each in sent] == [["memory_snapshot"]]  # no time is written a second time
    append_record(tmp_path, record_with(record(), sent[0].sections))
    data = load_run(tmp_path)
    (table,) = (table for table in recipes_section(data).tables if table)
    assert [cell.href for cell in table.shown()[1][0] if cell.href] == ["memory/net.baseline.pickle"]
    assert "pytorch.org/memory_viz" in table.notes[0]


def test_a_cell_that_ran_out_of_memory_has_one(planted, tmp_path):
    run, events, _ = planted
    with pytest.raises(torch.OutOfMemoryError):
        run("greedy")
    assert events[:2] == ["measured", "recording begins"]
    assert (tmp_path / "memory" / "greedy.baseline.pickle").is_file()


def test_a_cpu_has_none_and_says_why(planted):
    run, events, sent = planted
    assert run(device="cpu").status == "ok"
    assert events == ["measured"]
    assert [[*each.sections["notes"]] for each in sent] == [
        ["memory_snapshot=true: none was written, for torch records the memory of CUDA devices only"]
    ]
