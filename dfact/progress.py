"""Progress: the record of an iteration, the estimated distance to the end, the progress bar."""

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

from dfact.monitoring import metrics
from dfact.monitoring.logs import LogStream, event_fields
from dfact.settings import in_notebook, is_watched

_log = logging.getLogger(__name__)
_WINDOW = 5
_FEW = 5  # steps, each of which has a line in a log
_SMOOTHING = 0.1  # weight of the last step in the pace
_POWERS = 0.5, 12.0  # smallest and largest exponent of a history that falls as a power of the number of iterations
_SLOWEST = 0.9  # largest ratio of a change to the one before; with more, rounding errors would look like a long way to go


@dataclass(frozen=True)
class Iteration:
    """A report from a solver to its callbacks after an iteration."""

    number: int
    """Number of the iteration, from 1; 0 while a fit starts on a sample of the rows."""
    limit: int
    """Maximum number of iterations."""
    objective: float
    """Objective after the iteration; NaN for steps that minimize no objective."""
    change: float
    """Relative change of the objective since the previous iteration; NaN in the first."""
    seconds: float
    """Time since the fit began."""
    step: str = ""
    """Description of the step, for solvers whose steps differ."""
    name: str = "objective"
    """Name of the objective."""
    replayed: bool = False
    """Whether a resumed fit repeats it from its checkpoint, without a pass over the data."""

    @property
    def text(self) -> str:
        """Description of the step, or objective and change."""
        if self.step or isnan(self.objective):
            return self.step
        change = "" if isnan(self.change) else f", change {self.change:.1e}"
        return f"{self.name} {self.objective:.6g}{change}"

    @property
    def fields(self) -> dict[str, Any]:
        """The argument ``extra`` of a record of this iteration in a log."""
        return event_fields(
            "iteration",
            iteration=self.number,
            iteration_limit=self.limit,
            objective=self.objective,
            change=self.change,
            seconds=self.seconds,
            stage=self.step,
        )


_replaying: ContextVar[bool] = ContextVar("replaying", default=False)


def set_replaying(replaying: bool) -> None:
    """Note whether the fit of this context gets the sums of its passes from a checkpoint."""
    _replaying.set(replaying)


LOG_LIKELIHOOD = "log likelihood"
"""Name of the objective of likelihood fits."""


class Reporter:
    """Reports iterations to callbacks, with the time since its creation, and the name of the objective."""

    def __init__(self, callbacks: Iterable[Callable[[Iteration], None]], limit: int, name: str = "objective") -> None:
        self._callbacks, self._limit, self._name, self._began = tuple(callbacks), limit, name, time.perf_counter()
        self._number = 0
        self._last: tuple[int, float] | None = None
        """Number and end of the last step."""
        self._pace: float | None = None
        """Recent seconds per step."""

    def iteration(self, history: Sequence[float], step: str = "") -> None:
        """Report an iteration, with the last objective of the history."""
        self._number += 1
        self._notify(history[-1], relative_change(history), step)

    def step(self, step: str) -> None:
        """Report a step that minimizes no objective."""
        self._number += 1
        self._notify(float("nan"), float("nan"), step)

    def reached(self, number: int, step: str) -> None:
        """Report that this number of steps is done, of work that minimizes no objective."""
        self._number = number
        self._notify(float("nan"), float("nan"), step)

    def on_sample(self, history: Sequence[float]) -> None:
        """Report a pass over a sample of the rows, before the first iteration."""
        self._notify(float("nan"), float("nan"), f"pass {len(history)} over a sample of the rows")

    def _notify(self, objective: float, change: float, step: str) -> None:
        now = time.perf_counter()
        iteration = Iteration(self._number, self._limit, objective, change, now - self._began, step, self._name, _replaying.get())
        shown: dict[str, float] = {"iteration": self._number, "iteration_limit": self._limit, "objective": objective}
        if self._last is not None and self._number > self._last[0]:
            pace = (now - self._last[1]) / (self._number - self._last[0])
            # Smoothed, since steps vary; the steps that a resumed fit repeats without reading data take no time and are soon forgotten.
            self._pace = pace if self._pace is None else self._pace + _SMOOTHING * (pace - self._pace)
            shown["estimated_end_timestamp_seconds"] = time.time() + (self._limit - self._number) * self._pace
        self._last = self._number, now
        metrics.set_gauges(**shown)
        if not iteration.replayed and _log.isEnabledFor(logging.DEBUG):
            _log.debug(f"iteration {iteration.number} of {iteration.limit}: {iteration.text}", extra=iteration.fields)
        for callback in self._callbacks:
            callback(iteration)


def relative_change(history: Sequence[float]) -> float:
    """Return the relative change from the second last value to the last; NaN, which is never below a tolerance, if there is none."""
    if len(history) < 2:
        return float("nan")
    return abs(history[-1] - history[-2]) / max(abs(history[-2]), sys.float_info.min)


