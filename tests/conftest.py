"""Every process that runs tests."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _imports_are_no_garbage():
    """Keep what was imported out of collections: each measurement begins with one, of a quarter second."""
    gc.collect()
    gc.freeze()
