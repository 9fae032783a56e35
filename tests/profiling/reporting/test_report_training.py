"""Hand-written training runs: known bytes by phase and known losses in, known cells out."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiling.reporting.render import render_console, render_markdown, write_report
from profiling.reporting.training import training_tables
from profiling.results.records import Record

Make = Callable[..., Record]
Save = Callable[[Sequence[Record]], Path]
Row = dict[str, str]

MIB = 2**20
DASH = "–"
MEMORY = "Memory by phase, MiB: world_model"
DELTA = "static input, its delta"


def bytes_of(allocated: int, **others: int) -> dict[str, int]:
    return {kind: count * MIB for kind, count in {"allocated": allocated, **others}.items()}


def item(step: int, loss: float, step_ms: float = 12.5, data_ms: float = 0.12) -> dict[str, float]:
    return {"step": step, "loss": loss, "step_ms": step_ms, "data_ms": data_ms}


PHASES = {  # out of order: the order is the report's
    "training": bytes_of(1600, reserved=1800, host_rss=2500),
    "start": bytes_of(0, host_rss=500),
    "dataloader": bytes_of(0, host_rss=900),
    "model": bytes_of(1000, reserved=1020, host_rss=1900),
    "ready": bytes_of(1200, reserved=1220, host_rss=2000),
}
CAPTURED = {
    "capture": bytes_of(1500, reserved=1700, device_used=3100),
    "static input": bytes_of(1236, reserved=1260, device_used=3000),
    "before static input": bytes_of(1224, reserved=1220, device_used=3000),
}
EAGER_LOG = [item(0, 2.302585), item(10, 1.5)]


@pytest.fixture
def trained(make: Make) -> tuple[Record, ...]:
    """Eager training, and the same captured by hand."""
    eager = {"log": EAGER_LOG, "eager_log": EAGER_LOG}
    log = [item(0, 2.302585, 4.25, 0.05), item(10, 1.500125, 4.0), item(19, 1.25, 4.125)]
    captured = {"log": log, "eager_log": [*reversed(EAGER_LOG), item(5, 9.0)]}
    return (
        make("baseline", 12.5, memory={"phases": PHASES}, training=eager),
        make("cuda_graph", 4.0, memory={"phases": PHASES}, graphs={"memory": CAPTURED}, training=captured),
    )


def rows(table: str) -> list[Row]:
    """Return the rows of a Markdown table; all lines must have as many cells."""
    lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]
    header, rule, *body = lines
    assert set("".join(rule)) <= set(":-")
    assert {len(line) for line in lines} == {len(header)}
    return [dict(zip(header, row, strict=True)) for row in body]


def titled(records: Sequence[Record]) -> dict[str, list[Row]]:
    return {title: rows(table) for title, table in training_tables(records, markdown=True)}


def by_phase(records: Sequence[Record]) -> dict[str, Row]:
    return {row["phase"]: row for row in titled(records)[MEMORY]}


def test_phases_in_order_with_the_ways_of_running_side_by_side(trained: tuple[Record, ...]) -> None:
    table = titled(trained)[MEMORY]
    phases = ["dataloader", "model", "ready", "before static input", "static input", DELTA, "capture", "training"]
    assert [row["phase"] for row in table] == phases
    kinds = ["allocated", "reserved", "device total", "host RSS"]
    pairs = [f"{variant}: {kind}" for kind in kinds for variant in ("baseline", "cuda_graph")]
    pairs.remove("baseline: device total")  # nobody measured it
    assert list(table[0]) == ["phase", *pairs]


def test_memory_by_phase_holds_the_planted_bytes(trained: tuple[Record, ...]) -> None:
    table = by_phase(trained)
    assert list(table["model"].values())[1:] == ["1000", "1000", "1020", "1020", DASH, "1900", "1900"]
    assert list(table["capture"].values())[1:] == [DASH, "1500", DASH, "1700", "3100", DASH, DASH]
    assert table["dataloader"]["baseline: allocated"] == "0", "a measured zero is a zero"
    assert table["dataloader"]["baseline: reserved"] == DASH, "what was not measured is none"


def test_static_inputs_cost_the_difference(trained: tuple[Record, ...]) -> None:
    delta = by_phase(trained)[DELTA]
    assert delta["cuda_graph: allocated"] == "12"
    assert delta["cuda_graph: reserved"] == "40"
    assert delta["cuda_graph: device total"] == "0"
    assert {shown for header, shown in delta.items() if header.startswith("baseline")} == {DASH}


def test_a_kind_that_only_one_side_has_makes_no_difference(make: Make) -> None:
    memory = {"before static input": bytes_of(10), "static input": bytes_of(15, reserved=20)}
    delta = by_phase([make("cuda_graph", graphs={"memory": memory}, training={"log": []})])[DELTA]
    assert list(delta.values())[1:] == ["5.0", DASH]


def test_no_delta_without_both_sides(make: Make) -> None:
    record = make("cuda_graph", graphs={"memory": {"static input": bytes_of(15)}}, training={"log": []})
    assert list(by_phase([record])) == ["static input"]


def test_eagers_loss_stands_at_its_step(trained: tuple[Record, ...]) -> None:
    steps = [list(row.values())[1:] for row in titled(trained)["Steps"]]
    assert steps == [
        ["baseline", "0", "2.3026", "2.3026", "12.50", "0.120"],
        ["baseline", "10", "1.5000", "1.5000", "12.50", "0.120"],
        ["cuda_graph", "0", "2.3026", "2.3026", "4.250", "0.0500"],
        ["cuda_graph", "10", "1.5001", "1.5000", "4.000", "0.120"],
        ["cuda_graph", "19", "1.2500", DASH, "4.125", "0.120"],
    ]
    headers = ["component", "variant", "step", "loss", "eager's loss", "step ms", "waiting for data ms"]
    assert list(titled(trained)["Steps"][0]) == headers


def test_a_table_of_memory_for_each_component(trained: tuple[Record, ...], make: Make) -> None:
    other = make("baseline", component="clip", memory={"phases": {"ready": bytes_of(77)}}, training={"log": EAGER_LOG})
    found = titled([*trained, other])
    assert list(found) == [MEMORY, "Memory by phase, MiB: clip", "Steps"]
    assert found["Memory by phase, MiB: clip"] == [{"phase": "ready", "baseline: allocated": "77"}]


def test_console_and_markdown_hold_the_same_cells(trained: tuple[Record, ...]) -> None:
    for title, table in training_tables(trained, markdown=False):
        body = [re.split(r" {2,}", line.strip()) for line in table.splitlines()[2:]]
        assert body == [list(row.values()) for row in titled(trained)[title]]


def test_names_cannot_break_the_tables(make: Make, tmp_path: Path) -> None:
    record = make(
        "x*y|z", component="a|b*c*", memory={"phases": {"ready": bytes_of(77)}}, training={"log": [item(0, 1.0)]}
    )
    (memory,), (step,) = titled([record]).values()
    assert memory == {"phase": "ready", "x\\*y\\|z: allocated": "77"}
    assert (step["component"], step["variant"]) == ("a\\|b\\*c\\*", "x\\*y\\|z")
    report = render_markdown([record], {}, tmp_path)
    assert "### Memory by phase, MiB: a\\|b\\*c\\*\n" in report
    assert "x*y|z: allocated" in render_console([record], {}, tmp_path)


def test_report_and_console_show_them_once(trained: tuple[Record, ...], save: Save) -> None:
    run = save(trained)
    console, report = write_report(run), (run / "report.md").read_text(encoding="utf-8")
    for title in (MEMORY, "Steps"):
        assert console.count(f"{title}:\n") == 1
        assert report.count(f"### {title}\n") == 1


def test_records_without_training_change_nothing(
    three: tuple[Record, ...], trained: tuple[Record, ...], make: Make, tmp_path: Path
) -> None:
    empty = [replace(r, training={}) for r in three]
    full = [replace(r, training=trained[0].training) for r in three]
    for render in (render_console, render_markdown):
        plain = render(three, {}, tmp_path)
        assert render(empty, {}, tmp_path) == plain
        left = iter(render(full, {}, tmp_path).splitlines())
        others = [line for line in plain.splitlines() if "FPS" not in line or "frame" not in line]
        assert all(line in left for line in others), "tables are added; but for frame rates, nothing else changes"
        assert "eager's loss" not in plain
    captured = make("cuda_graph", 4.0, memory={"phases": PHASES}, graphs={"memory": CAPTURED})
    assert training_tables([captured], markdown=True) == (), "memory by phase is a table of training"


def assert_baseline_stands(records: Sequence[Record], folder: Path) -> None:
    assert by_phase(records)["model"]["baseline: allocated"] == "1000"
    first = titled(records)["Steps"][0]
    assert (first["step"], first["eager's loss"]) == ("0", "2.3026")
    for render in (render_console, render_markdown):
        assert not re.search(r"\b(nan|inf|None)\b", render(records, {}, folder))


@pytest.mark.parametrize(
    "training",
    [
        3,
        "text",
        [1],
        {"log": 3, "eager_log": "text"},
        {"log": [None, 3, "text", {}]},
        {"log": [{"loss": 1.0}]},
        {"log": [{"step": [1], "loss": 1.0}], "eager_log": [{"step": [1], "loss": 1.0}]},
        {"log": [{"step": 0, "loss": "NaN", "step_ms": None, "data_ms": float("nan")}]},
        {"log": [item(0, 1.0)], "eager_log": [None, 3, {"loss": 1.0}, {"step": 0, "loss": "NaN"}]},
    ],
)
def test_hostile_logs_do_not_break_the_others(
    trained: tuple[Record, ...], make: Make, tmp_path: Path, training: Any
) -> None:
    assert_baseline_stands([trained[0], make("odd", training=training)], tmp_path)


def test_what_a_log_lacks_is_a_dash(make: Make) -> None:
    log = [item(0, 2.0), {"loss": 1.0}, {"step": 2, "loss": "NaN"}]
    steps = titled([make("baseline", training={"log": log, "eager_log": [{"loss": 7.0}, item(2, 3.0)]})])["Steps"]
    assert [list(row.values())[2:] for row in steps] == [
        ["0", "2.0000", DASH, "12.50", "0.120"],
        [DASH, "1.0000", DASH, DASH, DASH],
        ["2", DASH, "3.0000", DASH, DASH],
    ]


@pytest.mark.parametrize(
    "sections",
    [
        {"memory": 3},
        {"memory": {"phases": "text"}},
        {"memory": {"phases": ["model"]}},
        {"memory": {"phases": {"model": 3, "ready": {"allocated": "NaN"}}}},
        {"graphs": 3},
        {"graphs": {"memory": 3}},
        {"graphs": {"memory": {"before static input": 3, "static input": 4}}},
        {"graphs": {"memory": {"before static input": bytes_of(1), "static input": {"allocated": "much"}}}},
        {"graphs": {"memory": {"before static input": {"allocated": None}, "static input": bytes_of(1)}}},
        {"graphs": {"memory": {"before static input": {"allocated": True}, "static input": bytes_of(1)}}},
    ],
)
def test_hostile_memory_does_not_break_the_others(
    trained: tuple[Record, ...], make: Make, tmp_path: Path, sections: dict[str, Any]
) -> None:
    odd = make("odd", **({"training": {"log": [item(0, 1.0)]}} | sections))
    records = [trained[0], odd]
    assert_baseline_stands(records, tmp_path)
    assert DELTA not in by_phase(records), "there is no difference between what are no numbers"
