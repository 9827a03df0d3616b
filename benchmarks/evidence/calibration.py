"""Statements with their bars, experiments that measure their rates, and the results as tables."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Self

RESULTS = Path(__file__).parent / "results"
Counts = Mapping[str, tuple[float, float]]
"""Hits and trials by name of a statement."""

LEVEL_OF_TESTS = (0.02, 0.07)
"""Bar of the false rejections at a nominal 5%."""
COVERAGE = (0.92, 0.98)
"""Bar of the coverage of intervals of 95%."""


@dataclass(frozen=True)
class Statement:
    """Something that dfact prints, what it estimates or tests, and how often it should be right."""

    name: str
    estimand: str
    """One sentence."""
    measured: str
    """What the rate is: "false rejections", "coverage", "power", "correct sizes", …."""
    nominal: float | None = None
    """The rate that the statement claims; None if it claims none."""
    bar: tuple[float, float] | None = None
    """Lowest and highest rate that count as calibrated; None for a figure that is only reported."""
    is_share: bool = True
    """Whether the rate is a share, printed in percent; otherwise it is a mean: the hits are sums of values, the trials their numbers."""


@dataclass(frozen=True)
class Experiment:
    """Simulated datasets that measure the rates of some statements."""

    statements: Sequence[Statement]
    conditions: Sequence[str]
    """Names of the simulated situations: sizes, missing answers, ordinal items, unequal groups."""
    simulate: Callable[[str, int], Counts]
    """Simulate one dataset, given the condition and the seed, and return the hits and trials of each statement that it measures. It is
    called in worker processes, so it is a function of a module."""
    runs: int = 100
    """Number of datasets for each condition."""
    unjudged: Sequence[tuple[str, str]] = ()
    """Names of statements with conditions for which the bar does not hold, such as a present rule next to the one that replaces it."""


@dataclass(frozen=True)
class Rate:
    """The measured rate of a statement in a condition."""

    statement: Statement
    condition: str
    hits: float
    trials: float
    error: float
    """Monte-Carlo standard error; the datasets are independent, the trials within one are not."""
    runs: int
    judged: bool = True

    @classmethod
    def of(cls, statement: Statement, condition: str, counts: Sequence[tuple[float, float]], judged: bool) -> Self:
        """Pool hits and trials of simulated datasets."""
        hits, trials = (math.fsum(column) for column in zip(*counts, strict=True))
        rate = hits / trials if trials else math.nan
        error = math.sqrt(math.fsum((h - rate * t) ** 2 for h, t in counts)) / trials if trials else math.nan
        return cls(statement, condition, hits, trials, error, len(counts), judged)

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Self:
        """Rebuild a rate from its entry in a file of results."""
        fields = dict(record)
        statement = dict(fields.pop("statement"))  # type: ignore[call-overload]
        bar = statement.pop("bar")
        return cls(Statement(**statement, bar=None if bar is None else tuple(bar)), **fields)  # type: ignore[arg-type]

    @property
    def rate(self) -> float:
        return self.hits / self.trials if self.trials else math.nan

    @property
    def met(self) -> bool | None:
        """Whether the rate lies within the bar; None where no bar holds."""
        if self.statement.bar is None or not self.judged:
            return None
        low, high = self.statement.bar
        return low <= self.rate <= high


@dataclass(frozen=True)
class Topic:
    """A section of the guide: its text, and the rates measured for it."""

    name: str
    title: str
    introduction: str
    experiments: Sequence[Experiment] = field(default=(), repr=False)

    @property
    def results(self) -> Path:
        return RESULTS / f"{self.name}.json"

    def run(self, runs: int | None, processes: int, told: Callable[[str], None]) -> list[Rate]:
        """Run all experiments, store their rates, and return them."""
        rates = []
        with ProcessPoolExecutor(processes, initializer=_use_one_thread) as pool:
            for experiment in self.experiments:
                n = runs or experiment.runs
                keys = list(product(experiment.conditions, range(n)))
                found = list(pool.map(_simulate, *zip(*((experiment, c, seed) for c, seed in keys), strict=True)))
                for statement, condition in product(experiment.statements, experiment.conditions):
                    counts = [
                        of_run[statement.name]
                        for (where, _), of_run in zip(keys, found, strict=True)
                        if where == condition and statement.name in of_run
                    ]
                    if counts:
                        judged = (statement.name, condition) not in experiment.unjudged
                        rates.append(Rate.of(statement, condition, counts, judged))
                        told(describe(rates[-1]))
        RESULTS.mkdir(exist_ok=True)
        self.results.write_text(json.dumps([asdict(rate) for rate in rates], indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return rates

    def stored(self) -> list[Rate]:
        """Return the rates of the last run; none if there was no run."""
        if not self.results.exists():
            return []
        return [Rate.from_record(record) for record in json.loads(self.results.read_text(encoding="utf-8"))]


def _use_one_thread() -> None:
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)


def _simulate(experiment: Experiment, condition: str, seed: int) -> Counts:
    return experiment.simulate(condition, seed)


def value_text(statement: Statement, value: float) -> str:
    """Return a rate as text: a share in percent, a mean as a number."""
    return f"{100 * value:.1f}%" if statement.is_share else f"{value:.3f}"


def error_text(rate: Rate) -> str:
    """Return the standard error of a rate, in its unit."""
    return f"{100 * rate.error:.1f}" if rate.statement.is_share else f"{rate.error:.3f}"


def bar_text(statement: Statement) -> str:
    """Return the bar as text: "2 to 7%", "at least 80%", "at most 5%", or a dash without one."""
    if statement.bar is None:
        return "—"
    low, high = statement.bar
    if not statement.is_share:
        return f"{low:g} to {high:g}"
    if low <= 0:
        return f"at most {100 * high:g}%"
    return f"at least {100 * low:g}%" if high == 1 else f"{100 * low:g} to {100 * high:g}%"


def describe(rate: Rate) -> str:
    """Return a line for the terminal."""
    verdict = {None: "", True: "met", False: "MISSED"}[rate.met]
    s = rate.statement
    measured = f"{value_text(s, rate.rate)} ± {error_text(rate)}"
    return f"{s.name}, {rate.condition}: {s.measured} {measured} in {rate.runs} runs, expected {bar_text(s)}  {verdict}".rstrip()


def section(topic: Topic, rates: Sequence[Rate]) -> str:
    """Return a section of the guide: the introduction, the estimands, and a table of the rates."""
    lines = [f"## {topic.title}", "", topic.introduction.strip(), ""]
    statements = list({rate.statement.name: rate.statement for rate in rates}.values())
    lines += [f"- **{statement.name}**: {statement.estimand}" for statement in statements]
    lines += ["", "| statement | condition | what | nominal | measured | bar |", "|---|---|---|---|---|---|"]
    for rate in rates:
        s = rate.statement
        measured = f"{value_text(s, rate.rate)} ± {error_text(rate)}"
        missed = " (missed)" if rate.met is False else ""
        bar = bar_text(s) if rate.judged else "—"
        nominal = "—" if s.nominal is None else f"{100 * s.nominal:g}%" if s.is_share else f"{s.nominal:g}"
        lines.append(f"| {s.name} | {rate.condition} | {s.measured} | {nominal} | {measured}{missed} | {bar} |")
    return "\n".join([*lines, ""])
