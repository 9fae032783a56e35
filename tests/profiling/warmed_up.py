"""Does once what is slow when a process does it first: compiles a small network, composes a config, renders a report.

It is imported before forks, which find modules, parsers, templates and columns ready. Nothing of the network is kept,
no thread is left that a fork would lack, and counters begin at 0.
"""

import os
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
import tqdm
from parsed_once import ROOT
from torch import nn
from torch._dynamo.utils import compilation_time_metrics, counters
from torch._inductor import config

from profiling.cli.app import CONF, compose_config
from profiling.report.render import run_report
from profiling.report.run_data import load_run


def _compile() -> None:
    layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16)).eval()
    with (
        TemporaryDirectory(prefix="warm-") as folder,
        patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder),
        patch.object(tqdm.tqdm, "monitor_interval", 0),  # its monitor is a thread
        config.patch(compile_threads=1),
        torch.inference_mode(),
    ):
        torch.compile(layers)(torch.ones(4, 16))
    torch._dynamo.reset()
    counters.clear()
    compilation_time_metrics.clear()


_compile()
compose_config("generic_forward", ["component=[image_decoder]", "variant=[baseline,compile]", "seed=1"], [CONF])
for _run in ("h200_main", "h200_realtime"):
    run_report(load_run(ROOT / "docs" / "results" / _run)).page()
