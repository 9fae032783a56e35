"""Advice never names a variant that the run measured as slower, that is wrong, or that was skipped."""

import random
import re
from typing import Any

from report_records import build, build_loop, frame_loop, run_data, titled

from profiling.report.answer import answer_section
from profiling.report.render import render_console, render_html, render_markdown
from profiling.report.roofline import REASONS, deciding, judged_calls, next_step, roofline_section, stage_ms
from profiling.report.run_data import load_run
from profiling.results.verdicts import by_component

VARIANTS = ("baseline", "compile", "cuda_graph", "compile+cuda_graph", "compile+max_autotune+cuda_graph", "mine")


def refuted(record, stage, group):
    """Yield the variants that may not be advised for a call of `record`: its own, wrong ones, and slower ones."""
    yield record.variant
    mine = record.median_ms if stage is None else stage_ms(record, stage)
    for other in group:
        theirs = other.median_ms if stage is None else stage_ms(other, stage)
        if not other.is_correct or (mine is not None and theirs is not None and theirs >= mine):
            yield other.variant


def names(text, variant):
    return re.search(rf"(?<![\w+]){re.escape(variant)}(?![\w+])", text) is not None


def check(data):
    """Check every place in which a report advises something; return how often it did."""
    advised = 0
    groups = by_component(data.records)
    for record in data.records:
        group, call = groups[record.component], deciding(record)
        short, long = next_step(record, group) if call is not None else ("", "")
        advised += bool(short)
        for variant in refuted(record, call and call.stage, group) if short else ():
            assert not names(f"{short}; {long}", variant), (record.cell, variant)
    calls = {(r.component, r.variant, call.stage or "–"): r for r in data.records for call in judged_calls(r)}
    for row in titled(roofline_section(data)).get(REASONS, []):
        stage, said = row.get("stage", "–"), row.get("next", "–")
        if stage == "frame":
            assert said == "–"
            continue
        record = calls[row["component"], row["variant"], stage]
        for variant in refuted(record, None if stage == "–" else stage, groups[record.component]):
            assert not names(said, variant), row
    for row in titled(answer_section(data)).get("Answer", []):
        for other in groups[row["component"]]:
            assert other.is_correct or not names(row.get("next", ""), other.variant), row
    return advised


def test_committed_runs_advise_nothing_that_they_refute(committed):
    assert check(load_run(committed)) >= {"h200_diffusion": 3, "h200_main": 10}.get(committed.name, 0)


def made_up(seed):
    """Make the records of a component, or of a loop of two stages, with random times, states and steps."""
    draw = random.Random(seed)
    looped = seed % 3 == 0
    records = []
    for variant in draw.sample(VARIANTS, draw.randint(1, len(VARIANTS))):
        steps = []
        for place in range(draw.randint(0, 4)):
            target = draw.choice((*VARIANTS, "absent_variant", None))
            step: dict[str, Any] = {"words": "sum reductions", "advice": f"sum reductions: {place}"}
            if target:
                advice = draw.choice((f"fuse operators ({target})", f"capture the step ({target})"))
                step = {"words": target, "advice": advice, "variant": target}
            steps.append(step | ({"wall_ms": draw.uniform(0.5, 9)} if draw.random() < 0.7 else {}))
        state = draw.choice(("ok", "ok", "ok", "failed", "invalid", "skipped"))
        part = {"roofline_ms": 0.4, "bound": "GEMM 60%", "evidence": ["x"], "steps": steps}
        changes: dict[str, Any] = {} if state == "ok" else {"status": state, "reason": "planted"}
        if looped:
            section = frame_loop(draw.uniform(5, 12))
            for stage in ("world", "picture"):
                section["budget"]["parts"][stage]["device_ms"] = draw.uniform(0.5, 6)
            parts = {"world": part, "picture": {**part, "steps": steps[::-1]}}
            records.append(build_loop(variant, section, roofline={"roofline_ms": 1.0, "parts": parts}, **changes))
        else:
            timed = None if state == "skipped" else draw.uniform(1, 10)
            records.append(build(variant, timed, roofline=part, **changes))
    return records


def test_made_up_runs_advise_nothing_that_they_refute():
    assert sum(check(run_data(*made_up(seed))) for seed in range(200)) > 100


def test_no_rendering_says_it_either():
    """The stored advice of a record, which a later cell of the same run refuted, is in none of the texts."""
    steps = [{"words": "cuda_graph", "advice": "planted: capture it (cuda_graph)", "variant": "cuda_graph"}]
    section = {"roofline_ms": 0.4, "over_roofline": 5.0, "bound": "GEMM 60%", "evidence": ["x"], "steps": steps}
    slower = build("cuda_graph", 9.0, roofline={"roofline_ms": 0.4, "bound": "GEMM 60%", "evidence": ["x"]})
    data = run_data(build("baseline", 2.0, roofline=section), slower)
    for render in (render_console, render_markdown, render_html):
        assert "planted" not in render(data)
    alone = run_data(build("baseline", 2.0, roofline=section))
    assert "planted" in render_console(alone, details=True)
