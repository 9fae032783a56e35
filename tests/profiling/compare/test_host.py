"""A slower host is told from slower code: by committed runs of the same code, and by planted clocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from planted_runs import ENVIRONMENT, cell, noisy, write_run

from profiling.compare.cells import compare_cells, exit_code
from profiling.compare.host import host_change
from profiling.compare.loaded_run import LoadedRun, read_run
from profiling.results.measured import Prepare
from profiling.results.record import Record
from profiling.results.stats import summarize

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
T = 0.02


def timed(variant: str, wall: float, device: float, host: float, component: str = "net", **changes: object) -> Record:
    record = cell(variant, noisy(wall, spread=0.001, seed=len(variant)), **changes)
    clocks = {"device_ms": summarize([device] * 9), "host_ms": summarize([host] * 9)}
    return replace(record, component=component, metrics=replace(record.metrics, **clocks))


def launching(us: float) -> dict:
    ceilings = {
        **{
            "dtype": "float32",
            "bandwidth": [[1, 1.0]],
            "copy_bytes_per_s": 1.0,
            "read_bytes_per_s": 1.0,
            "matmul_flops_per_s": 1.0,
        },
        **{"launch_us": us, "gap_us": 1.0, "seconds": 1.0},
    }
    return {**ENVIRONMENT, "ceilings": ceilings}


@pytest.fixture
def compared(tmp_path: Path):
    def run(a: list[Record], b: list[Record], launch_us: tuple[float, float] | None = None) -> dict[str, str]:
        environments = [ENVIRONMENT, ENVIRONMENT] if launch_us is None else [launching(us) for us in launch_us]
        runs = [
            read_run(write_run(tmp_path / name, *records, environment=environment))
            for name, records, environment in zip("ab", (a, b), environments, strict=True)
        ]
        return {f"{each.component}.{each.variant}": each.verdict for each in compare_cells(*runs, T)}

    return run


def test_runs_of_the_same_code_on_a_slower_host_are_not_called_slower():
    fast, slow = (read_run(RESULTS / name) for name in ("h200_five_variants", "h200"))
    for a, b, way in ((fast, slow, "slower"), (slow, fast, "faster")):
        cells = [each for each in compare_cells(a, b, T) if each.verdict != "not compared"]
        captured = [each for each in cells if each.variant in ("cuda_graph", "compile_cuda_graph")]
        assert {each.verdict for each in captured} == {"same"}
        others = [each for each in cells if each not in captured]
        assert {each.verdict for each in others} == {"cannot tell"}
        assert all(each.reason.startswith(f"the host launches 1.5× {way} in B") for each in others)
        assert exit_code(cells, T) == 2, "on a faster host slower code may look faster"


CAPTURED = [timed("graph", 5.0, 5.0, 0.05), timed("graph2", 4.0, 4.0, 0.04)]
SLOWER_HOST = [timed("graph", 5.0, 5.0, 0.075), timed("graph2", 4.0, 4.0, 0.06)]


@pytest.mark.parametrize(
    ("after", "captured", "verdict"),
    [
        pytest.param(timed("eager", 15.0, 14.9, 14.8), SLOWER_HOST, "cannot tell", id="the host is slower"),
        pytest.param(timed("eager", 15.0, 14.9, 14.8), CAPTURED, "slower", id="only this cell's host part is slower"),
        pytest.param(timed("eager", 25.0, 24.9, 24.8), SLOWER_HOST, "slower", id="more than the host can make"),
        pytest.param(timed("eager", 15.0, 14.9, 10.0), SLOWER_HOST, "slower", id="its host part is not slower"),
        pytest.param(
            timed("eager", 15.0, 14.9, 14.8, prepare=Prepare(seconds=1.0, graphs=3)),
            SLOWER_HOST,
            "slower",
            id="compiled in another way",
        ),
        pytest.param(
            timed("eager", 15.0, 14.9, 14.8),
            [timed("graph", 5.5, 5.5, 0.075), timed("graph2", 4.0, 4.0, 0.06)],
            "slower",
            id="the device takes longer too",
        ),
        pytest.param(timed("eager", 15.0, 14.9, 14.8), [], "slower", id="no replay tells"),
    ],
)
def test_a_slower_host_is_told_by_replays(compared, after, captured, verdict):
    before = [timed("eager", 10.0, 9.9, 9.8), *(CAPTURED if captured else [])]
    assert compared(before, [after, *captured])["net.eager"] == verdict


@pytest.mark.parametrize(("launch_us", "verdict"), [((4.0, 6.0), "cannot tell"), ((4.0, 4.1), "slower")])
def test_the_calibration_of_launches_comes_before_replays(compared, launch_us, verdict):
    before, after = timed("eager", 10.0, 9.9, 9.8), timed("eager", 14.0, 13.9, 13.8)
    assert compared([before, *CAPTURED], [after, *CAPTURED], launch_us)["net.eager"] == verdict


def test_a_run_compared_with_itself_has_one_host():
    run: LoadedRun = read_run(RESULTS / "h200")
    assert host_change(run, run) is None
