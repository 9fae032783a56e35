"""The search: prepare recipes, the quickest first, time them in turns, and end the slower half.

After the baseline come all exact transforms together, compiled and captured, without those that change nothing in this
module: steps that pay only beside others are not found one at a time. Then come the neighbours of the best recipe so
far (one more step, or an alternative to one), a few at a time. They take turns with the recipes that are still alive,
which stay prepared in their processes and keep their samples; then the slower half ends. A recipe with a wrong output
ends at once. Everything counts against the budget.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

import msgspec

from profiling.errors import CHANGES_NOTHING, DID_NOTHING, InputError
from profiling.results.jsonl import read_records
from profiling.results.measured import LEAST_VALUES
from profiling.results.record import BASELINE, NOT_ENDED, Record
from profiling.results.run_folder import write_text
from profiling.results.verdicts import compare_records, fastest_correct, with_speedup
from profiling.run.cell_records import LiveCell
from profiling.run.compile_caches import FROM_CACHE, compiled_code
from profiling.run.events import End
from profiling.run.in_turns import CellsInTurns, run_again
from profiling.run.job import Job, as_recipe
from profiling.run.process import Isolated
from profiling.run.runner import Run
from profiling.run.turns import take_turns
from profiling.tune.space import Chosen, Space

#: Share of the budget (0 to 1) in which each of several devices searches its own steps; in the rest the first one
#: searches all. Recipes of different devices are compared by their speedup over the baseline on their device.
SEARCHING = 0.8
#: Recipes that are prepared before the next halving, and the fewest that a halving leaves.
BATCH, SURVIVORS = 4, 2
#: The search has converged when the neighbours of this many of the best recipes were tried.
PARENTS = 3
#: The neighbours of a recipe with one step more are tried before those of a shorter one if it is this many times as
#: fast.
STEP_GAIN = 1.01
#: Windows of each cell between two halvings: enough for an interval of their ratio even if a few are disturbed.
BLOCKS = LEAST_VALUES + 2
#: Seconds beyond the budget after which a cell is killed.
GRACE = 30.0
#: Share of the budget (0 to 1) kept for timing the winner in turns with the recipes that lack one of its steps.
FINAL_SHARE = 0.05
#: The seconds in a step's YAML are a guess for a large network. Until a recipe with such a step was measured, a guess
#: may be this many times too high.
TOO_HIGH = 4.0
#: The file in the run folder that says how much of the budget was used up.
SPENT = "search.json"
#: Why a recipe has no measurement.
NOT_TRIED = "not tried: preparing it was expected to take more than what was left of the budget"
_EAGER: Chosen = frozenset()


@dataclass
class Search:
    """A search in progress, as the schedule of a run whose variants are the baseline and the steps of the space.

    `budget` is in seconds of the clock `now`, from when this object is made. Where further devices are searched, it
    first searches the space that is its `own`, and then goes on with the results of `others`, which waits for them for
    the seconds that are left.
    """

    space: Space
    budget: float
    now: Callable[[], float] = time.monotonic
    own: Space | None = None
    others: Callable[[float], Sequence[Record]] | None = None
    _run: Run = field(init=False)
    _turns: CellsInTurns = field(init=False)
    _began: float = field(init=False)
    _share: float = field(default=1.0, init=False)  # of the budget (0 to 1), for what is searched now
    _spent_before: float = field(default=0.0, init=False)  # by the run that is resumed
    _tried: dict[Chosen, float] = field(default_factory=dict, init=False)  # seconds until it was ready; 0: unknown
    _refused: set[Chosen] = field(default_factory=set, init=False)  # that failed; no steps are added to them
    _idle: set[str] = field(default_factory=set, init=False)  # transforms that change nothing beside all others
    _saved: dict[str | None, float] = field(default_factory=dict, init=False)  # seconds, by compiled code
    _ending: float = field(default=0.0, init=False)  # longest time that a cell took from its last window to its end
    _alive: dict[Chosen, LiveCell] = field(default_factory=dict, init=False)
    _again: list[LiveCell] = field(default_factory=list, init=False)  # ran out of memory beside others a moment ago
    _alone: dict[Chosen, float] = field(default_factory=dict, init=False)  # to be run at the end; expected seconds

    def __post_init__(self) -> None:
        """Start the clock."""
        self._began = self.now()

    def __call__(self, runs: Sequence[Run]) -> None:
        """Search the recipes of a run that has begun, and end all cells."""
        (self._run,) = runs
        self._leave_out_steps()
        self._resume()
        try:
            self._search()
        finally:
            self._note_spent()

    def _search(self) -> None:
        with CellsInTurns(self.now, again=self._again) as self._turns:
            if self.own is not None and self.others is not None:
                self._search_own_steps(self.own, self.others)
            self._try_recipes()
            self._explain_winner()
            self._finish(sorted(self._alive, key=len))  # the baseline first
        self._run_alone()
        self._keep_not_tried()
        self._run.cells.complete()

    def _search_own_steps(self, own: Space, others: Callable[[float], Sequence[Record]]) -> None:
        """Search the steps of this device while other devices search theirs, and adopt what they measured."""
        whole, self.space = self.space, self.space.only(own.steps).possible()
        self._share = SEARCHING
        self._try_recipes()
        for record in others(max(0.0, self.left)):
            chosen = whole.chosen(record.variant)
            if chosen is not None and chosen not in self._tried and _is_tried(record):
                self._tried[chosen] = 0.0
                self._run.cells.keep(record)
                self._note_refused(chosen, record)
        self.space, self._share = whole, 1.0

    def _try_recipes(self) -> None:
        """Prepare recipes and end the slower ones, until none is left that the budget pays for."""
        while batch := self._next_batch():
            for chosen in batch:
                if chosen == _EAGER or self._is_affordable(chosen, self._best()):
                    self._prepare(chosen)
            self._halve()

    @property
    def left(self) -> float:
        """The remaining budget in seconds."""
        return self._share * self.budget - self._spent()

    def _spent(self) -> float:
        return self._spent_before + self.now() - self._began

    # What can be searched

    def _leave_out_steps(self) -> None:
        """Drop steps that cannot run here, with a row for each."""
        space, device = self.space, self._run.jobs[0].settings.device
        singles = space.singles()
        idle = {space.name(singles[step]): End("skipped", why) for step, why in space.idle(device).items()}
        self._run.say_not_run({name: end for name, end in idle.items() if name not in self._run.not_run})
        not_run = {**idle, **self._run.not_run}
        absent = {step: single for step, single in singles.items() if space.name(single) in not_run}
        for single in dict.fromkeys(absent.values()):
            self._run.cells.not_run(self._job(single), not_run[space.name(single)])
        self.space = space.only(space.steps.keys() - absent.keys()).possible()

    def _resume(self) -> None:
        """Adopt what the resumed run measured; what it did not try or finish is due again."""
        cells = self._run.cells
        for cell, record in tuple(cells.by_cell.items()):
            if record.reason == NOT_TRIED:
                del cells.by_cell[cell]
        if self._run.config.resume is None:
            return
        for record in read_records(self._run.folder).records:
            chosen = self.space.chosen(record.variant)
            if chosen and _is_tried(record):
                self._tried[chosen] = 0.0
                self._note_refused(chosen, record)
        path = self._run.folder / SPENT
        if path.exists():  # else it was killed before its first recipe
            try:
                self._spent_before = float(json.loads(path.read_text())["seconds"])
            except (ValueError, LookupError, TypeError) as error:
                raise InputError(f"{path} is damaged. Without it, the search has its whole budget again.") from error

    def _note_spent(self) -> None:
        """Write down how much of the budget is used up: the search may be killed, and resumed."""
        write_text(self._run.folder / SPENT, json.dumps({"seconds": round(self._spent(), 3)}))

    # What is next

    def _next_batch(self) -> list[Chosen]:
        """Return the next recipes to prepare, quickest first: all together, then neighbours of the best recipe."""
        if _EAGER in self._tried and _EAGER not in self._alive:
            return []  # it failed, and without it nothing can be compared
        best = self._best()
        for untried in (self._together(), *map(self._untried, self._parents())):
            affordable = sorted((each for each in untried if self._is_affordable(each, best)), key=self._expected)
            if affordable:
                return affordable[:BATCH] if _EAGER in self._tried else [_EAGER]
        return []

    def _together(self) -> list[Chosen]:
        """Return the recipe of all exact transforms, compiled and captured; nothing once such a recipe has run.

        A transform that changes nothing beside the others is left out of the next one. Where another reason ends it,
        the compiler and the capture alone are next.
        """
        transforms = {name for name, step in self.space.steps.items() if step.kind == "transform"}
        chosen = self.space.together(self._idle)
        if chosen in self._tried:
            ran = chosen in self._alive or chosen in self._gains()
            chosen = _EAGER if ran else self.space.together(transforms)
        return [chosen] if chosen and chosen not in self._tried else []

    def _untried(self, parent: Chosen) -> list[Chosen]:
        """Return the untried neighbours of a recipe that contain no recipe that is wrong or was refused."""
        untried = (each for each in self.space.neighbours(parent) if each not in self._tried)
        return [each for each in untried if not any(refused <= each for refused in self._refused)]

    def _note_refused(self, chosen: Chosen, record: Record) -> None:
        """Note an end that more steps cannot mend. A failed capture is none: a compiler may remove the reason."""
        wrong = record.bad_input or (record.parity is not None and not record.parity.passed)
        failed = record.status == "failed" and (wrong or not self.space.recipe(chosen)["capture"])
        if chosen and (failed or record.status == "skipped"):
            self._refused.add(chosen)
        if chosen == self.space.together(self._idle) and record.status == "skipped":
            reason = record.reason or ""
            self._idle |= {each for each in chosen if reason.startswith(f"transform {each} {CHANGES_NOTHING}")}

    def _parents(self) -> list[Chosen]:
        """Return the recipes whose neighbours to try, the best first."""
        ranked = sorted(self._gains().items(), key=lambda each: -each[1] / STEP_GAIN ** len(each[0]))
        return [chosen for chosen, _ in ranked[:PARENTS]] or [_EAGER]

    def _gains(self) -> dict[Chosen, float]:
        """Return the speedup over the baseline of each correct recipe that was timed in turns with it."""
        gains = {self.space.chosen(each.variant): _gain(each) for each in self._records()}
        return {chosen: value for chosen, value in gains.items() if chosen is not None and value is not None}

    def _records(self) -> list[Record]:
        """Return the records of all recipes with their speedups, those of waiting ones as of now."""
        alive = {each.job.cell: each.record_so_far() for each in self._alive.values()}
        return [self._with_speedup(each) for each in {**self._run.records, **alive}.values()]

    def _with_speedup(self, record: Record) -> Record:
        """Return the record with its speedup over the baseline with which it took turns."""
        if record.speedup is not None or _EAGER not in self._alive:
            return record
        return with_speedup(record, self._alive[_EAGER].record_so_far())

    def _is_affordable(self, chosen: Chosen, best: Chosen | None) -> bool:
        """Return whether the budget suffices for the recipe, and for those without one step of it or of the `best`.

        For all transforms together it need not suffice for those.
        """
        if chosen in self._together():
            return self._fits(chosen, too_high=1.0)
        others = sum(self._alone.values())
        others += 0.0 if _EAGER in self._alive else self._expected(_EAGER)
        explained = (chosen, best or _EAGER)  # whichever wins
        others += max(sum(self._expected(e, TOO_HIGH) for e in self._unexplained(each)) for each in explained)
        return self._fits(chosen, others)

    def _fits(self, chosen: Chosen, others: float = 0.0, too_high: float = TOO_HIGH) -> bool:
        """Return whether the recipe can be prepared within the budget, with `others` seconds set aside."""
        ending = FINAL_SHARE * self.budget + self._ending * (len(self._alive) + 1)
        return self._expected(chosen, too_high) + others + ending <= self.left

    def _unexplained(self, chosen: Chosen) -> list[Chosen]:
        """Return the untried recipes that lack one of the steps."""
        without = dict.fromkeys(self.space.without_each(chosen).values())
        return [each for each in without if each and each not in self._tried]

    def _expected(self, chosen: Chosen, too_high: float = 1.0) -> float:
        """Return the expected seconds to prepare a recipe; guesses without a measurement are divided by `too_high`."""
        loading = self._tried.get(_EAGER, 0.0)
        measured = {each: max(0.0, all_ - loading) for each, all_ in self._tried.items() if each and all_ > 0}
        seconds = self.space.seconds(chosen, measured, 1 / too_high)
        return loading + max(0.0, seconds - self._saved.get(compiled_code(self._job(chosen)), 0.0))

    # Preparing, timing, ending

    def _job(self, chosen: Chosen) -> Job:
        baseline = self._run.jobs[0]
        if not chosen:
            return baseline
        return replace(baseline, variant=self.space.name(chosen), variant_options=as_recipe(self.space.recipe(chosen)))

    def _prepare(self, chosen: Chosen) -> None:
        """Prepare a recipe beside the others; end it if its output is wrong.

        If it runs out of memory, the others make room: it is tried again beside the baseline, and then, at the end of
        the search, alone.
        """
        if self._turns.lacking_memory():
            self._halve()
        if lacking := self._turns.lacking_memory():
            self._make_room(lacking)
        self._note_spent()
        began, job = self.now(), self._job(chosen)
        before = self._run.records.get(job.cell)
        prepared = self._prepared_with_others(job)
        if any(self._alive) and self._ran_out_of_memory():
            self._halve()
            self._make_room(f"{job.variant} ran out of it together with others")
            began, prepared = self.now(), self._prepared_with_others(job)
        self._tried[chosen] = 0.0 if prepared is None else self.now() - began
        ran_out = self._ran_out_of_memory()
        if ran_out and before is not None and before.status == "ok":
            self._run.cells.keep(before)  # it was timed before
        elif ran_out:
            self._alone[chosen] = max(self._expected(chosen), self.now() - began)
        elif prepared is None:
            self._note_refused(chosen, self._ended(chosen, job))
        else:
            self._alive[chosen] = prepared
            record = prepared.record_so_far()
            self._note_cache(chosen, record)
            parity = record.parity
            if parity is not None and not parity.passed:
                # Without a window it would time itself alone, for seconds.
                take_turns([prepared.waiting_in], 0.0, seed=0, spreads=self._run.cells.spreads)
                self._finish([chosen])

    def _note_cache(self, chosen: Chosen, record: Record) -> None:
        """Count a recipe as from an empty cache, and note what a filled one saves others with the same code."""
        prepare, kind = record.prepare, self._run.caches.kind
        if prepare is None or kind == "cold":
            return
        self._tried[chosen] += prepare.from_cold - prepare.seconds
        # In inductor's own folder the cells share all but packages.
        phases = set(FROM_CACHE) - ({"package"} if kind == "shared" else set())
        saved = sum(prepare.phases.get(each, 0.0) for each in phases)
        self._saved.setdefault(compiled_code(self._job(chosen)), saved)

    def _prepared_with_others(self, job: Job) -> LiveCell | None:
        """Prepare a cell beside the others, within the budget; None if it has ended."""
        cells = self._run.cells
        cells.total = cells.begun + 1
        cells.by_cell.pop(job.cell, None)  # of the run that is resumed: the baseline is timed again beside the others
        cell = LiveCell(cells, self._executor, job)
        return cell if self._turns.prepare(cell) else None

    @property
    def _executor(self) -> Isolated:
        """What runs a cell, for as long as the budget lasts."""
        executor, most = self._run.executor, self._run.config.cell_timeout
        assert isinstance(executor, Isolated)
        executor.limits = replace(executor.limits, seconds=min(most, max(0.0, self.left) + GRACE))
        return executor

    def _ended(self, chosen: Chosen, job: Job) -> Record:
        """Return the record of a cell that has ended before it was timed.

        Nobody asked for these steps in particular: it is skipped where they change nothing, or are refused together.
        """
        record = self._run.records[job.cell]
        reason = record.reason or ""
        does_nothing = DID_NOTHING in reason
        if does_nothing or (record.bad_input and len(chosen) > 1):
            reason = reason.replace(f": {DID_NOTHING}", f" {CHANGES_NOTHING}").replace(DID_NOTHING, CHANGES_NOTHING)
            record = msgspec.structs.replace(record, status="skipped", reason=reason, bad_input=False)
            self._run.cells.keep(record)
            self._run.say_not_run({job.variant: End("skipped", reason)})  # the line before this says failed
        return record

    def _ran_out_of_memory(self) -> bool:
        """Return whether the cell that has just ended ran out of memory beside others."""
        ran_out = bool(self._again)
        self._again.clear()
        return ran_out

    def _make_room(self, why: str) -> None:
        self._finish([each for each in self._alive if each], f"ended early to free memory: {why}")

    def _run_alone(self) -> None:
        """Run the recipes alone that ran out of memory even beside the baseline."""
        for chosen, seconds in tuple(self._alone.items()):
            if seconds <= self.left:
                self._run.cells.total = self._run.cells.begun + 1
                run_again([LiveCell(self._run.cells, self._executor, self._job(chosen))])
                del self._alone[chosen]

    def _halve(self) -> None:
        """Time all prepared recipes in turns, then end the slower half, but not the baseline."""
        self._time(list(self._alive), BLOCKS)
        gains = self._gains()
        others = sorted((each for each in self._alive if each), key=lambda each: -gains.get(each, 0.0))
        self._finish(others[max(SURVIVORS, ceil(len(others) / 2)) :])

    def _time(self, recipes: Sequence[Chosen], blocks: float = inf, *, with_controls: bool = False) -> None:
        """Let prepared recipes take turns for `blocks` blocks, until they can be compared, or for what is left."""
        self._note_spent()
        cells = [self._alive[each] for each in recipes]
        if len(cells) > 1:
            left = max(0.0, self.left - self._ending * len(self._alive))
            self._turns.time(cells, left, blocks, with_controls=with_controls)
        self._finish([chosen for chosen, each in self._alive.items() if each.waiting_in.has_ended])

    def _finish(self, recipes: Sequence[Chosen], note: str = "") -> None:
        """Let recipes finish (other metrics, second parity check), and keep their records."""
        for chosen in recipes:
            prepared, began = self._alive[chosen], self.now()
            self._turns.finish([prepared], note)
            self._ending = max(self._ending, self.now() - began)
            if self._ran_out_of_memory():
                self._alone[chosen] = self._expected(chosen)
                del self._alive[chosen]
                continue
            record = self._run.records[prepared.job.cell]
            self._note_refused(chosen, record)
            if chosen and (compared := self._with_speedup(record)) != record:
                self._run.cells.keep(compared)
            del self._alive[chosen]

    # The winner

    def _explain_winner(self) -> None:
        """Time the winner in turns with the recipes that lack one of its steps; one that is as fast wins.

        What is then left is for the winner and the recipe that may yet turn out to be faster.
        """
        explained: set[Chosen] = set()
        while (best := self._best()) is not None and best not in explained and _EAGER in self._alive:
            explained.add(best)
            kept = {_EAGER, best, self._rival(best), *self.space.without_each(best).values()}
            self._finish([each for each in self._alive if each not in kept])
            missing = [each for each in self._unexplained(best) if self._fits(each)]
            if missing and best not in self._alive and self._fits(best, self._expected(missing[0])):
                self._prepare(best)
            for each in missing:
                if self._fits(each):
                    self._prepare(each)
            if best:
                again = self._fits(best, sum(map(self._expected, self._alive)))  # each may have a second process
                self._time(list(self._alive), 4 * BLOCKS, with_controls=again)
            while (rival := self._rival(best)) is not None and self.left > self._ending * (len(self._alive) + 1):
                self._time([best, rival])  # until it is decided, or as many samples are taken as a cell may have

    def _rival(self, best: Chosen) -> Chosen | None:
        """Return the fastest waiting recipe that more turns could show to be faster than `best`; None if none could."""
        if best not in self._alive:
            return None
        record, gains = self._alive[best].record_so_far(), self._gains()
        others = [each for each in self._alive if each and each != best and each in gains]
        pairs = {each: compare_records(self._alive[each].record_so_far(), record) for each in others}
        undecided = [
            each
            for each, pair in pairs.items()
            if pair is not None and pair.answer() == "undecided" and not pair.is_limited_by_placement()
        ]
        return max(undecided, key=lambda each: gains[each], default=None)

    def _best(self) -> Chosen | None:
        best = fastest_correct(each for each in self._records() if each.variant == BASELINE or _gain(each))
        return None if best is None else self.space.chosen(best.variant)

    def _keep_not_tried(self) -> None:
        """Add a skipped row for each recipe that would have been next."""
        next_ones = [each for parent in self._parents() for each in self._untried(parent)]
        best = self._best()
        for chosen in dict.fromkeys((*self._alone, *next_ones, *(self._unexplained(best) if best else ()))):
            if chosen not in self._tried or chosen in self._alone:
                self._run.cells.not_run(self._job(chosen), End("skipped", NOT_TRIED))


def _is_tried(record: Record) -> bool:
    """Return whether a recipe was tried to its end: one whose process died or was killed may be tried again."""
    reason = record.reason or ""
    return reason not in (NOT_ENDED, NOT_TRIED) and not reason.startswith("the process ")


def _gain(record: Record) -> float | None:
    """Return the measured speedup of a correct recipe over the baseline of its device; None: it has none."""
    if not record.is_correct or record.wall_p50 is None:
        return None
    return 1.0 if record.variant == BASELINE else record.speedup.wall if record.speedup is not None else None
