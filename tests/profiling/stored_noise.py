"""Noise of an H200 for simulations: the wall times of calls in committed runs."""

from pathlib import Path

import numpy as np

from profiling.results.jsonl import read_results
from profiling.results.judgement import is_disturbed
from profiling.results.record import Record

_RESULTS = Path(__file__).parents[2] / "docs" / "results"
#: The rates that the simulations allow were found with these runs; others have other noise.
_RUNS = (
    *("cpu_world_model_frame", "h200", "h200_chunked_video", "h200_clip_text_batch_1", "h200_diffusion"),
    *("h200_five_variants", "h200_language", "h200_launch_overhead", "h200_quantised", "h200_realtime"),
    *("h200_realtime_long", "h200_realtime_overlap", "h200_realtime_paced", "h200_speech", "h200_stream_img2img"),
    *("h200_sweep_clip_text", "h200_training_step", "h200_training_step_batch_2", "h200_training_step_batch_2_bf16"),
    *("h200_wan_vae_decoder", "h200_world_model_frame", "h200_world_model_step"),
)


def stored_series() -> list[tuple[Record, np.ndarray]]:
    """Return every timed cell that nothing disturbed, in a fixed order, with its wall times in ms [samples]."""
    records = [record for run in _RUNS for record in read_results(_RESULTS / run / "results.jsonl").records]
    timed = [(record, record.metrics.wall_ms) for record in records if not is_disturbed(record)]
    return [(record, np.array(wall.samples)) for record, wall in timed if wall and len(wall.samples) >= 100]
