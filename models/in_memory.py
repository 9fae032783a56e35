"""Says where a compiled graph must have a tensor in memory.

Inductor computes a cheap tensor again for each of its readers. That is right where it becomes part of the reader, but a
kernel of our own reads memory: for each one there would be another copy of the same numbers.
"""

from torch import Tensor


def in_memory(tensor: Tensor) -> Tensor:
    """Return `tensor`, of any shape and dtype; a result of arithmetic, not a part of another tensor."""
    return tensor.as_strided(tensor.shape, tensor.stride())  # the one view of which inductor needs the memory itself
