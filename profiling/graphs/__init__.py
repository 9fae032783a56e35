"""One engine for CUDA graphs captured by hand: a graph for each signature, replayed as if the module were called."""

from profiling.graphs.capture import CaptureError
from profiling.graphs.engine import CudaGraphed, GraphCounters, cuda_graphs, set_cuda_graphs

__all__ = ["CaptureError", "CudaGraphed", "GraphCounters", "cuda_graphs", "set_cuda_graphs"]
