"""Time a layer's attention to the ring: python benchmarks/ring_attention.py   (needs a GPU)

Device time of a call at the size of the 1B world model, from 100 calls captured in one graph. The calls go round the
rings of 25 layers, as in a pass, so that keys and values come from memory and not from the L2 cache. `all keys` is
flash attention without a mask: what it would cost if every slot were seen, which no form here may assume.
"""

import statistics

import torch
from tabulate import tabulate
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.kernels import HAS_TRITON
from models.kernels.ring_attention import ring_attention, visibility

N_FRAMES, TOKENS, HEADS, HEAD_DIM, LAYERS = 60, 17, 24, 64, 25
CALLS, ROUNDS = 100, 25


def device_us(attend, rings) -> float:
    """Return device µs of a call, from replays of a graph of many."""
    for ring in rings:
        attend(*ring)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in range(CALLS):
            attend(*rings[call % len(rings)])
    return 1e3 * replay_ms(graph) / CALLS


def replay_ms(graph, rounds=ROUNDS) -> float:
    """Return the median time of a replay in milliseconds."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(rounds):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[rounds // 5 :])  # the clocks rise during the first ones


def all_keys(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(*(tensor.flatten(1, 2).transpose(1, 2) for tensor in (q, k, v)))


def forms(k, groups):
    """Return the forms to compare, by name; `k` is the ring of any layer."""
    from models.kernels.ring_attention_triton import attend_ring

    frames = torch.arange(100, 100 + groups, device="cuda")
    chosen, masked = visibility(frames, k, kernel="triton"), visibility(frames, k, kernel="sdpa")
    return {
        "triton": lambda q, k, v: ring_attention(q, k, v, chosen),
        **{f"triton, chunks of {n}": lambda q, k, v, n=n: attend_ring(q, k, v, frames, n) for n in (32, 64, 128, 256)},
        "sdpa, masked": lambda q, k, v: ring_attention(q, k, v, masked),
        "all keys (flash)": all_keys,
    }


def main() -> None:
    if not torch.cuda.is_available() or not HAS_TRITON:
        raise SystemExit("benchmarks/ring_attention.py compares GPU kernels: it needs a CUDA device and triton")
    where = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"attention of g frames to a ring of {N_FRAMES} frames: {where}\n")
    rows = []
    for groups in (1, 2):
        q = torch.randn(1, groups, TOKENS, HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
        shape = (1, N_FRAMES + 1, TOKENS, HEADS, HEAD_DIM)
        rings = [(q, *torch.randn(2, *shape, dtype=q.dtype, device="cuda")) for _ in range(LAYERS)]
        with torch.inference_mode():
            times = {name: device_us(attend, rings) for name, attend in forms(rings[0][1], groups).items()}
        rows += [
            (groups, name, us, us / times["sdpa, masked"], us / times["all keys (flash)"]) for name, us in times.items()
        ]
    print(tabulate(rows, ("g", "form", "device µs", "× sdpa, masked", "× all keys"), "github", floatfmt=".3g"))


if __name__ == "__main__":
    main()
