"""Passes that put a kernel in the place of convolutions, with what is around them; `norm.py` says why in this graph."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from profiling.fx_passes.activation import activation_after, add_vector
from profiling.fx_passes.convolution import CONVOLUTION_ARGUMENTS, CONVOLUTIONS, for_each_dim, zeros_before
from profiling.fx_passes.nodes import (
    add_constant,
    arguments,
    is_call,
    is_read_once,
    is_written,
    node_info,
    operands,
)
from profiling.fx_passes.passes import RewritePass, drop_dead_code, function_of
from profiling.fx_passes.regions import Graph, name_of_call, same_form

#: Arguments of a norm's kernel, as `norm.FuseNorms` writes them.
_NORM_ARGUMENTS = (
    *("x", "bias", "added", "gain", "shift", "alpha", "beta"),
    *("groups", "eps", "about_mean", "subtract_mean", "activation", "slope"),
)

#: Arguments of a convolution's kernel, as `ReplaceConvolutions` writes them; those from `table` on only with a norm.
#: `statistics` and `shortcut` are keyword arguments.
_CONVOLUTION_ARGUMENTS = (
    *("x", "packed", "bias", "residual", "alpha", "beta", "kernel", "stride", "before", "dilation", "size"),
    *("activation", "slope", "table", "first_activation", "first_slope", "first_alpha", "first_beta"),
)
_TABLE_ARGUMENTS = ("x", "bias", "partial", "gain", "shift", "groups", "eps", "about_mean", "subtract_mean")
#: Calls that turn a sequence [n, c, t] into a picture of one row, and back.
_VIEWS = ("unsqueeze", "squeeze", "contiguous")
#: Calls that reshape a tensor without reordering its elements.
_RESHAPES = ("unflatten", "flatten", "unsqueeze", "reshape")
#: Calls that fail where the memory of a tensor is in another order; `view` with sizes is a `reshape` in a traced graph.
_BY_STRIDES = ("view", "view_as", torch.view_as_complex)


@dataclass(frozen=True, kw_only=True)
class ReplaceConvolutions(RewritePass):
    """Replace convolutions, each with the zeros and the norm before it and the residual and the activation after it.

    Where the convolution before a norm is such a kernel, too, it also computes the norm's statistics.

    Attributes:
        grouped: replace those with several groups; False: those with one group and a kernel of one element.
        convolution: computes one, as `models.kernels.convolution.convolution` does.
        pack: returns the weight that it takes, for a convolution's weight and number of groups.
        misfit: returns why it does not take a tensor of a form, on a device, with a weight and groups, or None.
        norm: what `FuseNorms` writes for a norm.
        table: returns what the convolution needs of a norm, as `models.kernels.fused_norm.norm_table` does.
        scaled_weight: multiplies its weight by the scale of a norm, as `models.kernels.fused_norm.scaled_weight` does.
        shares_norms: returns whether a convolution normalises its input, and whether it returns statistics of its
            result, for the form of its input, the packed weight, and the geometry that `convolution` takes.
        adds_shortcut: returns whether a convolution of those adds a `shortcut` of a shape.

    """

    grouped: bool
    convolution: Callable[..., list[Tensor]]
    pack: Callable[[Tensor, int], Tensor]
    misfit: Callable[[Tensor, torch.device, Tensor, int], str | None]
    norm: Callable[..., list[Tensor]]
    table: Callable[..., Tensor]
    scaled_weight: Callable[..., Tensor]
    shares_norms: Callable[..., tuple[bool, bool]]
    adds_shortcut: Callable[..., bool]

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace each convolution that the kernel takes; `module.meta["left"]` counts why others stay."""
        graph, left, replaced = Graph(module), Counter[str](), 0
        for node in list(module.graph.nodes):
            if not is_call(node, *CONVOLUTIONS):
                continue
            args = arguments(node, *CONVOLUTION_ARGUMENTS)
            weight, bias, groups = graph.constant(args["weight"]), graph.constant(args["bias"]), args["groups"] or 1
            is_pointwise = groups == 1 and weight is not None and weight[0, 0].numel() == 1
            if weight is None or not (groups > 1 if self.grouped else is_pointwise):
                continue
            source, before = _before(args, weight.dim() - 2)
            info: Any = node_info(source)
            output: Any = node_info(node)
            form = _in_format_of(output.zeros("meta"), info.zeros("meta"))
            reason = self.misfit(form, info.device, weight, groups)
            if reason is None and (output.dtype != info.dtype or (bias is None) != (args["bias"] is None)):
                reason = "its result has another dtype, or its bias is computed"
            if reason is None and is_written(source):
                reason = "the memory of its input is written to"
            if reason is not None:
                left[reason] += 1
                continue
            if form.stride() != info.stride:
                source = _converted(source, form)
            self._replace(graph, node, source, before, weight, bias, args)
            replaced += 1
        drop_dead_code(module.graph)  # norms replaced by tables: they would count as readers of the convolution
        for node in module.graph.nodes:
            if is_call(node, function_of(self.table), function_of(self.norm)):
                self._leave_statistics(graph, node)
                self._scale_weight(graph, node)
        drop_dead_code(module.graph)
        module.meta["left"] = left
        return replaced

    def _replace(
        self, graph: Graph, node: fx.Node, source: fx.Node, before: list[int], weight: Tensor, bias: Tensor | None,
        args: dict[str, Any],
    ) -> None:  # fmt: skip
        nodes, dims, output = graph.module.graph, weight.dim() - 2, node.meta["info"]
        user = next(iter(node.users))
        squeezed = is_read_once(node) and is_call(user, "squeeze", torch.squeeze) and user.args[1:] == (2,)
        strides, dilations = (for_each_dim(args[name], dims, 1) for name in ("stride", "dilation"))
        packed = self.pack(weight, args["groups"] or 1)
        geometry = (list(weight.shape[2:]), strides, before, dilations, list(output.shape[2:]))
        form = node_info(source).zeros("meta")  # pyright: ignore[reportOptionalMemberAccess]: `rewrite` has seen it
        adds_shortcut = functools.partial(self.adds_shortcut, form, packed, *geometry)
        last, residual, shortcut = _sums_after(user if squeezed else node, adds_shortcut)
        (*_, last), activation = activation_after(graph, last)
        with nodes.inserting_before(last):
            if squeezed and residual is not None:
                residual = nodes.call_method("unsqueeze", (residual, 2))
            normalises, leaves = self.shares_norms(form, packed, *geometry)
            found, prologue = self._norm_before(source), ()
            if found is not None and normalises:
                norm, views = found
                table = nodes.call_function(function_of(self.table), tuple(norm[name] for name in _TABLE_ARGUMENTS))
                prologue = (table, *(norm[name] for name in ("activation", "slope", "alpha", "beta")))
                source = norm["x"]
                for view in views:
                    source = nodes.create_node(view.op, view.target, (source, *view.args[1:]), view.kwargs)
            packed = add_constant(graph.module, "weight", packed)
            graph.constants.add(packed)
            named = {"bias": bias, "alpha": activation.alpha, "beta": activation.beta}
            first, *snake = (add_vector(graph.module, name, vector) for name, vector in named.items())
            given = (source, packed, first, residual, *snake, *geometry, activation.name, activation.slope)
            new = nodes.call_function(function_of(self.convolution), (*given, *prologue))
            if shortcut is not None:
                new.kwargs = {"shortcut": shortcut}
            new.meta["leaves_statistics"] = leaves
            new = nodes.call_function(operator.getitem, (new, 0))
            if squeezed:
                new = nodes.call_method("squeeze", (new, 2))
        new.meta = dict(last.meta)
        last.replace_all_uses_with(new)

    def _norm_before(self, source: fx.Node) -> tuple[dict[str, Any], list[fx.Node]] | None:
        """Return the arguments of the norm that only this convolution reads, and the views between them, or None."""
        views, node = list[fx.Node](), source
        while name_of_call(node) in _VIEWS and is_read_once(node):
            views.insert(0, node)
            node: Any = node.args[0]
        source = node
        call: Any = source.args[0] if is_call(source, operator.getitem) and is_read_once(source) else None
        if not is_call(call, function_of(self.norm)) or not is_read_once(call):
            return None
        norm = dict(zip(_NORM_ARGUMENTS, call.args, strict=True)) | {"partial": call.kwargs.get("partial")}
        return (norm, views) if norm["groups"] and norm["added"] is None else None

    def _leave_statistics(self, graph: Graph, norm: fx.Node) -> None:
        """Let the convolution before a norm, or before a norm's table, return the statistics and add the bias."""
        given: Any = norm.args
        x, bias, third = given[:3]  # `partial` of a table, `added` of a norm
        is_table = is_call(norm, function_of(self.table))
        out = x.args[0] if name_of_call(x) == "squeeze" else x
        call: Any = out.args[0] if is_call(out, operator.getitem) else None
        if third is not None or norm.kwargs or not is_call(call, function_of(self.convolution)):
            return
        if not call.meta.get("leaves_statistics") or not (is_table or given[7]):  # 0: at each position
            return
        readers = {norm, *norm.users} if is_table else {norm}
        args = _arguments(call)
        is_plain = args["bias"] is None and args["activation"] == "none" and _readers(out) <= readers
        if bias is not None and not is_plain:
            return
        nodes = graph.module.graph
        if bias is not None:  # its node may lie behind the convolution
            with nodes.inserting_before(call):
                _set(call, bias=nodes.get_attr(bias.target))
        call.kwargs = {**call.kwargs, "statistics": "result"}
        with nodes.inserting_after(out):
            partial = nodes.call_function(operator.getitem, (call, 1))
        norm.args = (x, None, partial if is_table else None, *given[3:])
        norm.kwargs = {} if is_table else {"partial": partial}

    def _scale_weight(self, graph: Graph, norm: fx.Node) -> None:
        """Let the convolution after a norm that only scales take the scale in its weight.

        The activation between them goes to the convolution before the norm: for s > 0 and a (leaky) ReLU f,
        f(s·x) = s·f(x). So nothing between the two convolutions is left but statistics. A weight that is not much
        smaller than what is normalised stays, because it would be written for each call.
        """
        is_table = is_call(norm, function_of(self.table))
        given = dict(zip(_TABLE_ARGUMENTS if is_table else _NORM_ARGUMENTS, norm.args, strict=True)) | norm.kwargs
        x: Any = given["x"]
        partial: Any = given.get("partial")
        result = norm if is_table else next(iter(norm.users))
        readers = _readers(result)
        if partial is None or len(readers) != 1 or not is_call(*readers, function_of(self.convolution)):
            return
        (after,) = readers
        before = partial.args[0]
        reader = _arguments(after)
        packed, gain, shift = (graph.constant(node) for node in (reader["packed"], given["gain"], given["shift"]))
        activation, slope = (
            (reader["first_activation"], reader["first_slope"]) if is_table else (given["activation"], given["slope"])
        )
        only_scales = gain is not None and shift is not None and bool((gain > 0).all() and not shift.any())
        if given["subtract_mean"] or not only_scales or activation not in ("none", "leaky_relu"):
            return
        info: Any = node_info(x)
        if packed is None or packed.dtype == torch.float16 or 2 * packed.numel() > info.zeros("meta").numel():
            return
        out = x.args[0] if name_of_call(x) == "squeeze" else x
        activates = _arguments(before)["activation"] != "none"
        if activates or not _readers(out) <= {norm, after}:
            return
        added = {_behind_views(reader.get(name)) for name in ("residual", "shortcut")}
        if not added.isdisjoint((out, result)):  # it would get the activation, too
            return
        _set(before, activation=activation, slope=slope)
        before.kwargs = {**before.kwargs, "statistics": "before_activation"}
        options = (given["gain"], given["groups"], given["eps"], given["about_mean"])
        with graph.module.graph.inserting_before(after):
            weight = graph.module.graph.call_function(
                function_of(self.scaled_weight), (x, partial, reader["packed"], *options)
            )
        _set(after, packed=weight)
        after.args = after.args[: _CONVOLUTION_ARGUMENTS.index("table")]
        if not is_table:
            result.replace_all_uses_with(x)


