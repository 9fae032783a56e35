"""Rewrites of a network as a torch.fx graph.

`tracer` turns a module into a graph, `nodes` holds what a pass reads of it, `passes` applies passes; each other file
holds passes. A pass is a callable `GraphModule → GraphModule`: the ones here derive from `passes.RewritePass` and count
what they replace, a user's own may be any class or function. Adding one takes a file and a line of YAML.
"""
