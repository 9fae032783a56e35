"""Sections on their way from a cell to its record: validated once, nothing lost, no field overwritten by a metric."""

import math

import msgspec
import numpy as np
import pytest
from make_record import record, summary

from profiling.results.explanations import FxPass
from profiling.results.jsonl import decode_record, encode_record
from profiling.results.measured import Memory, Metrics, Prepare
from profiling.results.record import decode_section, encode_sections, merge_metric, record_with


def test_sections_cross_the_process_boundary_unchanged():
    structs = {
        "prepare": Prepare(seconds=1.5, graphs=2),
        "metrics": Metrics(wall_ms=summary(2.0, samples=(1.0, 3.0)), extra={"watts": {"p50": 300.0}}),
        "passes": (FxPass(name="fold", replaced=3),),
        "notes": ("one",),
        "parameters": 7,
    }
    sent = msgspec.json.decode(msgspec.json.encode(encode_sections(**structs)))
    merged = record_with(record(), sent)
    assert {name: getattr(merged, name) for name in structs} == structs
    from_numpy = encode_sections(prepare={"seconds": np.float64(1.5), "graphs": np.int64(2)})
    assert record_with(record(), from_numpy).prepare == structs["prepare"]


@pytest.mark.parametrize(
    "section",
    [
        {"prepare": {"seconds": "long"}},
        {"prepare": {"seconds": math.nan}},
        {"prepare": {"seconds": -1.0}},
        {"prepare": {"seconds": 1.0, "secnods": 2.0}},
        {"metrics": Metrics(extra={"tensor": object()})},
        {"status": "ok"},
        {"power": {}},
    ],
)
def test_a_section_that_does_not_validate_is_refused_where_it_was_made_and_by_the_parent(section):
    with pytest.raises(ValueError, match=next(iter(section))):
        encode_sections(**section)
    with pytest.raises(ValueError, match="status"):
        record_with(record(), {"status": "failed"})
    with pytest.raises(ValueError, match="status"):
        record(status="fine", reason="an unknown status")
    with pytest.raises(ValueError, match="nothing"):
        decode_section("nothing", {})


def test_a_metric_of_the_user_cannot_overwrite_a_field():
    measured = {"status": "failed", "variant": {"p50": 1.0}, "extra": 3, "memory": {"peak_allocated": 5}}
    metrics, sections = merge_metric(Metrics(wall_ms=summary(2.0)), measured)
    whole = record_with(record(), encode_sections(metrics=metrics, **sections))
    assert (whole.status, whole.variant, whole.wall_p50) == ("ok", "baseline", 2.0)
    assert whole.metrics.extra == {"status": "failed", "variant": {"p50": 1.0}, "extra": 3}
    assert whole.memory == Memory(peak_allocated=5)
    assert decode_record(encode_record(whole)) == whole
    for name, content in (("wall_ms", {"p50": "fast"}), ("watts", {"p50": math.inf}), ("watts", object())):
        with pytest.raises(ValueError, match=name):
            merge_metric(Metrics(), {name: content})