def _in_format_of(result: Tensor, form: Tensor) -> Tensor:
    """Return `form` with channels last if the library's result has them last: then it converts the input itself.

    A result of one channel or one position is in both formats, and tells nothing.
    """
    is_last = result.is_contiguous(memory_format=torch.channels_last) and not result.is_contiguous()
    converts = is_last and form.dim() == 4 and form.is_contiguous() and form.shape[2:].numel() > 1
    return form.contiguous(memory_format=torch.channels_last) if converts else form


def _converted(source: fx.Node, form: Tensor) -> fx.Node:
    """Insert a conversion of `source` to channels last and return it; other readers of `source` read it, too.

    Not those from which a view by strides or a write is computed, also indirectly: results mostly have the memory
    format of their inputs, and in another format such a view fails, and the write may go to a copy.
    """
    fixed = set[fx.Node]()
    for node in reversed(source.graph.nodes):
        if is_written(node) or node.target in _BY_STRIDES or not fixed.isdisjoint(node.users):
            fixed.add(node)
    with source.graph.inserting_after(source):
        converted = source.graph.call_method("contiguous", (source,), {"memory_format": torch.channels_last})
    converted.meta = {**source.meta, "info": replace(source.meta["info"], stride=tuple(form.stride()), offset=0)}
    source.replace_all_uses_with(converted, lambda user: user is not converted and user not in fixed)
    return converted


