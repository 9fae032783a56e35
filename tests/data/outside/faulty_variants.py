"""Variants with one planted fault each."""

import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from profiling.variants.aot_inductor import AOTInductor
from profiling.variants.variant import Step, Variant


@dataclass(frozen=True, kw_only=True)
class Faulty(Variant):
    fault: str

    def __call__(self, component, folder):
        if self.fault == "raise":
            raise RuntimeError("planted failure")
        if self.fault == "others":  # right for the inputs that are timed, wrong for those held beside them
            extra_steps = tuple(partial(self._doubled, component, given) for given in component.extra_inputs)
            return Step(run=component.call, extra_steps=extra_steps)
        return Step(run=getattr(self, f"_{self.fault}")(component))

    def _doubled(self, component, given):
        output = component.module(**given)
        output["answer"].picture.mul_(2)
        return output

    def _wrong(self, component):
        def run():
            output = component.call()
            output["answer"].picture.mul_(1.5)
            return output

        return run

    def _stale(self, component):
        """Right for the inputs it was prepared with, and for no others: what a baked-in constant looks like."""
        output = component.call()
        return lambda: output

    def _later(self, component, action):
        calls = iter(range(10**9))

        def run():
            if next(calls) == 20:
                action()
            return component.call()

        return run

    def _later_wrong(self, component):
        """Right when it is checked and wrong from then on, as a spoilt memory pool is."""
        calls = iter(range(10**9))

        def run():
            output = component.call()
            if next(calls) > 20:
                output["answer"].picture.mul_(3)
            return output

        return run

    def _segfault(self, component):
        import ctypes

        return self._later(component, lambda: ctypes.string_at(0))

    def _exit(self, component):
        return self._later(component, lambda: os._exit(7))

    def _hang(self, component):
        return self._later(component, lambda: time.sleep(3600))

    def _recompile(self, component):
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10**6
        compiled = torch.compile(lambda x, n: x + n, backend="eager", dynamic=False)
        sizes = iter(range(10**9))

        def run():
            size = next(sizes)
            if size > 60 and size % 7 == 0:  # in each window, which has 8 calls
                compiled(torch.ones(size), 1)
            return component.call()

        return run


@dataclass(frozen=True, kw_only=True)
class LoadCrashes(AOTInductor):
    """Torch's loader of packages ends the process; nothing is compiled, since g++ takes long."""

    def compile(self, module, examples, folder, written):
        def packaged(program, *, package_path, inductor_configs):
            Path(package_path).write_bytes(b"planted")

        torch._inductor.aoti_compile_and_package = packaged
        torch._inductor.aoti_load_package = lambda *_, **__: os.kill(os.getpid(), signal.SIGSEGV)
        return super().compile(module, examples, folder, written)
