"""CUDA graphs of a module: captured once for each signature, replayed as if the module were called.

The package works without the rest of the harness:

    from profiling.graphs import CudaGraphed

    graphed = CudaGraphed(module)
    with torch.inference_mode():
        output = graphed(x)  # the first call of a signature captures, later ones replay

Reading order: `engine` (the public class), `signature` (which calls share a graph), `captured_call` (static inputs and
replay), `capture` (warm-up, capture, errors).
"""

from profiling.graphs.capture import CaptureError
from profiling.graphs.engine import CudaGraphed, GraphCounters, cuda_graphs, set_cuda_graphs, total_captures

__all__ = ["CaptureError", "CudaGraphed", "GraphCounters", "cuda_graphs", "set_cuda_graphs", "total_captures"]
