"""Time the kernels of convolutional decoders, each alone: python benchmarks/kernels.py [norm|conv|resize]  (on a GPU)

At shapes of the OWL image and audio decoders, of Stable Diffusion's VAE and of Wan's, in bf16, batch 1. `compiled` is
the same in PyTorch operations under torch.compile, from the same memory. MB are those that the kernel moves: a norm
reads twice and writes once, or reads once where a group fits into registers; a convolution reads its input and weight,
and writes; so does resizing. The roofline time is that of these bytes or of the FLOPs, of which zeros in joined groups
are none. Its share may exceed 100% where a second reading comes from the L2 cache. Errors are relative L2 against fp64.
"""

import sys

import torch
from ring_attention import device_us
from tabulate import tabulate
from torch.nn import functional as F

from models.kernels import HAS_TRITON
from models.kernels.activations import activated, channelwise
from models.kernels.convolution import convolution, pack
from models.kernels.convolution import reference as convolution_reference
from models.kernels.forms import MOST_IN_REGISTERS
from models.kernels.fused_norm import fused_norm, reference
from models.kernels.resize import resize, tables
from profiling.roofline.measure_ceilings import measure_ceilings

DTYPE = torch.bfloat16
APART = 2**28  # bytes between two uses of a tensor, so that it comes from memory

