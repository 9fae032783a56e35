"""Check the records of a tiny CPU run of the main job: python -P tests/check_run.py RUN."""

import sys
from pathlib import Path

from profiling.results.environment import read_environment
from profiling.results.jsonl import read_records

COMPONENTS = ("world_model", "image_decoder", "audio_decoder")
VARIANTS = ("baseline", "compile", "cuda_graph", "compile+cuda_graph")


def check(run: Path) -> None:
    records = {record.cell: record for record in read_records(run).records}
    assert set(records) == {(component, variant) for component in COMPONENTS for variant in VARIANTS}, sorted(records)
    for (component, variant), record in records.items():
        if "cuda_graph" in variant:
            assert record.status == "skipped", record
            continue
        assert record.status == "ok", record
        wall = record.metrics.wall_ms
        assert wall.n == len(wall.samples)
        assert 0 < wall.min <= wall.p50 <= wall.p99 <= wall.max
        assert record.metrics.device_ms is None, "a CPU has no device clock"
        assert record.parity.passed
        assert record.weights == "random"
        assert record.memory.phases.keys() == {"start", "loaded", "inputs", "prepared", "steady"}
        assert (record.speedup is None) == (variant == "baseline"), component
    assert read_environment(run).scale == "tiny"
    for name in ("config.yaml", "report.md", "report.html"):
        assert (run / name).stat().st_size > 0, name


if __name__ == "__main__":
    check(Path(sys.argv[1]))
    print("the records are complete and plausible")
