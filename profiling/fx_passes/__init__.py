"""Rewrites of a network as a torch.fx graph: the tracer, the facts that passes read, and one file a pass.

A pass is a callable `GraphModule → GraphModule`. The ready ones derive from `profiling.fx_passes.passes.Transform`
and say how many places they rewrote; one of the user's own may be any class or function. Adding one takes a file and a
line of YAML.
"""
