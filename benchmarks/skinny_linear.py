"""Time the matrix products of a layer for a frame of 17 tokens: python benchmarks/skinny_linear.py   (needs a GPU)

Device time of a call at the sizes of the 1B world model, from 100 calls captured in one graph, including the launches
that follow a product: SiLU, and the sum where the library splits the inputs (split-K). The calls go round the weights
of 25 layers, as in a pass, so that these come from memory and not from the L2 cache. The roofline time is that of
reading the weights once.
"""

import torch
from ring_attention import LAYERS, device_us
from tabulate import tabulate
from torch.nn import functional as F

from models.ring_attention import HAS_TRITON

READ_TB_S = 4.37  # of an H200: `ceilings` in the environment of any run in docs/results
#: name: outputs, inputs; fc1 has the SiLU behind it.
SHAPES = {"out": (1536, 1536), "fc1": (6144, 1536), "fc2": (1536, 6144)}


def main() -> None:
    if not torch.cuda.is_available() or not HAS_TRITON:
        raise SystemExit("benchmarks/skinny_linear.py compares GPU kernels: it needs a CUDA device and triton")
    from models.skinny_linear_triton import linear_parts, linear_silu

    print(f"linear layers of few rows: {torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    rows = []
    for tokens in (17, 34):
        for name, (n, k) in SHAPES.items():
            x, bias = (torch.randn(*shape, dtype=torch.bfloat16, device="cuda") for shape in ((tokens, k), (n,)))
            weights = [(k**-0.5 * torch.randn(n, k, device="cuda")).bfloat16() for _ in range(LAYERS)]
            silu = name == "fc1"

            def plain(weight, x=x, bias=bias, silu=silu):
                linear = F.linear(x, weight, bias)
                return F.silu(linear) if silu else linear

            def skinny(weight, x=x, bias=bias, silu=silu):
                return (linear_silu if silu else linear_parts)(x, weight, bias)

            with torch.inference_mode():
                library, ours = (device_us(call, [(weight,) for weight in weights]) for call in (plain, skinny))
            rows.append((tokens, name, library, ours, library / ours, n * k * 2 / READ_TB_S / 1e6))
    headers = ("rows", "layer", "library, µs", "skinny, µs", "library / skinny", "roofline, µs")
    print(tabulate(rows, headers, "github", floatfmt=".3g"))


if __name__ == "__main__":
    main()
