"""Memory of a cell that shares its process with others: what was held before it began is not the cell's."""

from types import SimpleNamespace

import torch

from profiling.metrics import memory
from profiling.metrics.memory import Memory
from profiling.metrics.metric import Subject

CUDA = torch.device("cuda", 0)


def test_a_captured_cell_in_the_same_process_changes_no_number_of_the_next_one(monkeypatch):
    state = SimpleNamespace(allocated=0, pools=(0, 0))  # pools of captured graphs: what they hold and leave free
    for name in ("memory_allocated", "max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda _device: state.allocated)
    for name in ("reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda _device: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(memory, "graph_pools", lambda: state.pools)
    monkeypatch.setattr(memory, "held", lambda _device: {"allocated": state.allocated, "device_used": state.allocated})

    def measured(allocated, pools):
        """Measure a cell that allocates 30 bytes and captures a pool of 40, of which 25 are free."""
        state.allocated, state.pools = allocated, pools
        metric = Memory()
        metric.on_phase("start", CUDA)
        state.allocated, state.pools = allocated + 30, (pools[0] + 40, pools[1] + 25)
        metric.on_phase("prepared", CUDA)
        step = SimpleNamespace(call=lambda: None)
        subject = Subject(SimpleNamespace(device=CUDA), step, None, None, 0)
        return metric.measure(subject).sections["memory"]

    alone, beside = measured(0, (0, 0)), measured(1000, (500, 300))
    for name in ("peak_allocated", "peak_held", "graph_pool", "prepare_peak_allocated"):
        assert getattr(alone, name) == getattr(beside, name), name
    assert (alone.peak_held, alone.graph_pool) == (55, 40)
    assert alone.phases["prepared"].allocated == beside.phases["prepared"].allocated == 30
    assert beside.phases["prepared"].device_used == 1030, "that of all processes"
