"""The callables of `referees.py` under pyperf, which starts this file again for each of its worker processes."""

import pyperf
import torch
from referee_callables import callables

torch.set_num_threads(1)
runner = pyperf.Runner(processes=5, values=5, warmups=2)
with torch.inference_mode():
    for name, call in callables("cpu").items():
        runner.bench_func(name, call)
