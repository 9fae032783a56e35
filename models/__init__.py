"""The networks under test: the OWL world model, image VAE and audio VAE, and third-party networks for comparison.

Each module also has the factories that a component YAML names, and functions that draw random inputs: these
have shapes, value ranges and dtypes that only the network knows. `kernels` holds Triton kernels with their references.
Nothing here imports the harness, so a network can be read, tested and used by itself.
"""
