"""check=true and memory_snapshot=true on a GPU."""

import pickle

import pytest

pytestmark = pytest.mark.gpu


def test_a_look_tries_a_capture(profile):
    names = "component=[net,syncs,host_tensor,counts,broken_up]"
    outcome = profile(names, "device=cuda", "check=true")
    assert outcome.code == 0, outcome.err
    calls = {name: record.check.calls[name] for (name, _), record in outcome.records.items()}
    captured = {name: call.captured for name, call in calls.items()}
    assert captured == {"net": True, "syncs": False, "host_tensor": False, "counts": False, "broken_up": True}
    for name in ("syncs", "host_tensor", "counts"):
        (obstacle,) = (each for each in calls[name].obstacles if each.hinders == "cuda_graph")
        assert obstacle.file.endswith("faulty_modules.py")
        assert obstacle.line
        assert obstacle.advice
    assert [each.hinders for each in calls["broken_up"].obstacles] == ["compile"] * 2


def test_a_memory_snapshot_names_the_lines_that_allocate(profile):
    outcome = profile("component=[net]", "variant=[baseline,cuda_graph]", "device=cuda", "memory_snapshot=true")
    assert outcome.code == 0, outcome.err
    for record in outcome.records.values():
        snapshot = pickle.loads((outcome.folder / record.memory_snapshot.file).read_bytes())
        frames = [frame for trace in snapshot["device_traces"] for event in trace for frame in event.get("frames", ())]
        assert any(frame["filename"].endswith("outside_net.py") for frame in frames)
