"""A metric of your own: which share of a picture's values is clipped, beside its time and its error.

python docs/examples/own_metric.py

For a command, keep the class in my_package.py, write metric/clipped.yaml with the line
`clipped: {_target_: my_package.Clipped, limit: 1.0}`, and add --config-dir=. metric=[parity,latency,memory,clipped].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

import profiling
from profiling.metrics.latency import Latency
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.metrics.parity import Parity


@dataclass(frozen=True, kw_only=True)
class Clipped(Metric):
    """Share of the output's values beyond `limit`; the fields of a metric are its options."""

    limit: float = 1.0

    def measure(self, subject: Subject) -> Measured:
        """Call the prepared step once; what is returned here is in the record and in the report."""
        picture = subject.step.run()
        share = (picture.abs() > self.limit).float().mean().item()
        # To fail the cell: Measured({…}, ("failed", "90% of the picture is clipped")).
        return Measured({"clipped": {"share": share}})


if __name__ == "__main__":
    decoder = nn.Sequential(nn.Conv2d(4, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 3, 3, padding=1))
    result = profiling.profile(
        decoder,
        inputs={"input": torch.randn(1, 4, 32, 32)},
        variants=["baseline"],
        metrics={"parity": Parity(), "latency": Latency(max_seconds=1), "clipped": Clipped(limit=0.5)},
        ceilings="off",
    )
    print(result)
    print("clipped:", result.records[0].metrics.extra["clipped"])
