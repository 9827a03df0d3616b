"""The fit of memberships by binomial likelihood: one pass over the data makes a Newton step of all rows, then of all columns.

The frequencies lie with the tiles of columns, which step in parallel. The driver sees the merit, and inner products of the
extrapolation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import StateArrays
from dfact.engine.passes import BlockView, PartialSums, Released
from dfact.engine.requests import Solver, run, step_tiles
from dfact.engine.tiles import Tile, TileBroadcast
from dfact.kernels.binomial import EDGE, newton_columns
from dfact.models.binomial.passes import DeviancePass, StepPass
from dfact.progress import remaining_rise

_EM_READS = 2  # at the beginning, as a Newton step from a start is often too long
_WINDOW = 3
_RCOND = 1e-10  # of the coefficients of the extrapolation
_WIDTHS = 1, 2, 4, 6  # passes over which rises are compared
_JUDGED = 4  # passes in a row that a fit ends with: near a saddle of the likelihood, single passes gain next to nothing
_LEAST, _SHARE = 100.0, 0.03  # what tol is relative to: so many nats, or this share of the log-likelihood
FALL = 1e-9
"""Fall of the log-likelihood, relative, from which a point is rejected."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Maximum:
    """The result of a fit."""

    frequencies: str
    """Name of the tiles' array with the frequencies P (K, m)."""
    sizes: Floats
    """Sums of the memberships (K,)."""
    history: list[float]
    """Log-likelihood of each accepted point: it never falls."""
    n_passes: int
    converged: bool
    state: str
    """Name of the state array with the memberships that belong to P."""


@dataclass
class Products(PartialSums, name="binomial_window", disclosure=Released("products of changes of memberships, summed over rows")):
    """Inner products of the changes of the residuals in the window with one another (w, w), and with the last residual (w,)."""

    gram: NDArray[Any]
    right: NDArray[Any]


NO_PRODUCTS = Products(np.empty((0, 0)), np.empty(0))


def begin(tile: Tile) -> tuple[StateArrays, PartialSums]:
    """Begin at the given frequencies P."""
    return {"P": np.clip(tile.given["P"], EDGE, 1 - EDGE)}, NO_PRODUCTS


@dataclass(frozen=True)
class ColumnStep:
    """The step of each column from the accepted point P: Newton's, or the EM's if there are no curvatures.

    With a window, the changes of the point and of its residual, the step, since the last accepted point are added to it, for Anderson's
    extrapolation (Anderson 1965).
    """

    window: int
    """Number of changes that the window then has."""

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        P, sums, state = tile.state["P"], tile.sums, tile.state
        em, step = step_columns(P, sums["up"], sums["down"], sums["curvature"])
        new = {"P": step, "accepted": P, "step": step, "em": em}
        if not self.window:
            return new, NO_PRODUCTS
        residual = step - P
        earlier = slice(max(0, len(state["points"]) - self.window + 1), None) if self.window > 1 else slice(0)
        changes = {"points": P - state["accepted"], "residuals": residual - (state["step"] - state["accepted"])}
        for name, change in changes.items():
            new[name] = np.concatenate([state.get(name, change[None])[earlier], change[None]])
        flat = new["residuals"].reshape(self.window, -1)
        return new, Products(flat @ flat.T, flat @ residual.ravel())


def step_columns(P: Floats, up: Floats, down: Floats, curvature: Floats) -> tuple[Floats, Floats]:
    """Return the frequencies after the EM's step of each column, and after Newton's, which is the same without curvatures."""
    rising, falling = up * P, down * (1 - P)
    total = rising + falling
    em = np.clip(np.divide(rising, total, out=P.copy(), where=total > 0), EDGE, 1 - EDGE)
    if not len(curvature):
        return em, em
    newton = P.copy()
    newton_columns(newton, up - down, curvature)
    return em, newton


