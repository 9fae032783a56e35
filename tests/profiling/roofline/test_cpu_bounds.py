"""What bounds a call on this CPU: tiny modules of a known class, with ceilings that are measured here."""

from __future__ import annotations

from time import perf_counter

import pytest
import torch
from planted_networks import Function, component
from torch import Tensor, nn

from profiling.results.environment import Ceilings
from profiling.results.explained import Roofline
from profiling.roofline.measure_ceilings import measure_ceilings
from profiling.roofline.section import call_roofline

SQUARE = torch.randn(1024, 1024) / 32


def dispatches(x: Tensor) -> Tensor:
    """Dispatch many operators on a few numbers."""
    for _ in range(300):
        x = x.neg().abs()
    return x


@pytest.fixture(scope="module")
def ceilings() -> Ceilings:
    return measure_ceilings(torch.device("cpu"), torch.float32, threads=torch.get_num_threads(), tf32=False)


@pytest.mark.parametrize(
    ("module", "size", "bound", "operator"),
    [
        (Function(lambda x: x.neg().neg().neg().neg()), (2**22,), "memory bandwidth", "aten::neg"),
        (Function(lambda weight, x: x.mm(weight).mm(weight), SQUARE), (1024, 1024), "compute", "aten::mm"),
        (Function(dispatches), (8,), "host", ""),
        (Function(lambda x: x.sort().values), (2**20,), "reductions", "aten::sort"),  # far more than reading takes
    ],
    ids=["memory", "compute", "host", "slow"],
)
@torch.inference_mode()
def test_a_tiny_module_of_a_known_class(
    ceilings: Ceilings, module: nn.Module, size: tuple[int, ...], bound: str, operator: str
) -> None:
    planted = component(module, x=torch.randn(*size))
    seen: list[Roofline] = []
    for _ in range(3):  # beside other programs a single measurement may be far off
        walls = []
        for _ in range(5):
            start = perf_counter()
            planted.call()
            walls.append(1e3 * (perf_counter() - start))
        seen.append(call_roofline(planted, planted.call, ceilings, sorted(walls)[2], fused=False))
        if (seen[-1].bound or "").startswith(bound):
            break
    found = any((section.bound or "").startswith(bound) for section in seen)
    if ceilings.disturbed and not found:
        pytest.skip("other processes ran while the ceilings were measured")
    assert found, seen
    if operator:
        assert any(operator in line for line in seen[-1].evidence), seen[-1].evidence
