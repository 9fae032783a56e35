"""TF32 is set and restored, whichever of torch's two interfaces to it was used before."""

import pytest
import torch

from profiling.machine.tf32 import kept_tf32, set_tf32, strict_float32, tf32_allowed

BACKENDS = torch.backends
#: What a script may have set before, and whether matrix products may then use TF32.
SETTINGS = {
    "nothing": (lambda: None, False),
    "products": (lambda: setattr(BACKENDS.cuda.matmul, "fp32_precision", "tf32"), True),
    "everything": (lambda: setattr(BACKENDS, "fp32_precision", "tf32"), True),
    "everything, float32": (lambda: setattr(BACKENDS, "fp32_precision", "ieee"), False),
    "CUDA": (lambda: setattr(BACKENDS.cudnn, "fp32_precision", "tf32"), True),
    "convolutions": (lambda: setattr(BACKENDS.cudnn.conv, "fp32_precision", "tf32"), False),
    "older, products": (lambda: setattr(BACKENDS.cuda.matmul, "allow_tf32", True), True),
    "older, convolutions": (lambda: setattr(BACKENDS.cudnn, "allow_tf32", False), False),
    "older, medium": (lambda: torch.set_float32_matmul_precision("medium"), True),
    "bfloat16 on a CPU": (lambda: setattr(BACKENDS.mkldnn.matmul, "fp32_precision", "bf16"), False),
}
KEYS = [
    ("generic", "all"),
    *((backend, operator) for backend in ("cuda", "mkldnn") for operator in ("all", "matmul", "conv", "rnn")),
]


def state():
    """Return the value of each key, also with those that it may inherit from unset."""
    now = {key: torch._C._get_fp32_precision_getter(*key) for key in KEYS}
    try:
        for backend in ("generic", "cuda", "mkldnn"):
            torch._C._set_fp32_precision_setter(backend, "all", "none")
        return now, {key: torch._C._get_fp32_precision_getter(*key) for key in KEYS}
    finally:
        for backend in ("generic", "cuda", "mkldnn"):
            torch._C._set_fp32_precision_setter(backend, "all", now[backend, "all"])


@pytest.fixture(params=SETTINGS)
def products_allowed(request):
    def unset():
        torch.set_float32_matmul_precision("highest")
        BACKENDS.cudnn.allow_tf32 = True
        for key in KEYS:
            if key not in (("cuda", "conv"), ("cuda", "rnn")):
                torch._C._set_fp32_precision_setter(*key, "none")

    unset()
    choose, allowed = SETTINGS[request.param]
    choose()
    yield allowed
    unset()


def older_flags():
    try:
        return torch.get_float32_matmul_precision(), BACKENDS.cudnn.allow_tf32
    except RuntimeError:  # they differ from the newer interface
        return None


def test_tf32_is_set_and_restored(products_allowed):
    assert tf32_allowed() is products_allowed
    before, older = state(), older_flags()
    for wanted in (True, False):
        with kept_tf32():
            assert state() == before
            set_tf32(wanted)
            during, _ = state()
            assert tf32_allowed() is wanted
            # Modules and torch itself read the older flags.
            assert BACKENDS.cuda.matmul.allow_tf32 is BACKENDS.cudnn.allow_tf32 is wanted
            cuda = {during["cuda", operator] for operator in ("matmul", "conv", "rnn")}
            assert cuda == {"tf32" if wanted else "ieee"}
        assert state() == before
        assert older in (None, older_flags())
    with kept_tf32(), strict_float32():
        during, _ = state()
        assert not {"tf32", "bf16"} & {value for (backend, _), value in during.items() if backend != "generic"}
    assert state() == before