#: Name, shape, channels last, groups (0: each position), about_mean, subtract_mean, activation, whether it adds.
NORMS = [
    *(("OWL image", (1, c, s, s), True, c // 16, True, False, "leaky_relu", False) for c, s in
      ((256, 512), (512, 256), (1024, 128), (2048, 64), (2048, 8))),
    ("OWL image, last", (1, 128, 360, 640), True, 32, True, False, "silu", False),
    *(("OWL audio", (1, c, t), True, c, False, False, "snake", False) for c, t in
      ((1024, 120), (1024, 840), (1024, 5880), (512, 29400), (256, 88200))),
    *(("SD VAE", (1, c, s, s), last, 32, True, True, "silu", add) for c, s in
      ((128, 512), (256, 512), (512, 256), (512, 64)) for last in (True, False) for add in (False, True)),
    *(("Wan VAE", (1, c, 1, h, 2 * h), last, 0, False, False, "silu", False) for c, h in ((96, 480), (384, 120))
      for last in (True, False)),
]  # fmt: skip
#: Name, inputs, outputs, groups, size, kernel, dilation, channels last, whether it adds, activation.
CONVOLUTIONS = [
    *(("OWL image, grouped", c, c, c // 16, (s, s), (3, 3), 1, True, False, "none") for c, s in
      ((256, 512), (512, 256), (1024, 128), (2048, 64), (2048, 8))),
    *(("OWL image, 1x1 wider", c, 2 * c, 1, (s, s), (1, 1), 1, True, False, "none") for c, s in
      ((128, 512), (256, 256), (512, 128), (1024, 64), (1024, 8))),
    *(("OWL image, 1x1 + residual", 2 * c, c, 1, (s, s), (1, 1), 1, True, True, "none") for c, s in
      ((128, 512), (256, 256), (512, 128), (1024, 64), (1024, 8))),
    *(("OWL audio, grouped", c, c, c // 16, (1, t), (1, 7), d, True, False, "none") for c, t in
      ((1024, 840), (1024, 5880), (512, 29400), (256, 88200)) for d in (1, 9)),
    ("OWL audio, 1x1 + residual", 512, 256, 1, (1, 29400), (1, 1), 1, True, True, "none"),
    ("SD VAE, 1x1 + residual", 512, 512, 1, (64, 64), (1, 1), 1, True, True, "none"),
    ("depthwise, sequence", 512, 512, 512, (16000,), (7,), 3, False, False, "gelu"),
    ("depthwise, picture", 512, 512, 512, (128, 128), (3, 3), 1, True, False, "silu"),
]  # fmt: skip
#: Name, channels, size, size of the result, mode; channels last.
RESIZED = [
    *(("OWL image", c, (s, s), (2 * s, 2 * s), "bicubic") for c, s in ((128, 256), (256, 128), (512, 64))),
    ("OWL image, last", 128, (512, 512), (360, 640), "bicubic"),
    ("bilinear", 256, (96, 96), (384, 384), "bilinear"),
]


def draw(shape, last):
    """Return random numbers with a mean, in bf16."""
    return in_layout(torch.randn(shape, device="cuda", dtype=DTYPE) + 0.5, last)


def in_layout(x, last):
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x


def error(outputs, expected):
    """Return the largest relative L2 error of the outputs."""
    pairs = zip(outputs, expected, strict=True)
    return max(float((one.double() - other).norm() / other.norm()) for one, other in pairs)


def compared(name, shape, form, ours, library, exact, copies, moved, flops):
    """Return the table's row of a kernel: `ours`, `library` and `exact` are functions of each of the `copies`."""
    compiled = torch.compile(library, dynamic=False)
    errors = [error(function(*copies[0]), exact(*copies[0])) for function in (ours, compiled)]
    times = [device_us(function, copies) / 1e3 for function in (ours, compiled)]
    row = [name, "×".join(map(str, shape)), form, moved / 1e6, flops / 1e9]
    return [*row, *times[::-1], times[1] / times[0], moved, flops, *errors]


def several(shapes, last, size):
    """Return so many sets of tensors of these shapes that a set comes from memory when it is used again."""
    return [tuple(draw(shape, last) for shape in shapes) for _ in range(max(2, min(APART // size, 16)))]


def norm_row(name, shape, last, groups, about_mean, subtract_mean, activation, adds):
    n, c, positions = *shape[:2], torch.Size(shape[2:]).numel()
    bias, gain, shift, alpha, beta = (torch.randn(c, device="cuda") for _ in range(5))
    vectors = (gain, shift, alpha, beta)
    options = (groups, 1e-6, about_mean, subtract_mean, activation, 0.01)
    size = n * c * positions * DTYPE.itemsize
    copies = several([shape] * (2 if adds else 1), last, size)

    def library(x, added=None):
        x = x + channelwise(bias, x)
        x = x if added is None else x + added
        if subtract_mean and groups:
            y = F.group_norm(x, groups, gain.to(DTYPE), shift.to(DTYPE), 1e-6)
        else:
            rows, dim = (x.reshape(n, groups, -1), -1) if groups else (x, 1)
            wide = rows.float()
            squares = wide.var(dim, correction=0, keepdim=True) if about_mean else wide.square().mean(dim, keepdim=True)
            y = (rows * torch.rsqrt(squares + 1e-6).to(DTYPE)).reshape(shape)
            y = y * channelwise(gain, y) + channelwise(shift, y)
        y = activated(y, activation, 0.01, alpha, beta)
        return (y,) if added is None else (y, x)

    def ours(x, added=None):
        return fused_norm(x, bias, added, *vectors, *options)

    def exact(x, added=None):
        return reference(x.double(), bias, added, *vectors, *options)

    fits = not groups or (c // groups * positions <= MOST_IN_REGISTERS and (not last or positions < 512))
    passes = (2 if fits else 3) + (2 if adds else 0)
    form = f"{'NHWC' if last else 'NCHW'} g{groups} {activation}{' + sum' if adds else ''}"
    return compared(name, shape, form, ours, library, exact, copies, passes * size, 0)


def convolution_row(name, inputs, outputs, groups, size, kernel, dilation, last, adds, activation):
    bias, alpha, beta = (torch.randn(outputs, device="cuda") for _ in range(3))
    weight = torch.randn(outputs, inputs // groups, *kernel, device="cuda", dtype=DTYPE)
    weight = in_layout(weight * weight[0].numel() ** -0.5, last)
    packed, padding = pack(weight, groups), [dilation * (each // 2) for each in kernel]
    dilations = [dilation if each > 1 else 1 for each in kernel]
    convolve = F.conv1d if len(size) == 1 else F.conv2d
    options = (list(kernel), [1] * len(size), padding, dilations, list(size), activation, 0.0)
    positions = torch.Size(size).numel()
    moved = DTYPE.itemsize * (positions * (inputs + outputs * (2 if adds else 1)) + weight.numel())
    copies = several([(1, inputs, *size), (1, outputs, *size)][: 2 if adds else 1], last, moved)

    def library(x, residual=None):
        out = convolve(x, weight, bias.to(DTYPE), 1, padding, dilations, groups)
        return (activated(out if residual is None else out + residual, activation),)

    def ours(x, residual=None):
        return convolution(x, packed, bias, residual, alpha, beta, *options)

    def exact(x, residual=None):
        return convolution_reference(x.double(), packed, bias, residual, alpha, beta, *options)

    flops = 2 * positions * outputs * weight[0].numel()
    form = f"{'NHWC' if last else 'NCHW'} {'×'.join(map(str, kernel))} g{groups} d{dilation}"
    return compared(name, (1, inputs, *size), form, ours, library, exact, copies, moved, flops)


def resize_row(name, channels, size, results, mode):
    def weights(inputs, outputs):
        return F.interpolate(torch.eye(inputs)[:, None, None], (1, outputs), mode=mode)[:, 0, 0].T

    given = [each.cuda() for each in tables(*map(weights, size, results))]
    moved = DTYPE.itemsize * channels * (torch.Size(size).numel() + torch.Size(results).numel())
    copies = several([(1, channels, *size)], True, moved)

    def library(x):
        return (F.interpolate(x, results, mode=mode),)

    def ours(x):
        return (resize(x, *given, list(results)),)

    def exact(x):
        return (F.interpolate(x.double(), results, mode=mode),)

    form = f"NHWC to {'×'.join(map(str, results))} {mode}"
    return compared(name, (1, channels, *size), form, ours, library, exact, copies, moved, 0)


def main() -> None:
    if not torch.cuda.is_available() or not HAS_TRITON:
        raise SystemExit("benchmarks/kernels.py times GPU kernels: it needs a CUDA device and triton")
    wanted = sys.argv[1:] or ["norm", "conv", "resize"]
    print(f"kernels of decoders: {torch.cuda.get_device_name()}, torch {torch.__version__}, {DTYPE}\n", flush=True)
    rows = []
    with torch.inference_mode():
        kinds = {"norm": (norm_row, NORMS), "conv": (convolution_row, CONVOLUTIONS), "resize": (resize_row, RESIZED)}
        for row_of, cases in (kinds[kind] for kind in kinds if kind in wanted):
            for case in cases:
                torch.compiler.reset()
                try:
                    rows.append(row_of(*case))
                except Exception as failure:  # the others are still worth their time
                    print(f"FAILED {case}: {type(failure).__name__}: {str(failure).splitlines()[0]}", flush=True)
    ceilings = measure_ceilings(torch.device("cuda", 0), DTYPE, threads=torch.get_num_threads(), tf32=False)
    for row in rows:
        moved, flops = row[8:10]
        least = max(moved / ceilings.copy_bytes_per_s, flops / ceilings.matmul_flops_per_s)
        row[8:10] = moved / row[6] / 1e9, 100e3 * least / row[6]
    headers = [
        "kernel",
        "shape",
        "form",
        "MB",
        "GFLOP",
        "compiled, ms",
        "kernel, ms",
        "speedup",
        "TB/s",
        "% of roofline",
    ]
    print(tabulate(rows, [*headers, "error", "compiled's"], "github", floatfmt=".3g"))
    print(f"\nCeilings: {ceilings.copy_bytes_per_s / 1e12:.2f} TB/s, {ceilings.matmul_flops_per_s / 1e12:.0f} TFLOP/s.")


if __name__ == "__main__":
    main()
