"""Progress: a bar on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, TextIO

from tqdm import tqdm

_WINDOW = 5
_SLOWEST = 0.9  # ratio of a change to the one before; more, and rounding errors alone would look like a long way to go


@dataclass(frozen=True)
class Iteration:
    """What a solver tells its callbacks after an iteration."""

    number: int
    """Starts at 1; it is 0 while a fit starts on a sample of the rows."""
    limit: int
    objective: float
    """NaN where steps follow one another that minimise nothing."""
    change: float
    """Relative change of the objective since the iteration before; NaN in the first."""
    seconds: float
    """Since the fit began."""
    step: str = ""
    """What was done, where each step does something else."""


class Reporter:
    """Tells callbacks what is done, and the time since it was made."""

    def __init__(self, callbacks: Iterable[Callable[[Iteration], None]], limit: int) -> None:
        self._callbacks, self._limit, self._began = tuple(callbacks), limit, time.perf_counter()
        self._number = 0

    def iteration(self, history: Sequence[float], step: str = "") -> None:
        """The next iteration is done, with the last objective of the history."""
        self._number += 1
        self._tell(history[-1], relative_change(history), step)

    def step(self, step: str) -> None:
        """The next of several steps is done that minimise nothing."""
        self._number += 1
        self._tell(float("nan"), float("nan"), step)

    def on_sample(self, history: Sequence[float]) -> None:
        """The next pass over a sample of the rows is done, before the first iteration."""
        self._tell(float("nan"), float("nan"), f"pass {len(history)} over a sample of the rows")

    def _tell(self, objective: float, change: float, step: str) -> None:
        iteration = Iteration(self._number, self._limit, objective, change, time.perf_counter() - self._began, step)
        for callback in self._callbacks:
            callback(iteration)


def relative_change(history: Sequence[float]) -> float:
    """Of the last value to the one before; NaN, which is never below a tolerance, if there is none."""
    if len(history) < 2:
        return float("nan")
    return abs(history[-1] - history[-2]) / max(abs(history[-2]), sys.float_info.min)


def remaining_change(history: Sequence[float], *, quarter: bool = False) -> float:
    """Estimate how far the last value is from where the history ends, relative to it; NaN for fewer than 11 values.

    The changes over one step, and over five, are taken to go on shrinking as they last did, by at least a tenth:
    Δ r / (1 − r) with the ratio r of the last change to the one before. The larger of the two estimates counts, since single steps
    may be small by chance, and five may be the end of a faster beginning. With ``quarter`` the last quarter of a long history
    counts too, as changes that hardly shrink over five steps may have far to go; the history must never rise.
    """
    if len(history) < 2 * _WINDOW + 1:
        return float("nan")
    found = []
    for width in (1, _WINDOW, max(_WINDOW, len(history) // 4) if quarter else _WINDOW):
        before, last = (abs(history[i] - history[i - width]) for i in (-1 - width, -1))
        ratio = min(last / before, _SLOWEST) if before > 0 else _SLOWEST
        found.append(last * ratio / (1 - ratio))
    return max(found) / max(abs(history[-1]), sys.float_info.min)


class TimeLeft:
    """Tells how long the rest of some work takes, ``whole`` of any unit, by the rate of the later half of its steps so far.

    What comes first, such as compiling, is no measure of the rest. So nothing is told before that half has taken
    a quarter of the time since the work began; of steps that end together the half alone may take next to none.
    """

    def __init__(self, whole: float) -> None:
        self._whole, self._began = whole, time.perf_counter()
        self._past: list[tuple[float, float]] = []

    def words(self, done: float) -> str:
        """A step has ended, with which so much is done; what can be said of the rest, if anything can."""
        now = time.perf_counter() - self._began
        self._past.append((now, done))
        since, had = self._past[(len(self._past) - 1) // 2]
        if now - since < now / 4 or done <= had:
            return ""
        return f"{(self._whole - done) * (now - since) / (done - had):.0f} s left"


class Progress:
    """Shows how far something is; call it as a solver's callback or with :meth:`update`.

    Examples
    --------
    >>> import dfact
    >>> model = dfact.ICQF(callbacks=[dfact.Progress("fit")])
    """

    def __init__(self, name: str, stream: TextIO | None = None, every: float = 5.0) -> None:
        self.name = name
        self.stream = stream if stream is not None else sys.stderr
        self.every = every
        self._bar: tqdm[Any] | None = None
        self._last = -float("inf")
        self._line = ""

    def __call__(self, iteration: Iteration) -> None:
        text = iteration.step
        if not text and not isnan(iteration.objective):
            change = f", change {iteration.change:.1e}" if iteration.number > 1 else ""
            text = f"objective {iteration.objective:.6g}{change}"
        self.update(iteration.number, iteration.limit, text)

    def update(self, done: int, total: int, text: str = "") -> None:
        if self.stream.isatty():
            if self._bar is None:
                self._bar = tqdm(total=total, desc=self.name, file=self.stream, leave=True, mininterval=0.2)
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(done - self._bar.n)
            return
        self._line = f"{done} of {total}{', ' if text else ''}{text}"
        # A log gets a line now and then, not a thousand.
        if done >= total or time.monotonic() - self._last >= self.every:
            self._last = time.monotonic()
            self._print()

    def close(self) -> None:
        """End the bar, or tell where it ended; work may end before its limit."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        self._print()

    def _print(self) -> None:
        if self._line:
            print(f"{self.name}: {self._line}", file=self.stream, flush=True)  # plain lines are its purpose
            self._line = ""
