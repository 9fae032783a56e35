"""What the report says of quantised layers, and the front of accuracy and speed."""

from pathlib import Path

from make_record import record

from profiling.report.quantisation import front_of, quantisation_section
from profiling.report.run_data import RunData
from profiling.results.environment import Environment
from profiling.results.explained import BeforeAfter, Choices, LayerSensitivity, ModuleChoice, RecipeStep, Sensitivity
from profiling.results.measured import Parity

FEW = "called with 1 row, and the kernel needs 17 or more"


def of(variant, ms, error, *, passed=True, **fields):
    problem = {} if passed else {"status": "failed", "reason": "parity"}
    return record(variant, ms, parity=Parity(reference="fp32", passed=passed, rel_l2=error), **problem, **fields)


def records():
    layers = tuple(ModuleChoice(name=f"norm.{number}", shape=(8, 4), left=FEW) for number in range(5))
    choices = Choices(replaced=48, now={"Int8Tensor": 48}, left={FEW: 5}, layers=layers)
    step = RecipeStep(kind="transform", name="Quantize", seconds=1.0, changed=48, choices=choices)
    alone = LayerSensitivity(name="blocks.0.mlp", shape=(16, 8), rel_l2=0.01, ms=BeforeAfter(before=0.5, after=0.25))
    sensitivity = Sensitivity(layers=(alone,), quantised=48, timed="estimated: the layer alone, eager")
    return (
        of("baseline", 10.0, 0.001),
        of("int8", 4.0, 0.02, recipe=(step,), sensitivity=sensitivity),
        of("slow_int4", 6.0, 0.3),
        of("wrong", 1.0, 0.9, passed=False),
        of("fp8", 3.0, 0.1),
    )


def test_the_front_holds_what_nothing_correct_beats_in_both():
    assert [each.variant for each in front_of(records())] == ["fp8", "int8", "baseline"]


def test_tables_and_chart():
    section = quantisation_section(RunData(records(), Environment(), Path()))
    layers, alone = ([[column.read(row) for column in table.columns] for row in table.rows] for table in section.tables)
    assert layers == [
        ["net", "int8", None, "Quantize", 48, "replaced by Int8Tensor", None],
        ["net", "int8", None, "Quantize", 5, f"left: {FEW}", "norm.0, norm.1, norm.2, …"],
    ]
    assert alone == [["net", "int8", "blocks.0.mlp", "16 × 8", 0.01, 0.5, 0.25]]
    assert section.lines == ("int8: 1 of 48 quantised layers alone; times estimated: the layer alone, eager",)
    (chart,) = section.charts
    (view,) = chart.views
    front, *points = view.figure["data"]
    assert (front["x"], front["y"]) == ([0.1, 0.02, 0.001], [3.0, 4.0, 10.0])
    assert {each["name"]: each["marker"]["symbol"] for each in points}["wrong"] == "circle-open"
    assert view.figure["layout"]["xaxis"]["type"] == "log"


def test_without_transforms_there_is_no_section():
    rows = (of("baseline", 10.0, 0.0), of("compile", 5.0, 0.0))
    assert not quantisation_section(RunData(rows, Environment(), Path()))