def _arguments(convolution: fx.Node) -> dict[str, Any]:
    """Return the arguments of a convolution's kernel by name."""
    return dict(zip(_CONVOLUTION_ARGUMENTS, convolution.args, strict=False)) | convolution.kwargs


def _set(convolution: fx.Node, **given: Any) -> None:
    """Replace arguments of a convolution's kernel."""
    for name, value in given.items():
        convolution.update_arg(_CONVOLUTION_ARGUMENTS.index(name), value)


def _behind_views(node: Any) -> Any:
    """Return the tensor of which a node is a view that `_VIEWS` made."""
    while name_of_call(node) in _VIEWS:
        node = node.args[0]
    return node


def _readers(node: fx.Node) -> set[fx.Node]:
    """Return the calls that read a node, directly or through one of `_VIEWS`."""
    found = set[fx.Node]()
    for user in node.users:
        found |= _readers(user) if name_of_call(user) in _VIEWS else {user}
    return found


def _before(args: dict[str, Any], dims: int) -> tuple[Any, list[int]]:
    """Return the tensor that a convolution reads, and the zeros before its first element in each dim.

    Zeros that a call before it adds belong to it, too; those behind follow from the size of its result.
    """
    source, before = args["input"], zeros_before(args)
    pad = arguments(source, "input", "pad", "mode", "value") if name_of_call(source) == "pad" else {"pad": None}
    amounts = pad["pad"]
    if amounts is None or pad["mode"] not in (None, "constant") or pad["value"] or min(amounts) < 0:
        return source, before
    if len(amounts) > 2 * dims or is_written(source):
        return source, before
    added = [*amounts[::2], *[0] * (dims - len(amounts) // 2)][::-1]
    return pad["input"], [one + other for one, other in zip(before, added, strict=True)]


def _sums_after(
    node: fx.Node, adds_shortcut: Callable[[tuple[int, ...]], bool]
) -> tuple[fx.Node, fx.Node | None, fx.Node | None]:
    """Return the last of the sums after a convolution that its kernel can take, its residual and its shortcut."""
    last, residual, shortcut = node, None, None
    while True:
        summed, added = _sum_after(last)
        if added is None:
            return last, residual, shortcut
        source: Any = arguments(added, "input")["input"] if is_call(added, torch.pixel_shuffle) else added
        info = node_info(source)
        is_shortcut = info is not None and adds_shortcut(info.shape) and shortcut is None and not is_written(source)
        if residual is None and same_form(added, node) and (source is added or not is_shortcut):
            residual = added
        elif is_shortcut:
            shortcut = source
        else:
            return last, residual, shortcut
        last = summed


def _sum_after(node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """Return the sum that alone reads `node` and what it adds, also to each m channels; without one `node` itself."""
    user = next(iter(node.users))
    if name_of_call(user) in _RESHAPES:
        return _repeated_sum_after(node)
    for one, added in operands(user, torch.add) if is_read_once(node) else ():
        if one is node and added is not node and same_form(user, node) and same_form(added, node):
            return (user, added) if not is_written(added) else (node, None)
    return node, None


def _repeated_sum_after(node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """Find the sum `(node.unflatten(1, (-1, m)) + added.unsqueeze(1)).flatten(1, 2)`, which adds to each m channels.

    Return the node of its result, and `added`; where there is no such sum, `node` and None.
    """
    calls = [node]
    while len(calls) < 4 and is_read_once(calls[-1]):
        calls.append(next(iter(calls[-1].users)))
    if len(calls) < 4 or name_of_call(calls[3]) not in _RESHAPES or not same_form(calls[3], node):
        return node, None
    for one, repeated in operands(calls[2], torch.add):
        added: Any = repeated.args[0] if name_of_call(repeated) in _RESHAPES else None
        info, wide, parts = map(node_info, (added, repeated, calls[1]))
        if one is not calls[1] or info is None or wide is None or parts is None or is_written(added):
            continue
        batch, *rest = info.shape
        fits = wide.shape == (batch, 1, *rest) and parts.shape == (batch, parts.shape[1], *rest)
        if fits and (info.dtype, info.device) == (parts.dtype, parts.device):
            return calls[3], added
    return node, None
