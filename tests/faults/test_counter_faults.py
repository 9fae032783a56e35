"""Hardware counters."""

import pytest
from fake_ncu import install, printed, sample
from make_job import make_job
from table import promise

from profiling.components.spec import Settings
from profiling.errors import InputError
from profiling.run import process
from profiling.run.events import End, Phase, Sections
from profiling.run.probe import resolve
from profiling.run.process import Isolated
from profiling.run.session import Limits, ProcessEnd, to_its_end
from profiling.run.task import Cell

NET = ("component=[net]", "variant=[baseline]", "counters=true")


@promise("option")
@pytest.mark.parametrize(
    ("overrides", "ncu", "says"),
    [
        pytest.param(("device=cpu",), True, "device=cpu", id="counters of a CPU"),
        pytest.param(("device=auto", "isolation=none"), True, "isolation=none", id="counters without processes"),
        pytest.param(("device=auto", "isolation=process"), False, "PATH=$PATH", id="counters without ncu on the PATH"),
    ],
)
def test_counters_that_cannot_be_measured(tmp_path, profile, monkeypatch, overrides, ncu, says):
    if ncu:
        install(tmp_path / "bin", monkeypatch)
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    outcome = profile(*NET, *overrides)
    assert outcome.code == 2
    assert says in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


@promise("option")
def test_no_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="CUDA is not available"):
        resolve(Settings(trace=True, counters=True))


UNKNOWN_UNIT = printed(("k", "(1, 1, 1)", {}), units={"gpu__time_duration.sum": "?"}).replace('"n/a"', '"1"')
FAILURES = (
    ("the driver allows counters to root only (ERR_NVGPUCTRPERM)", "==ERROR== ERR_NVGPUCTRPERM", "prints", "root"),
    ("ncu prints a unit that is not known", UNKNOWN_UNIT, "prints", "the unit '?'"),
    ("ncu crashes", "", "crashes", "ncu printed no rows; see cells/net.baseline.counters.log"),
    ("ncu does not know a metric", "==ERROR== Failed to find metric x", "prints", "Failed to find metric"),
    ("ncu knows none of the metrics and says nothing", sample("unknown_metric"), "prints", "none of the metrics"),
    ("ncu hangs", "", "hangs", "killed after"),
)


@promise("counters")
@pytest.mark.parametrize(("text", "mode", "says"), [pytest.param(*row, id=planted) for planted, *row in FAILURES])
def test_ncu_fails(tmp_path, monkeypatch, text, mode, says):
    install(tmp_path / "bin", monkeypatch, text, mode)
    monkeypatch.setattr("profiling.run.hardware_counters.COUNTER_SECONDS", 0.5)
    kernels = [{"name": "k", "class": "gemm", "ms": 1.0, "share": 1.0}]

    def worker(task, files, timeout, on_event, environment, **_):
        on_event(Sections({"trace_analysis": {"kernels": kernels}}))
        on_event(End("ok"))
        return ProcessEnd()
        yield

    monkeypatch.setattr(process, "open_session", worker)
    job = make_job("baseline", tmp_path, settings=Settings(device="cuda:0", trace=True, counters=True))
    events = []
    cells = Isolated(tmp_path, Limits(9.0))
    process_end = to_its_end(cells.session(Cell(job=job), job.name, events.append, turns=False))
    assert process_end.death is None
    assert [type(each) for each in events] == [Sections, End, Phase]
    (note,) = process_end.notes
    assert note.startswith("no hardware counters: ")
    assert says in note
    assert "\n" not in note
