"""The device that a user names."""

from __future__ import annotations

import torch

from profiling.errors import InputError


def named_device(name: str) -> torch.device:
    """Return the device of this name, cpu, cuda or cuda:N; its index is None where the name has none.

    Raises:
        InputError: there is no such device, or none that is supported.

    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device={name} is not a device. Use auto, cpu, cuda or cuda:N.") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device={name}: only cpu and cuda are supported.")
    if device.type == "cuda" and not torch.cuda.is_available():
        built = f"torch {torch.__version__} " + ("sees no GPU" if torch.version.cuda else "is built without CUDA")
        raise InputError(f"device={name}: {built}. Use device=cpu, or install a driver and a CUDA build of torch.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device={name}: this machine has {torch.cuda.device_count()} GPUs; the first is cuda:0.")
    return device
