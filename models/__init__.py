"""Networks only: nothing here knows about the harness or about Hydra."""
