"""Which way of running this module is fastest and still right? Prints the answer and saves a run with a report.

python docs/examples/profile_module.py
"""

import torch
from torch import nn

import profiling
from profiling.metrics.latency import Latency
from profiling.metrics.parity import Parity


class Decoder(nn.Module):
    """A small picture decoder, in place of yours."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, latent: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"picture": torch.sigmoid(self.last(nn.functional.silu(self.first(latent))))}


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = Decoder().to(device)
    result = profiling.profile(
        module,
        inputs={"latent": torch.randn(1, 4, 32, 32, device=device)},
        variants=["baseline", "cuda_graph", "compile+cuda_graph"],  # those that need a GPU are skipped without one
        fps=60,
        metrics={"parity": Parity(), "latency": Latency(max_seconds=1, warmup_max_seconds=1)},  # default: up to 10 s
        ceilings="off",  # "auto" measures the device's limits, for the columns "bound by" and "next"
    )
    print(result)
    best = result.best()
    if best is not None:
        print(f"{best.variant}: {best.wall_p50:.3f} ms, relative error {best.parity.rel_l2:.1e}")
    result.save("runs/decoder")