def remaining_change(history: Sequence[float], *, quarter: bool = False) -> float:
    """Estimate the distance of the last value from the limit of the history, relative to that value; NaN for fewer than 11 values.

    The changes over one step, and over five, are assumed to keep shrinking as they last did, by at least a tenth:
    Δ r / (1 − r) with the ratio r of the last change to the one before. The larger of the two estimates counts, since single steps
    may be small by chance, and five may be the end of a faster beginning. With ``quarter`` the last quarter of a long history
    counts too, as changes that hardly shrink over five steps may have far to go; the history must never rise.
    """
    if len(history) < 2 * _WINDOW + 1:
        return float("nan")
    estimates = []
    for width in (1, _WINDOW, max(_WINDOW, len(history) // 4) if quarter else _WINDOW):
        before, last = (abs(history[i] - history[i - width]) for i in (-1 - width, -1))
        ratio = min(last / before, _SLOWEST) if before > 0 else _SLOWEST
        estimates.append(last * ratio / (1 - ratio))
    return max(estimates) / max(abs(history[-1]), sys.float_info.min)


def remaining_rise(history: Sequence[float], widths: Sequence[int]) -> float:
    """Estimate how far the last value is below the limit of a history that rises; infinite for at most twice the largest width.

    The rises over each of these numbers of steps are assumed to keep shrinking as they last did, by at least a tenth. The largest
    estimate counts: on the way past a saddle, rises over one number of steps shrink while others still grow.
    """
    if len(history) <= 2 * max(widths):
        return float("inf")
    estimates = [0.0]
    for width in widths:
        before, last = (history[i] - history[i - width] for i in (-1 - width, -1))
        ratio = min(last / before, _SLOWEST) if before > 0 else _SLOWEST
        estimates.append(last * ratio / (1 - ratio) if last > 0 else 0.0)
    return max(estimates)


def remaining_tail(history: Sequence[float]) -> float:
    """Estimate as :func:`remaining_change` does, and at least as much as a power of the number of iterations would have left.

    Swamps and nearly collinear components make histories that fall as C t^−p. The last two quarters of the history give p. The history
    must never rise. A pause near a saddle looks like the end: no estimate from a history sees what comes after it.
    """
    estimate, width = remaining_change(history), len(history) // 4
    if isnan(estimate):
        return estimate
    before, last = (abs(history[i] - history[i - width]) for i in (-1 - width, -1))
    # The ratio of these falls falls with p: bisection, up to a power that few iterations cannot tell from a geometric series.
    low, high = _POWERS
    for _ in range(20):
        p = (low + high) / 2
        low, high = (p, high) if last * (2**p - (4 / 3) ** p) < before * ((4 / 3) ** p - 1) else (low, p)
    return float(max(estimate, last / ((4 / 3) ** low - 1) / max(abs(history[-1]), sys.float_info.min)))


class TimeLeft:
    """An estimate of the remaining time of some work, ``total`` in any unit, from the rate of the later half of its steps so far.

    The first steps are not representative, as they include compilation. So there is no estimate before the later half has taken
    a quarter of the time since the work began; if several steps end together, that half alone may take almost no time.
    """

    def __init__(self, total: float) -> None:
        self._total, self._began = total, time.perf_counter()
        self._past: list[tuple[float, float]] = []

    def text(self, done: float) -> str:
        """Record that a step has ended, after which this much is done; returns the estimate as text, empty if there is none."""
        now = time.perf_counter() - self._began
        self._past.append((now, done))
        since, had = self._past[(len(self._past) - 1) // 2]
        if now - since < now / 4 or done <= had or done >= self._total:
            return ""
        return f"{(self._total - done) * (now - since) / (done - had):.0f} s left"


def _bar_type() -> Any:
    """Return the class of the bar: in a notebook a widget if ipywidgets is installed, else text. It takes long to import."""
    if not in_notebook():
        from tqdm import tqdm as text_bar

        return text_bar
    with warnings.catch_warnings():  # without ipywidgets the bar is text, which needs no warning
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm as notebook_bar
    return notebook_bar


class Progress:
    """A display of progress, used as a solver's callback or by calling :meth:`update`.

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
        self._fields: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process, or a copy, shows progress with: its own standard stream, and no bar."""
        return {"name": self.name, "every": self.every, "stdout": self.stream is sys.stdout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["name"], sys.stdout if state["stdout"] else None, state["every"])  # type: ignore[misc]  # as when created

    def __deepcopy__(self, memo: dict[int, Any]) -> "Progress":
        return type(self)(self.name, self.stream, self.every)

    def __call__(self, iteration: Iteration) -> None:
        if _hidden == "iterations" or iteration.replayed:  # an interrupted fit has shown it before
            return
        self._fields = iteration.fields
        self.update(iteration.number, iteration.limit, iteration.text)

    def update(self, done: int, total: int, text: str = "") -> None:
        """Show that ``done`` of ``total`` steps are done. Another total begins the next stage of the work.

        Parameters
        ----------
        done, total : int
            Numbers of steps.
        text : str
            A word about the current stage.
        """
        if _hidden == "all":
            return
        if is_watched(self.stream):
            if self._bar is None:
                self._bar = _bar_type()(total=total, desc=self.name, file=self.stream, leave=True, mininterval=0.2)
            elif self._bar.total != total:
                self._bar.reset(total)
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(done - self._bar.n)
            return
        self._line = f"{done} of {total}{', ' if text else ''}{text}"
        # A log gets a line every few seconds, not one for each of many steps.
        if done >= total or total <= _FEW or time.monotonic() - self._last >= self.every:
            self._last = time.monotonic()
            self._print()

    def close(self) -> None:
        """Close the bar, or print the last line; work may end before its limit."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        self._print()

    def _print(self) -> None:
        text = f"{self.name}: {self._line}"
        if self._line and self._fields is not None and isinstance(self.stream, LogStream):
            self.stream.log_progress(text, self._fields)
        elif self._line:
            print(text, file=self.stream, flush=True)
        self._line = ""


_hidden: Literal["", "iterations", "all"] = ""


@contextmanager
def hidden_progress(what: Literal["iterations", "all"]) -> Iterator[None]:
    """Show no :class:`Progress` of iterations, or none at all, in this process within the block."""
    global _hidden  # noqa: PLW0603  # callbacks are called in threads, to which context variables do not go
    before, _hidden = _hidden, what
    try:
        yield
    finally:
        _hidden = before
