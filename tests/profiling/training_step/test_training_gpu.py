"""A captured training step follows eager's exactly: same kernels, same order, same numbers."""

import subprocess
import sys
from functools import partial

import pytest
import torch
from as_user import environment
from torch import nn

from profiling.graphs import CudaGraphed
from profiling.results.jsonl import read_records
from profiling.training_step.cell import deterministic_algorithms
from profiling.training_step.options import TrainingOptions
from profiling.training_step.step import TrainingStep
from profiling.training_step.trajectory import Trainer

pytestmark = pytest.mark.gpu

CASES = {
    "sgd": (partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3, fused=True), {}),
    "adamw": (partial(torch.optim.AdamW, lr=0.01, capturable=True), {}),
    "clipped": (partial(torch.optim.SGD, lr=0.05, momentum=0.9, fused=True), {"clip_norm": 0.1}),
    "bfloat16": (partial(torch.optim.AdamW, lr=0.01, capturable=True), {"autocast": "bfloat16"}),
}


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.net = nn.Sequential(self.conv, nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.net(x).float(), y)


def draw(generator):
    return {
        "x": torch.randn(16, 3, 8, 8, generator=generator),
        "y": torch.randint(0, 10, (16,), generator=generator),
    }


@pytest.mark.parametrize("case", CASES)
def test_fifty_captured_steps_are_eagers(case):
    make, extra = CASES[case]
    options = TrainingOptions(steps=50, batches=4, workers=2, lr_changes=[[20, 0.1], [35, 5.0]], **extra)
    torch.manual_seed(0)
    step = TrainingStep(Loss().cuda(), make, options).train()
    batches = [draw(torch.Generator().manual_seed(seed)) for seed in range(options.batches)]
    inputs = {name: tensor.cuda() for name, tensor in batches[0].items()}
    trainer = Trainer(step, inputs, batches, options, rounding=0.0)
    with deterministic_algorithms():
        graphed = CudaGraphed(step, keep_state=lambda: lambda: None)
        graphed(**inputs)
        eager, captured = (trainer.train(partial(run, **inputs)) for run in (step, graphed))
    assert captured.losses == eager.losses
    assert torch.equal(captured.end["weights"], eager.end["weights"])
    assert graphed.counters.recorded == 1
    assert len(set(eager.losses)) == 50


def test_the_target_captures_the_step_and_reports_its_memory(tmp_path):
    folder = tmp_path / "run"
    options = ("training.steps=12", "training.lr_changes=[[6,0.1]]", "scale=tiny", "variant=[baseline,cuda_graph]")
    quick = ("metric.latency.max_seconds=0.5", "metric.latency.warmup_max_seconds=0.5")
    target = [sys.executable, "-m", "profiling.training_step", f"hydra.run.dir={folder}", "device=cuda"]
    done = subprocess.run([*target, *options, *quick], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    records = read_records(folder).records
    eager, captured = (record.roofline.device_work.launches for record in records)
    assert captured < eager
    for record in records:
        assert record.parity.passed
        assert record.parity.rel_l2 == 0
        if record.variant == "cuda_graph":
            memory = record.graphs.memory
            assert memory["static input"].allocated > memory["before static input"].allocated
            assert record.speedup is not None
