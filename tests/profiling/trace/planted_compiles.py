"""A program with planted graph breaks, recompiles and failures; run with TORCH_TRACE set. Tests look for its lines."""

from contextlib import suppress

import torch


def leaf(x):
    torch._dynamo.graph_break()  # planted: break in an inlined function
    return x + 1


def outer(x):
    y = x * 3
    return leaf(y) + 1


def loop(x):
    for _ in range(2):
        x = x + 1
        torch._dynamo.graph_break()  # planted: break in a loop
    return x


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 1

    def forward(self, x):
        return x * self.factor  # planted: constant


def branching(x):
    if x.sum() > 0:  # planted: branch on data
        return x + 1
    return x - 1


def limited(x, n):
    return x * n


def failing_backend(module, example_inputs):
    raise RuntimeError("planted backend failure")


def attempt(function, *args):
    with suppress(Exception):
        function(*args)


if __name__ == "__main__":
    with torch.inference_mode():
        torch.compile(outer, backend="eager")(torch.ones(3))
        torch.compile(loop, backend="eager")(torch.ones(3))
        model = Scaled()
        scaled = torch.compile(model, backend="eager", dynamic=False)
        scaled(torch.ones(2))
        scaled(torch.ones(3))
        model.factor = 5
        scaled(torch.ones(3))
        attempt(torch.compile(branching, backend="eager", fullgraph=True), torch.ones(3))
        attempt(torch.compile(lambda x: x + 1, backend=failing_backend), torch.ones(3))
        with torch._dynamo.config.patch(recompile_limit=1):
            compiled = torch.compile(limited, backend="eager", dynamic=False)
            compiled(torch.ones(3), 2)
            compiled(torch.ones(3), 3)
