"""The passes of the step fx_passes together, a user's own passes, and what is recorded of each."""

import functools
import itertools

import pytest
import torch
from fixed_component import Net, shipped_recipe
from fixed_component import fixed_component as component
from fx_networks import assert_same, calls, normal
from torch import fx, nn

from profiling.components.instantiate import instantiate
from profiling.components.outputs import relative_l2
from profiling.errors import InputError
from profiling.fx_passes.linear import FuseParallelLinears
from profiling.fx_passes.nodes import propagate
from profiling.fx_passes.passes import apply_passes
from profiling.fx_passes.tracer import trace
from profiling.results.explanations import BeforeAfter, FxPass
from profiling.variants.cuda_graph import CudaGraph
from profiling.variants.gains import interleaved_medians
from profiling.variants.rewrite import Rewrite

#: What the passes replace in CLIP; how often constants and no-ops depends on the version of transformers.
COUNTS = {
    "sdpa": {"FuseParallelLinears": 6, "FuseQuickGelu": 2},
    "eager": {"FuseParallelLinears": 6, "ReplaceAttention": 2, "SimplifyMasks": 2, "FuseQuickGelu": 2},
}


@pytest.mark.parametrize("attention", COUNTS)
def test_the_shipped_passes_on_clip(attention):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"bos_token_id": 0, "eos_token_id": 99, "pad_token_id": 1, "vocab_size": 100}
    config = transformers.CLIPTextConfig(**sizes, **tokens, max_position_embeddings=16, projection_dim=24)
    config._attn_implementation = attention
    ids = torch.randint(2, 99, (1, 16))
    ids[0, -1] = 99
    module = transformers.CLIPTextModelWithProjection(config).double().eval()
    traced = trace(module, {"input_ids": ids})
    (rewrite,) = shipped_recipe("fx_passes").transforms
    applied = list(apply_passes(traced, rewrite.passes, lambda each: propagate(each, {"input_ids": ids})))
    for each in applied:
        each.after.graph.lint()
        # eager attention takes its softmax in fp32, whatever the model's dtype is
        with torch.no_grad():
            before, after = each.before(input_ids=ids), each.after(input_ids=ids)
        assert relative_l2(after, before) < (1e-6 if each.name == "ReplaceAttention" else 1e-10)
    counted = {each.name: each.replaced for each in applied if each.replaced}
    assert counted.pop("FoldConstants") > 0
    counted.pop("DropNoOps", None)
    assert counted == COUNTS[attention]
    others = {"input_ids": ids.flip(1)}
    with torch.no_grad():
        assert_same(applied[-1].after(**others), module(**others), 1e-6 if attention == "eager" else 1e-10)
    if attention == "eager":
        kernels = {"linear": 5, "addmm": 4, "silu": 2, "scaled_dot_product_attention": 2, "layer_norm": 5}
        assert {name: calls(applied[-1].after)[name] for name in kernels} == kernels


def sign_flipped(module: fx.GraphModule, *, target: str) -> fx.GraphModule:
    """A pass of a user's own, wrong on purpose, which changes its argument."""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target.__name__ == target:
            with module.graph.inserting_after(node):
                negative = module.graph.call_function(torch.neg, (node,))
            node.replace_all_uses_with(negative, delete_user_cb=lambda user, new=negative: user is not new)
    module.recompile()
    return module


def test_passes_of_a_users_own_are_named_and_compared():
    node = {
        "_target_": "profiling.variants.rewrite.Rewrite",
        "passes": [
            {"_target_": f"{__name__}.sign_flipped", "_partial_": True, "target": "linear"},
            {"_target_": "profiling.fx_passes.linear.FuseParallelLinears"},
        ],
    }
    rewrite = instantiate(node, "variant.mine.transforms[0]")
    module = Net(lambda self, x: self.a(x), a=nn.Linear(3, 3).double())
    x = normal(2, 3)
    first, last = apply_passes(trace(module, {"x": x}), rewrite.passes, lambda traced: propagate(traced, {"x": x}))
    assert (first.name, first.replaced) == ("sign_flipped", None)
    assert (last.name, last.replaced) == ("FuseParallelLinears", 0)
    assert torch.equal(first.before(x=x), module(x=x)), "what a pass changes is not what was before it"
    assert torch.equal(first.after(x=x), -module(x=x))


def test_a_stateful_network_is_compared_from_its_start_and_errors_name_the_wrong_pass():
    def forward(self, x):
        self.count.add_(1)
        return x * self.count

    module, x = Net(forward, count=torch.zeros(())), torch.ones(2)
    net = component(module, x=x)
    with pytest.raises(InputError, match=r"passes\.0='drop' is no function"):
        Rewrite(passes=["drop"])
    with pytest.raises(InputError, match="pass print returned NoneType"):
        Rewrite(passes=[functools.partial(print, end="")]).apply(module, net)
    traced = Rewrite(passes=[FuseParallelLinears()]).apply(module, net).call
    assert module.count == 0, "tracing and looking leave the state as it was"
    assert traced(x=x).tolist() == [1, 1]
    assert module.count == 1


def test_steps_in_a_row_call_no_kernel_of_what_the_step_before_returned():
    calls = []
    with torch.library._scoped_library("fx_test", "DEF") as library:
        library.define("counted(Tensor x) -> Tensor")
        library.impl("counted", lambda x: calls.append(x) or x * 2, "CPU")
        library.impl("counted", torch.empty_like, "Meta")
        module, x = Net(lambda self, x: torch.ops.fx_test.counted(x) + 1), torch.ones(3)
        net = component(module, x=x)
        once = Rewrite(passes=[functools.partial(sign_flipped, target="add")]).apply(module, net).call
        twice = Rewrite(passes=[functools.partial(sign_flipped, target="add")]).apply(once, net).call
        assert len(calls) == 1, "the tracer calls the module"
        assert (once(x=x).tolist(), twice(x=x).tolist()) == ([-3.0] * 3, [3.0] * 3)


def test_drift_affects_both_medians_alike():
    now = itertools.count(100, 10)  # a device that gets slower with each reading
    before, after = interleaved_medians(lambda: next(now) * 2.0, lambda: float(next(now)), rounds=40)
    assert before / after == pytest.approx(2, rel=0.02)
    order = []
    interleaved_medians(lambda: order.append("b") or 1.0, lambda: order.append("a") or 1.0, rounds=2)
    assert order == ["b", "a", "a", "b"]


def test_a_pass_is_recorded_with_its_count_error_and_gain(monkeypatch):
    timed = []
    monkeypatch.setattr("profiling.variants.rewrite.replay_ms", lambda *given, **_: timed.append(given) or (3.0, 2.0))
    module = Net(lambda self, x: self.a(x) + self.b(x), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    monkeypatch.setattr(CudaGraph, "unavailable", lambda _, device: None)
    rewrite = Rewrite(passes=[FuseParallelLinears(), FuseParallelLinears()])
    first, second = rewrite.explained(module, component(module, x=torch.ones(1, 3)))
    assert (first.name, first.replaced) == ("FuseParallelLinears", 2)
    assert first.replay_ms == BeforeAfter(before=3.0, after=2.0)
    assert first.rel_l2 < 1e-6
    assert second == FxPass(name="FuseParallelLinears", replaced=0, rel_l2=0.0), "nothing changed, nothing to gain"
    assert len(timed) == 1
