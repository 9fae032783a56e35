"""A network of 14 billion parameters in bfloat16 (28 GB) on a GPU of 80 GB, and on one with no room for a copy."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import profiling
from profiling.metrics.latency import Latency
from profiling.metrics.parity import Parity

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(900)]

WIDTH, LAYERS = 8192, 209
LATENCY = Latency(min_iterations=5, max_iterations=50, max_seconds=2, warmup_max_seconds=1)
GB = 10**9


class Stack(nn.Module):
    """Linear layers with residuals: 14.0 billion parameters."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        made = (nn.Linear(WIDTH, WIDTH, bias=False, device="cuda", dtype=dtype) for _ in range(LAYERS))
        self.layers = nn.ModuleList(made)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(F.rms_norm(x, (WIDTH,)))
        return x


@pytest.fixture
def leave_free():
    """Let as many bytes of the GPU be free, others being taken by another tensor."""
    taken = []

    def leave(size):
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        if free < size:
            pytest.skip(f"needs {size / GB:.0f} GB of free GPU memory")
        taken.append(torch.empty(free - size, dtype=torch.uint8, device="cuda"))

    yield leave
    taken.clear()
    torch.cuda.empty_cache()


CASES = {
    "built in bfloat16, 80 GB": (torch.bfloat16, None, 80, "fp32 eager"),
    "built in bfloat16, 45 GB": (torch.bfloat16, None, 45, "fp32 eager on bfloat16 weights"),
    "built in float32, 80 GB": (torch.float32, torch.bfloat16, 80, "fp32 eager"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_network_of_14_billion_parameters(case, leave_free):
    built, cast, size, reference = CASES[case]
    leave_free(size * GB)
    x = torch.randn(1, WIDTH, device="cuda", dtype=built)
    options = {"metrics": {"parity": Parity(), "latency": LATENCY}, "dtype": cast, "ceilings": "off", "quiet": True}
    for record in profiling.profile(lambda: Stack(built), {"x": x}, ["baseline", "cuda_graph"], **options).records:
        assert record.status == "ok", record.reason
        assert record.parameter_dtypes == {"bfloat16": LAYERS * WIDTH**2}
        assert record.parity.reference == reference, record.notes
        assert 1e-4 < record.parity.eager_rel_l2 < 0.1
