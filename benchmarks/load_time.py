"""Time loading the 1B world model from disk to the GPU: python benchmarks/load_time.py FOLDER

Writes a float32 checkpoint of random weights (4.4 GB) into FOLDER, drops it from the page cache, and loads it as the
main job does. Expected: limited by the disk or by the copy to the device, well under 10 s.
"""

import os
import sys
import time
from pathlib import Path

import torch

from models.initialisation import randomise
from models.world_model import WorldModel, WorldModelParams
from profiling.components.checkpoint import load_into


def main() -> None:
    path = Path(sys.argv[1]) / "world_model_1b.pt"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with device:
        module = WorldModel(WorldModelParams.full()).eval()
    randomise(module, 0)
    torch.save({name: tensor.cpu() for name, tensor in module.state_dict().items()}, path)
    for dtype in (torch.float32, torch.bfloat16):
        for cache in ("cold", "warm"):
            if cache == "cold":
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
            module.to(dtype)
            start = time.perf_counter()
            load_into(module, path)
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - start
            gigabytes = path.stat().st_size / 1e9
            print(f"{dtype} on {device}, page cache {cache}: {seconds:.2f} s for {gigabytes:.2f} GB in the file")
    path.unlink()


if __name__ == "__main__":
    main()
