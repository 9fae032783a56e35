"""Hold a tiny run of the main job on a CPU against what it must have measured: python -P tests/check_run.py RUN."""

import json
import sys
from pathlib import Path

from profiling.results.records import read_records


def check(run: Path) -> None:
    records = {record.cell: record for record in read_records(run)}
    components = ("world_model", "world_model_step", "world_model_frame", "image_decoder", "audio_decoder")
    variants = ("baseline", "compile", "cuda_graph", "compile_cuda_graph")
    assert set(records) == {(c, v) for c in components for v in variants}, sorted(records)
    for (component, variant), record in records.items():
        if "cuda_graph" in variant:
            assert record.status == "skipped", record
            continue
        assert record.status == "ok", record
        wall = record.metrics["wall_ms"]
        assert wall["n"] == len(wall["samples"])
        assert 0 < wall["min"] <= wall["p50"] <= wall["p99"] <= wall["max"]
        assert "device_ms" not in record.metrics, "a CPU has one clock"
        assert record.parity["passed"]
        assert record.weights == "random"
        assert record.memory["phases"].keys() == {"start", "loaded", "inputs", "prepared", "steady"}
        assert (record.speedup is None) == (variant == "baseline"), component
    assert json.loads((run / "environment.json").read_text())["scale"] == "tiny"
    for name in ("config.yaml", "report.md", "report.html", "classic.txt"):
        assert (run / name).stat().st_size > 0, name


if __name__ == "__main__":
    check(Path(sys.argv[1]))
    print("the run holds what it must")
