"""A row that compares rivals and qkv's backends on one problem, alternating, with all results checked against qkv's."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

from benchmarks.engine.cases import BOTH, FORWARD, TOLERANCE, Case, difference, make
from benchmarks.engine.mechanisms import Equation, Size
from benchmarks.engine.rivals import FULL, offer
from benchmarks.engine.timing import Patience, Run, Watch, by_turns, ratio

from qkv.errors import UnsupportedError
from qkv.planner.plan import QUADRATIC_LIMIT
from qkv.planner.registry import BACKENDS

OURS, FLOOR = "qkv", "floor"
WARM = 256
"""Up to this many queries the first call is not representative: compilation and allocation dominate."""
HOPELESS = 8.0
"""A backend whose first call takes this many times as long as the chosen one's is not timed further."""

Say = Callable[[str], None]


@final
@dataclass(frozen=True)
class Comparison:
    """A row.

    Attributes:
        name: the row's name for `--row`.
        mechanism: one of `MECHANISMS`.
        size: size of the problem.
        rivals: some of `RIVALS`, besides the full tensor.
        asked: (pass, rival) -> target speedup of qkv over the rival.
        passes: `FORWARD`, `BOTH`.
        outlier: whether one key is far from all others, so that distances need their safe form.
        backends: whether to time every backend that `auto` could have chosen.
        floor: builds the bare loop of the same arithmetic, if any: pass -> what to call.
    """

    name: str
    mechanism: str
    size: Size
    rivals: tuple[str, ...] = ()
    asked: Mapping[tuple[str, str], float] = field(default_factory=dict)
    passes: tuple[str, ...] = (FORWARD, BOTH)
    outlier: bool = False
    backends: bool = False
    floor: Callable[[Size], Mapping[str, Run]] | None = None

    def measure(self, say: Say, watch: Watch) -> dict[str, Any]:
        """Time all passes.

        Args:
            say: called with lines of progress.
            watch: the clock and the time per contender.

        Returns:
            The record to store, as JSON values.
        """
        case = make(self.mechanism, self.size, outlier=self.outlier)
        held = case.full()[1]
        return {
            "kind": "comparison",
            "mechanism": self.mechanism,
            "size": self.size._asdict(),
            "outlier": self.outlier,
            "full tensor": held,
            "passes": {what: self._pass(case, what, say, watch) for what in self.passes},
        }

    def _pass(self, case: Case, what: str, say: Say, watch: Watch) -> dict[str, Any]:
        plan, dropout = case.plan(what), case.mechanism.dropout
        runs: dict[str, Run] = {OURS: case.run(case.ours(dropout=dropout), what)}
        skipped, apart = {}, {}
        expected = case.run(case.ours(), what)()
        for rival in (FULL, *self.rivals):
            made = offer(rival, case, self.mechanism, what, 0.0)
            if isinstance(made, str):
                skipped[rival] = made
                continue
            apart[rival] = difference(case.run(made, what)(), expected)
            if not apart[rival] <= TOLERANCE:
                skipped[rival] = f"its result differs by {apart[rival]:.1e} of its size"
                continue
            runs[rival] = case.run(made if not dropout else _dropping(rival, case, self.mechanism, what), what)
        if self.floor is not None and what in (bare := self.floor(self.size)):
            runs[FLOOR] = bare[what]
        if self.backends:
            runs |= _other_backends(case, what, plan.backend, expected, apart)
        if dropout:
            for run in runs.values():
                run()
        times = by_turns(runs, {name: _patience(name, watch.seconds) for name in runs}, watch.clock)
        return _summary(times, {"backend": plan.backend, "skipped": skipped, "apart": apart}, self.asked, what, say)


def _patience(name: str, seconds: float) -> Patience:
    """Backends that were not chosen get a quarter of the time."""
    return Patience(seconds / 4, 1, 21) if name.startswith(f"{OURS},") else Patience(seconds)


def _dropping(rival: str, case: Case, mechanism: str, what: str) -> Equation:
    made = offer(rival, case, mechanism, what, case.mechanism.dropout)
    assert not isinstance(made, str)
    return made


def other_backends(case: Case, what: str) -> list[str]:
    """Return the other backends that `auto` could have chosen."""
    chosen, pairs = case.plan(what).backend, case.size.queries * case.size.keys
    return [name for name in BACKENDS if name != chosen and _serves(case, what, name, pairs)]


def _serves(case: Case, what: str, name: str, pairs: int) -> bool:
    if name == "flex" or (name == "reference" and pairs > QUADRATIC_LIMIT):
        return False
    try:
        case.plan(what, name)
    except UnsupportedError:
        return False
    return True


def _other_backends(case: Case, what: str, chosen: str, expected: list[Any], apart: dict[str, float]) -> dict[str, Run]:
    """Return those that support the problem, checked like every contender; hopelessly slow ones are omitted."""
    runs: dict[str, Run] = {}
    start = time.perf_counter()
    case.run(case.ours(), what)()
    least = time.perf_counter() - start
    for name in other_backends(case, what):
        run = case.run(case.ours(name), what)
        if case.size.queries <= WARM:
            run()
        start = time.perf_counter()
        apart[f"{OURS}, {name}"] = difference(run(), expected)
        if time.perf_counter() - start <= max(HOPELESS * least, 0.05):
            runs[f"{OURS}, {name}"] = case.run(case.ours(name, case.mechanism.dropout), what)
    return runs


def _summary(
    times: Mapping[str, list[float]],
    facts: dict[str, Any],
    asked: Mapping[tuple[str, str], float],
    what: str,
    say: Say,
) -> dict[str, Any]:
    kept = {}
    for name, own in times.items():
        kept[name] = {"ms": round(statistics.median(own), 4), "turns": len(own)}
        if name != OURS:
            kept[name] |= {key: round(x, 3) for key, x in asdict(ratio(own, times[OURS])).items()}
        if (what, name) in asked:
            kept[name]["asked"] = asked[what, name]
        say(f"  {what:18} {name:18} {_shown(kept[name])}")
    for name, reason in facts["skipped"].items():
        say(f"  {what:18} {name:18} skipped: {reason}")
    facts["apart"] = {name: float(f"{x:.2e}") for name, x in facts["apart"].items()}
    return {**facts, "times": kept}


def _shown(kept: Mapping[str, Any]) -> str:
    line = f"{kept['ms']:11.3f} ms ({kept['turns']} turns)"
    if "middle" in kept:
        line += f"  {kept['middle']:8.2f} times qkv [{kept['low']:.2f}, {kept['high']:.2f}]"
    return line + (f"  (asked: {kept['asked']:g})" if "asked" in kept else "")
