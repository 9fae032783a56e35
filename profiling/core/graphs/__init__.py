"""One engine for CUDA graphs captured by hand: a graph for each signature, replayed as if the module were called."""

from profiling.core.graphs.counters import GraphCounters
from profiling.core.graphs.failure import CaptureError
from profiling.core.graphs.graphed import CudaGraphed
from profiling.core.graphs.switch import cuda_graphs, set_cuda_graphs

__all__ = ["CaptureError", "CudaGraphed", "GraphCounters", "cuda_graphs", "set_cuda_graphs"]
