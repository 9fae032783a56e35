"""Search the tiles of linear layers for few rows: python benchmarks/skinny_tiles.py --rows 17   (needs a GPU)

Device time of a call at the sizes of the 1B world model, as in `skinny_linear.py`, for each tile that fits into shared
memory, and its error against the product of the widened weights in fp32: a tile with an error above 1% is shown as
wrong. `bf16` is the layer in 16 bits with the tile that `choose_tile` gives it. A tile is written as c columns,
i inputs per iteration, p parts, s stages, w warps.
"""

import argparse
import contextlib
import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from ring_attention import LAYERS, device_us
from skinny_linear import ADALN, SHAPES, draw, forms, in_8_bits
from torch.nn import functional as F

from models.kernels import HAS_TRITON
from models.kernels.eight_bits import dequantise

SPLIT = ("out", "fc2")  # layers whose parts the next kernel sums
SHARED_BYTES = 227 * 1024  # of a Hopper SM, for one program
MOST_ERROR = 0.01
SHOWN = 8


def tiles(name, rows):
    """Return the tiles to time: what is in flight fits into shared memory, and a warp computes 16 columns.

    A single row needs no tensor cores: 1, 2 and 4 warps are tried.
    """
    from models.kernels.skinny_linear_triton import Tile

    k = SHAPES.get(name, ADALN)[1]
    block = max(16, 1 << (rows - 1).bit_length())
    chosen = {}
    for columns, inner, parts, stages in itertools.product(
        (16, 32, 64), (128, 256, 512), (3, 4, 6, 8, 12, 16, 24) if name in SPLIT else (1,), (2, 3, 4, 6)
    ):
        stages = min(stages, k // parts // inner)  # no more than there are iterations
        shared = stages * inner * (columns + 2 * block)  # bytes of weights and inputs in flight
        if (k // parts) % inner or stages < 2 or shared > SHARED_BYTES:
            continue
        for warps in (1, 2, 4) if rows == 1 else (columns // 16,):
            if 32 <= columns * inner // (32 * warps) <= 256:  # weights per thread and iteration
                chosen[Tile(columns, inner, parts, stages, warps)] = None
    return list(chosen)


def label(tile):
    return "c{} i{} p{} s{} w{}".format(*tile)


def widened_product(name, x, stored, bias, scale):
    """Return the exact result of a form, in fp32."""
    linear = F.linear(x.float(), dequantise(stored, scale, torch.float32), bias.float())
    return F.silu(linear) if name == "fc1" else linear


def summed(name, out):
    return out.sum(0) if name in SPLIT else out


class Chosen(threading.local):
    """The tile of this thread's products; None: that of `choose_tile`."""

    tile = None


chosen = Chosen()


def run_tile(tile, form, x, operands):
    """Return what a form computes with a tile."""
    chosen.tile = tile
    try:
        return form(x, *operands)
    finally:
        chosen.tile = None


def compile_all(names, rows, weights):
    """Compile the kernels of all tiles at the same time: a tenth of the time of one after the other."""

    def compile_one(job):
        (name, each_rows), kind, tile = job
        n, k = SHAPES.get(name, ADALN)
        x = torch.zeros(each_rows, k, dtype=torch.bfloat16, device="cuda")
        stored = torch.zeros(n, k, dtype=torch.int8 if kind == "int8" else torch.float8_e4m3fn, device="cuda")
        operands = stored, torch.zeros(n, dtype=x.dtype, device="cuda"), torch.zeros(n, device="cuda")
        with contextlib.suppress(Exception):  # the search names what a tile fails with
            run_tile(tile, forms(name)[1], x, operands)

    jobs = [
        (shape, kind, tile)
        for shape, kind in itertools.product(itertools.product(names, rows), weights)
        for tile in tiles(*shape)
    ]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(compile_one, jobs))
    torch.cuda.synchronize()
    print(f"{len(jobs)} kernels compiled\n", flush=True)


def search(name, rows, weights):
    """Print the fastest tiles of a layer."""
    from models.kernels.skinny_linear_triton import choose_tile

    _, form = forms(name)
    x, operands = draw(name, rows, 1 if name == "adaln" else LAYERS)
    stored = in_8_bits(operands, weights)
    exact = widened_product(name, x, *stored[0])
    n, k = SHAPES.get(name, ADALN)
    now = choose_tile(n, k, rows, 1, split=name in SPLIT)
    candidates = list(dict.fromkeys([now, *tiles(name, rows)]))
    times, failed = {}, []
    bf16_us = device_us(lambda *each: form(x, *each), operands)
    for tile in candidates:
        try:
            out = summed(name, run_tile(tile, form, x, stored[0])).float()
            error = float((out - exact).norm() / exact.norm())
            if not error <= MOST_ERROR:
                failed.append(f"{label(tile)}: wrong, error {error:.2g}")
                continue
            times[tile] = device_us(lambda *each, tile=tile: run_tile(tile, form, x, each), stored)
        except Exception as refused:
            failed.append(f"{label(tile)}: {type(refused).__name__}: {str(refused).splitlines()[0][:80]}")
    best = sorted(times, key=times.__getitem__)
    now_us = f"{times[now]:.2f}" if now in times else "failed"
    print(f"{name}, {rows} rows, {weights}: bf16 {bf16_us:.2f} µs; now {now_us} ({label(now)})")
    if best:
        row = ", ".join(f"{times[tile]:.2f} ({label(tile)})" for tile in best[:SHOWN])
        print(f"  best {bf16_us / times[best[0]]:.2f}x: {row}")
    if failed:
        print(f"  {len(failed)} of {len(candidates)} tiles did not count: {'; '.join(failed[:3])}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[17])
    parser.add_argument("--layers", nargs="+", default=list(SHAPES), choices=[*SHAPES, "adaln"])
    parser.add_argument("--weights", nargs="+", default=["int8"], choices=["int8", "float8_e4m3"])
    asked = parser.parse_args()
    if not torch.cuda.is_available() or not HAS_TRITON:
        raise SystemExit("benchmarks/skinny_tiles.py times GPU kernels: it needs a CUDA device and triton")
    print(f"tiles of linear layers: {torch.cuda.get_device_name()}, torch {torch.__version__}")
    from models.kernels import skinny_linear_triton as module

    usual = module.choose_tile
    module.choose_tile = lambda *sizes, **options: chosen.tile or usual(*sizes, **options)
    compile_all(asked.layers, asked.rows, asked.weights)
    with torch.inference_mode():
        for name, rows, weights in itertools.product(asked.layers, asked.rows, asked.weights):
            search(name, rows, weights)


if __name__ == "__main__":
    main()