@dataclass(frozen=True, eq=False)
class Extrapolate:
    """The point of Anderson's extrapolation, from the step and the window with these coefficients (w,)."""

    coefficients: Floats

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        extrapolated = tile.state["step"].copy()
        for weight, point, residual in zip(self.coefficients, tile.state["points"], tile.state["residuals"], strict=True):
            extrapolated -= weight * (point + residual)
        return tile.state | {"P": np.clip(extrapolated, EDGE, 1 - EDGE)}, NO_PRODUCTS


@dataclass(frozen=True)
class Return:
    """The return to another step from the accepted point, after a point was rejected; the window is cleared."""

    name: str

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        kept = {name: tile.state[name] for name in ("accepted", "step", "em")}
        return kept | {"P": tile.state[self.name]}, NO_PRODUCTS


def has_converged(history: Sequence[float], tol: float) -> bool:
    """Return whether in each of the last four passes at most 100 tol nats, or 3% of tol relative to ℓ if more, were left.

    What is left is estimated by :func:`dfact.progress.remaining_rise`. The limit for small data is in nats, since a share of their
    log-likelihood is less than what tells two maxima from each other.
    """
    limit = tol * max(_LEAST, _SHARE * abs(history[-1]))
    return all(remaining_rise(history[: len(history) - i], _WIDTHS) <= limit for i in range(_JUDGED))


def maximize_likelihood(
    pass_: StepPass,
    *,
    tol: float,
    max_iter: int,
    report: Callable[[Sequence[float]], Any] = lambda _: None,
    em_reads: int = _EM_READS,
) -> Solver[Maximum]:
    """Maximize the likelihood from the memberships in the state and the frequencies in the tiles' array "P"; see :func:`begin`.

    The merit of a point is its log-likelihood after the rows' step. If it falls, the fit returns to the last accepted point's
    Newton step without extrapolation, then to its EM step, which cannot fall. It ends as :func:`has_converged` says, or after
    ``max_iter`` passes. Unless the pass sums curvatures, columns take the EM's steps, extrapolated, too.
    The first ``em_reads`` make EM steps of rows and columns; near a maximum there need not be any.
    """
    sizes, history, fallbacks = np.zeros(pass_.k), list[float](), list[str]()
    n_passes, window, converged, rejected, frequencies = 0, 0, False, False, "P"
    while n_passes < max_iter and not converged:
        priming = n_passes < em_reads
        kind = replace(pass_, newton=False, curved=False) if priming else pass_
        sums = yield from run(kind, TileBroadcast("P", pass_.dtype, rejected))
        n_passes, merit = n_passes + 1, float(sums.log_likelihood)
        rejected = bool(history) and merit < history[-1] - FALL * abs(history[-1])
        if rejected:
            frequencies, window = "accepted", 0
            if not fallbacks:
                converged = True  # rounding is all that is left
                break
            yield from step_tiles(Return(fallbacks.pop()))
            continue
        history.append(merit)
        converged = not priming and has_converged(history, tol)
        sizes, frequencies = sums.sizes, "P"
        report(history)
        if converged or n_passes == max_iter:
            break
        products = yield from step_tiles(ColumnStep(window))
        fallbacks = ["em"]
        if window:
            fallbacks += ["step"] if kind.curved else []
            yield from step_tiles(Extrapolate(np.linalg.lstsq(products.gram, products.right, rcond=_RCOND)[0]))
        window = 0 if priming else min(window + 1, _WINDOW)
    return Maximum(frequencies, sizes, history, n_passes, converged, "previous" if rejected else "factors")


def held_out_deviance(pass_: StepPass, maximum: Maximum, held_out: BlockView) -> Solver[Floats]:
    """Return the deviance of the counts of the view ``held_out`` from a maximum, their number, and the number of passes of the fit."""
    frequencies = TileBroadcast(maximum.frequencies, pass_.dtype)
    deviance = yield from run(DeviancePass(pass_.codes, pass_.dtype, maximum.state), frequencies, held_out)
    return np.array([float(deviance.total), float(deviance.count), float(maximum.n_passes)])
