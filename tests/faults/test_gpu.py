"""Faults on a GPU."""

import pytest
from table import promise

pytestmark = pytest.mark.gpu

#: Phases in which a failure costs the row, and the file whose frames mark the phase.
MEASURED = {
    "building the module": "load",
    "the float32 reference": "components/reference.py",
    "preparing the variant": "variants/recipe.py",
    "the parity check": "metrics/parity.py",
    "timing": "metrics/latency.py",
    "measuring memory": "metrics/memory.py",
}
#: Phases that explain the numbers: a failure there is a note, and the times stay.
EXPLAINED = {"the roofline": "roofline/section.py", "the profiler trace": "trace/profiler.py"}


def run_beside_net(profile, fault: str, where: str, *overrides: str, variant: str = "baseline"):
    """Run the faulty cell, then a good one; return the outcome and the faulty cell's record."""
    outcome = profile(
        "component=[faulty,net]",
        f"component.faulty.module.fault={fault}",
        f"component.faulty.module.where={where}",
        f"variant=[{variant}]",
        "device=cuda",
        *overrides,
    )
    records = outcome.records
    good = records["net", variant]
    assert good.status == "ok", good.reason
    assert good.metrics.wall_ms is not None
    return outcome, records["faulty", variant]


@pytest.mark.parametrize("where", MEASURED.values(), ids=list(MEASURED))
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        pytest.param("out_of_memory", "OutOfMemory", marks=promise("memory")),
        # The call that meets the error first, cublasCreate for example, has its own words.
        pytest.param("illegal_access", "CUDA", marks=promise("illegal access")),
    ],
)
def test_a_fault_on_the_device_costs_its_row(profile, fault, says, where):
    outcome, record = run_beside_net(profile, fault, where)
    assert outcome.code == 1
    assert record.status == "failed"
    assert says in record.reason
    assert fault != "out_of_memory" or record.bad_input is False


@promise("memory")
@pytest.mark.parametrize("where", EXPLAINED.values(), ids=list(EXPLAINED))
def test_out_of_memory_while_explaining(profile, where):
    _, record = run_beside_net(profile, "out_of_memory", where, "trace=true", "ceilings=auto")
    assert record.status == "ok", record.reason
    assert record.metrics.wall_ms is not None
    assert any("OutOfMemory" in note for note in record.notes), record.notes


@promise("illegal access")
def test_illegal_access_while_tracing(profile):
    _, record = run_beside_net(profile, "illegal_access", EXPLAINED["the profiler trace"], "trace=true")
    assert record.metrics.wall_ms is not None
    assert any("illegal memory access" in text for text in (record.reason or "", *record.notes))


@promise("hangs")
def test_endless_kernel(profile):
    outcome, record = run_beside_net(profile, "endless_kernel", MEASURED["timing"], "cell_timeout=60")
    assert outcome.code == 1
    assert "cell_timeout" in record.reason
    assert record.parity is not None
    assert record.parity.passed, "measured before the timeout"


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        pytest.param("endless_kernel", "cell_timeout", marks=promise("hangs")),
        pytest.param("killed", "SIGKILL", marks=promise("dies")),
        pytest.param("out_of_memory", "", marks=promise("memory")),
        pytest.param("illegal_access", "illegal memory access", marks=promise("illegal access")),
    ],
)
def test_faults_during_capture(profile, fault, says):
    limit = ("cell_timeout=60",) if fault == "endless_kernel" else ()
    outcome, record = run_beside_net(profile, fault, "capture", *limit, variant="cuda_graph")
    assert outcome.code == 1
    assert record.status == "failed"
    assert says in record.reason
