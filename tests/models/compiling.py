"""Compiles Triton kernels for a GPU that is not there, as a launch with these arguments would."""

from contextlib import contextmanager

import torch

TYPES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "i64", torch.int8: "i8"
}  # fmt: skip


class Compiled:
    """Stands in for a Triton kernel: launching it compiles it for compute capability 9.0 (Hopper), and runs nothing."""

    def __init__(self, kernel, launches):
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.launch(grid, *args, **kwargs)

    def launch(self, grid, *args, **kwargs):
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        assert min(grid) > 0
        assert max(*grid[1:], 0) < 65536
        options = {name: kwargs.pop(name) for name in ("num_warps", "num_stages") if name in kwargs}
        given = dict(zip(self.kernel.arg_names, args, strict=False)) | kwargs
        assert given.keys() == set(self.kernel.arg_names)
        signature, constants, attributes = {}, {}, {}
        for place, (name, value) in enumerate((name, given[name]) for name in self.kernel.arg_names):
            if isinstance(value, torch.Tensor):
                signature[name] = f"*{TYPES[value.dtype]}"
                attributes[(place,)] = [["tt.divisibility", 16]]
            elif self.kernel.params[place].is_constexpr or value == 1:
                signature[name], constants[name] = "constexpr", value
            else:
                signature[name] = "i32" if abs(value) < 2**31 else "i64"
                if value % 16 == 0:
                    attributes[(place,)] = [["tt.divisibility", 16]]
        key = (self.kernel.fn.__name__, *sorted(signature.items()), *map(str, constants.items()), str(attributes))
        if key not in self.launches:
            source = ASTSource(self.kernel, signature, constants, attributes)
            self.launches[key] = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@contextmanager
def compiled_for_hopper(module):
    """Launches of the kernels in `module` compile; yields what was compiled."""
    launches = {}
    wrap, module.wrap_triton = module.wrap_triton, lambda kernel: Compiled(kernel, launches)
    try:
        yield launches
    finally:
        module.wrap_triton = wrap
