"""Rewrites of a network as a torch.fx graph.

`tracer` turns a module into a graph, in the form of `canonical`; `nodes` reads the graph's tensor forms, shared memory
and constants; `passes` applies passes. The passes are in `folding`,
`convolution`, `linear` and `attention`. A pass is a callable `GraphModule → GraphModule`: those here derive from
`passes.RewritePass` and count what they replace, a user's own may be any class or function. Adding one takes a file and
a line of YAML.
"""
