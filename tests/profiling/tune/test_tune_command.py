"""The search as a user starts it, on a CPU, and its winner as a variant of another target."""

import pytest
import yaml

from profiling.results.verdicts import fastest_correct

FEW = ("component=[net]", "steps=[cuda_graph,channels_last,fx_passes,halved_twice]", "seconds=60")


def test_a_search_on_a_cpu_ends_with_a_variant_for_any_target(tune, profile, tmp_path):
    done = tune(*FEW)
    assert done.code == 0, done.err
    assert "skipped: cuda_graph (CUDA graphs need a CUDA device" in done.err
    records = {variant: record for (_, variant), record in done.records.items()}
    assert records.keys() == {"baseline", "cuda_graph", "channels_last", "fx_passes", "halved_twice"}
    assert "transform channels_last changes nothing: Net has no 2D or 3D convolution" in records["channels_last"].reason
    assert "transform fx_passes changes nothing" in records["fx_passes"].reason
    assert records["halved_twice"].status == "ok"
    best = fastest_correct(records.values())
    eager = "no recipe is known to be faster than eager"
    assert (eager if best.variant == "baseline" else f"the winner is {best.variant}") in done.err
    tuned = yaml.safe_load((done.folder / "variant" / "tuned.yaml").read_text())
    assert tuned["tuned"].keys() == {"transforms", "names", "compiler", "capture", "tolerance"}
    both = "component=[image_decoder,net]"  # one of the tool's, and the user's own that was searched
    used = profile(both, "variant=[baseline,tuned]", f"--config-dir={done.folder}", "isolation=none")
    assert used.code == 0, used.err
    assert used.records["image_decoder", "tuned"].status == used.records["net", "tuned"].status == "ok"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("steps=[channels_last]", "seconds=0.01"), "nothing was timed within seconds=0.01. Write seconds=60"),
        (("steps=[channels_last]", "seconds=60", "component.net.inputs.x.shape=[2,7]"), "baseline failed: "),
        (("seconds=60", "steps=[cuda_graph]"), "none of its steps can run here: CUDA graphs need a CUDA device"),
    ],
    ids=["no time", "a wrong component", "no step for this device"],
)
def test_a_search_without_a_winner_ends_with_an_error(tune, options, why):
    done = tune("component=[net]", *options)
    assert done.code
    assert f"error: the search has no winner: {why}" in done.err


@pytest.mark.slow
def test_two_devices_are_searched_at_once(tune):
    devices = ("devices=[cpu,cpu:0]", "device=auto")
    alternatives = ("+step.channels_last.rules.group=own", "+step.fx_passes.rules.group=own")
    steps = ("steps=[channels_last,fx_passes]", *alternatives)
    done = tune("component=[image_decoder]", *steps, "seconds=90", *devices)
    assert done.code == 0, done.err
    theirs = done.folder / "devices" / "cpu_0"
    assert (theirs / "results.jsonl").is_file(), theirs.with_suffix(".log").read_text()
    assert "fx_passes" in (theirs / "results.jsonl").read_text()
    assert {"baseline", "channels_last", "fx_passes"} == {variant for _, variant in done.records}
