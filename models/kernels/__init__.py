"""Triton kernels for few rows and for convolutional decoders, each with a reference in PyTorch operations.

A module `x.py` holds the reference and chooses; `x_triton.py` holds the kernel, and is imported only where it can run.
`eight_bits.py` holds the arithmetic of 8-bit weights and 16-bit activations that kernels and references share. Nothing
here knows a network.
"""

import importlib.util

HAS_TRITON = importlib.util.find_spec("triton") is not None
