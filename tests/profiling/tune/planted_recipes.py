"""A component whose recipes have known times, errors and preparations, searched on a fake clock."""

from dataclasses import replace
from math import prod

from fake_cells import Plan, Silent, rows
from make_job import SETTINGS, make_config

from profiling.run import runner
from profiling.tune.search import Search
from profiling.tune.space import Space
from profiling.variants.steps import read_steps

EAGER_MS, LOAD_S = 10.0, 2.0


class Plans(dict):
    """The plan of each recipe, from its name: the factors on its time, and the seconds, of its steps."""

    def __init__(self, factors, seconds, **plans):
        super().__init__(plans)
        self.factors, self.seconds = factors, seconds

    def __missing__(self, name):
        steps = frozenset() if name == "baseline" else frozenset(name.split("+"))
        together = [factor for wanted, factor in self.factors.items() if set(filter(None, wanted.split("+"))) <= steps]
        seconds = LOAD_S + sum(self.seconds.get(step, 1.0) for step in steps)
        wrong = {"rel_l2": 0.5} if "wrong" in steps else {}
        self[name] = Plan(EAGER_MS * prod(together), prepare_s=seconds, **wrong)
        return self[name]


def space_of(*names, **options):
    """Return steps of these names, each a transform; `options` are the rules of some."""
    nodes = {name: {"_target_": name, "rules": options.get(name, {})} for name in names}
    return Space.of(read_steps(nodes), list(names), None)


def searched(folder, space, cells, budget=600.0, own=None, others=None, compile_cache="fresh", **options):
    """Search the space with fake cells; return (run, records by variant, seconds that the search took)."""
    given = {"cell_timeout": 1800.0, "seconds": budget, "settings": replace(SETTINGS, compile_cache=compile_cache)}
    config = make_config({"baseline": {}, **space.variants()}, **given, **options)
    folder.mkdir(parents=True, exist_ok=True)
    run = runner.Run("tune", config, folder, Silent(), "", performs=cells)
    began = cells.seconds
    search = Search(space, budget, lambda: cells.seconds, own, others)
    runner.execute((run,), search)
    return run, rows(folder), cells.seconds - began


def prepared(cells):
    """Return the recipes in the order in which they were prepared."""
    return [variant for variant, step in cells.log if step == "ready"]
