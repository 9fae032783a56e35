"""Every process that runs tests."""

import gc
import sys

import parsed_once
import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_tests(tmp_path_factory):
    """Keep what tests learn of this machine out of the user's cache, and what that holds out of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _yaml_is_parsed_once():
    parsed_once.parsed_here()


@pytest.fixture(autouse=True)
def _same_numbers_each_time():
    """Seed torch before each test. With unseeded weights and inputs a test exceeds its tolerance now and then."""
    torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def _imports_are_no_garbage():
    """Keep what was imported out of collections: each measurement begins with one, of a quarter second."""
    gc.collect()
    gc.freeze()


class _Missing:
    """An import hook that raises ModuleNotFoundError for one library and its modules."""

    def __init__(self, library):
        self._library = library

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self._library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def without_library(monkeypatch):
    """Return a function that hides an installed library until the test ends, even if it was imported before."""

    def hide(library):
        for name in [name for name in sys.modules if name.partition(".")[0] == library]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(sys, "meta_path", [_Missing(library), *sys.meta_path])

    return hide
