"""The networks under test: the OWL world model, image VAE and audio VAE, and third-party networks for comparison.

Each module also has factories and input functions that a component YAML names. Nothing here imports the harness, so a
network can be read, tested and used by itself.
"""
