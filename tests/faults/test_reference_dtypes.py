"""Dtypes and memory: a report says what a result was compared with."""

import pytest
import torch
from table import promise
from torch import nn

import profiling
from profiling.components import reference
from profiling.metrics.parity import Parity
from profiling.variants.variant import Step, Variant

WIDENED, EAGER = "fp32 eager on bfloat16 weights", "eager bfloat16"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # the tolerance follows from eager's own error
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class HalfOnly(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32:
            raise RuntimeError("planted: only half precision is supported")
        return super().forward(x)


class Off(Variant):
    """Return the module's output with an error of 5% in each number."""

    def __call__(self, component, folder) -> Step:
        return Step(run=lambda: component.call() * 1.05)


def parity_of(module, variant=None):
    options = {"metrics": {"parity": Parity()}, "ceilings": "off", "quiet": True}
    chosen = ["baseline"] if variant is None else {"baseline": {"_target_": f"{__name__}.{variant}"}}
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 64, generator=generator).bfloat16()
    result = profiling.profile(module, {"x": x}, chosen, **options)
    (record,) = result.records
    assert record.parity.reference in str(result)
    notes = [note for note in record.notes if note.startswith(f"parity against {record.parity.reference}: ")]
    return record, " ".join(notes)


@promise("no float32")
@pytest.mark.parametrize(
    ("module", "free", "kind", "says"),
    [
        (Net, 10_000, WIDENED, "an fp32 copy (3.3e-05 GB) does not fit"),
        (HalfOnly, 10**12, EAGER, "RuntimeError: planted: only half precision is supported"),
    ],
)
def test_no_float32(monkeypatch, module, free, kind, says):
    monkeypatch.setattr(reference, "free_bytes", lambda device: free)
    record, note = parity_of(module())
    assert (record.status, record.parity.reference) == ("ok", kind)
    assert says in note
    assert kind != EAGER or record.parity.tolerance == 4 * torch.finfo(torch.bfloat16).eps / 2


@promise("no float32")
def test_a_wrong_variant_against_eager():
    record, _ = parity_of(HalfOnly(), "Off")
    assert record.status == "failed"
    assert "against the eager bfloat16 reference, allowed 0.01" in record.reason
