"""One of the callables of `referees.py` under pyperf, which starts this file again for its worker process."""

import argparse

import pyperf
import torch
from referee_callables import callables


def hand_on(command: list[str], options: argparse.Namespace) -> None:
    """Tell the worker process which callable it is about."""
    command.extend(("--number", str(options.number)))


torch.set_num_threads(1)
runner = pyperf.Runner(processes=1, values=5, warmups=2, add_cmdline_args=hand_on)
runner.argparser.add_argument("--number", type=int, default=0, help="which of the callables, from 0")
name, call = list(callables("cpu").items())[runner.parse_args().number]
with torch.inference_mode():
    runner.bench_func(name, call)
