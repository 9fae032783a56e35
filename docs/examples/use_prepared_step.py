"""Run a module in an application as it was measured: prepared once, called with new inputs.

python docs/examples/use_prepared_step.py
"""

import torch
from torch import nn

import profiling

if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    variant = "compile+cuda_graph" if device == "cuda" else "baseline"
    module = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device)
    with profiling.prepare(module, inputs={"input": torch.zeros(1, 64, device=device)}, variant=variant) as step:
        state = torch.randn(1, 64, device=device)
        for _ in range(10):
            state = step(state)  # copied into the buffers that the graph reads; the output is yours to keep
        print(variant, state.norm().item())
        try:
            step(torch.randn(2, 64, device=device))
        except profiling.errors.InputError as error:
            print(error)
