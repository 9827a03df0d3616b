"""Growth of models with binomial likelihood: the surrogate of the rows that a model has seen, and the update by new rows.

The log-likelihood of the rows is expanded to second order in the frequencies about the last ones, with the memberships of their time.
These are the sums of Newton's step of the columns, so rows are added by adding sums (Mairal et al. 2010 for surrogates that add up).
The EM algorithm's counts would be a lower bound (Cappé & Moulines 2009), but overstate what mixed rows say on the frequencies: ten batches
then end five to fifteen times as far from the complete fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.validation import locate_noninteger
from dfact.engine.block_state import StateArrays
from dfact.engine.passes import Block, NoSums, PartialSums, Released, TiledPass
from dfact.engine.requests import Solver, read_tiles, run, step_tiles
from dfact.engine.tiles import Tile, TileBroadcast
from dfact.errors import DataError
from dfact.kernels.binomial import EDGE, count_residuals, newton_columns, row_slopes
from dfact.models.binomial.codes import Codes
from dfact.models.binomial.fit import FALL
from dfact.models.binomial.passes import CountPass, Frequencies, Memberships, ProjectionPass, StepPass
from dfact.models.binomial.row_block import RowBlock
from dfact.models.fitted_schema import Shape
from dfact.models.growth.baseline import ITEM_SUMS, Baseline, factor_sums
from dfact.models.growth.halves import ROWS_PER_FACTOR, estimate_gain
from dfact.models.growth.record import Gain
from dfact.progress import LOG_LIKELIHOOD, Reporter

ROUNDS = 20
"""Maximum number of passes over the new rows that update the frequencies."""
_HALVINGS = 6  # of a step that makes all rows less likely
_HALVES = 2

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FrequencySurrogate:
    """A quadratic function of the frequencies P (K, m): constant + Σ_j slope_jᵀp_j − ½ p_jᵀC_j p_j, the log-likelihood of the seen rows."""

    slope: Annotated[Floats, Shape(("k", "m"))]
    """Slopes at P = 0 (K, m)."""
    curvature: Annotated[Floats, Shape(("pairs", "m"))]
    """C_j, minus the Hessian of each column, as lower triangles (K(K+1)/2, m)."""
    constant: float

    def ordered(self, order: NDArray[np.intp]) -> Self:
        """Return the function of the frequencies in another order of the components."""
        first, second = np.tril_indices(len(order))
        high, low = np.maximum(order[first], order[second]), np.minimum(order[first], order[second])
        return replace(self, slope=self.slope[order], curvature=self.curvature[high * (high + 1) // 2 + low])


def multiply(curvature: Floats, P: Floats) -> Floats:
    """Return C_j p_j (K, m) for the lower triangles of C (K(K+1)/2, m)."""
    product = np.zeros_like(P)
    for row, (k, u) in zip(curvature, np.transpose(np.tril_indices(len(P))), strict=True):
        product[k] += row * P[u]
        if k != u:
            product[u] += row * P[k]
    return product


def _value(slope: Floats, curvature: Floats, P: Floats) -> float:
    return float(np.vdot(slope - 0.5 * multiply(curvature, P), P))


@dataclass
class FigureSums(
    Baseline,
    name="binomial_figures",
    disclosure=Released(
        "log likelihoods and gradients of allele frequencies, summed over rows; sums and moments of memberships", groups="log_likelihood"
    ),
):
    """Figures of rows with given memberships, and the derivatives of their log-likelihood, for each group of rows."""

    log_likelihood: NDArray[Any]
    """By groups (g,)."""
    silent: NDArray[Any]
    """Number of rows without an observed entry."""
    slope: NDArray[Any]
    """Σ q (a − b) of each column (g, K, m)."""
    curvature: NDArray[Any]
    """Σ q qᵀ(a/f + b/(1 − f)) of each column, as lower triangles (g, K(K+1)/2, m); (g, 0, m) unless they are summed."""


@dataclass(frozen=True)
class FigurePass(TiledPass[Memberships, Frequencies, FigureSums]):
    """Figures of the rows, with the memberships in the state and the broadcast P; nothing moves. Row i belongs to group i mod g."""

    codes: Codes
    k: int
    dtype: np.dtype[Any]
    memberships: str = "factors"
    """Name of the state array with the memberships that belong to P."""
    groups: int = 1
    curved: bool = True
    state_type = Memberships
    changes_state: ClassVar[bool] = False
    tiled = ("items", "slope", "curvature")

    def zeros(self, n_columns: int) -> FigureSums:
        sizes = self.k, self.k * (self.k + 1) // 2 if self.curved else 0
        slope, curvature = (np.zeros((self.groups, size, n_columns)) for size in sizes)
        baseline = np.zeros(2), np.zeros((ITEM_SUMS, n_columns)), np.zeros((4, self.k))
        return FigureSums(*baseline, np.zeros(self.groups), np.zeros(()), slope, curvature)

    def accumulate(self, block: Block, state: Memberships, broadcast: Frequencies, total: FigureSums) -> Memberships:
        factors = state.arrays()[self.memberships].T
        silent = np.isnan(factors[:, 0])
        Q = np.where(silent[:, None], 1 / self.k, factors)
        rows = RowBlock(self.codes(block), broadcast[0], self.codes.trials, block.work)
        groups = [slice((group - block.start) % self.groups, None, self.groups) for group in range(self.groups)]
        logs, residuals = rows.log_likelihoods(Q), block.work.array("residuals", (4, rows.G.shape[1]), np.float64)
        residuals.fill(0)
        (first, second), narrow = rows.pairs, Q.astype(self.dtype)
        products = narrow[:, first] * narrow[:, second] if self.curved else narrow[:, :0]
        for tile, _ in rows.tiles:
            F, C, S = rows.expected(narrow, tile), rows.array("c", tile), rows.array("s", tile)
            count_residuals(rows.G, tile.start, F, rows.trials, residuals)
            row_slopes(rows.G, tile.start, F, rows.trials, C, S)
            for group, part in enumerate(groups):
                total.slope[group, :, tile] += narrow[part].T @ C[part]
                if self.curved:
                    total.curvature[group, :, tile] += products[part].T @ S[part]
        total.log_likelihood += [logs[part].sum() for part in groups]
        total.silent += silent.sum()
        total.items += residuals[[0, 0, 1, 2, 3]]
        for name, value in factor_sums(Q[~silent], np.ones(int((~silent).sum()))).items():
            getattr(total, name)[...] += value
        return state


@dataclass
class Value(PartialSums, name="binomial_value", disclosure=Released("sums of log likelihoods")):
    """Value of a surrogate at the current frequencies, without its constant."""

    value: NDArray[Any]


@dataclass(frozen=True)
class Begin:
    """The given frequencies P, and the given surrogate of the earlier rows."""

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        P = np.clip(tile.given["P"], EDGE, 1 - EDGE)
        return _with_value({"P": P, "accepted": P, "slope": tile.given["slope"], "curvature": tile.given["curvature"]})


@dataclass(frozen=True)
class Step:
    """Newton's step of each column for the surrogate of the earlier rows and the sums of the new ones."""

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        P, state, sums = tile.state["P"], tile.state, tile.sums
        slope = sums["up"] - sums["down"] + state["slope"] - multiply(state["curvature"], P)
        moved = P.copy()
        newton_columns(moved, slope, sums["curvature"] + state["curvature"])
        return _with_value({**state, "P": moved, "accepted": P})


@dataclass(frozen=True)
class Halve:
    """Half of the last step."""

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        return _with_value({**tile.state, "P": (tile.state["P"] + tile.state["accepted"]) / 2})


def _with_value(state: StateArrays) -> tuple[StateArrays, PartialSums]:
    return state, Value(np.asarray(_value(state["slope"], state["curvature"], state["P"])))


@dataclass(frozen=True)
class Update:
    """The frequencies of :func:`grow_frequencies`."""

    frequencies: str
    """Name of the tiles' array."""
    memberships: str
    """Name of the state array with the new rows' memberships that belong to it."""
    history: list[float]
    """Log-likelihood of all rows at each accepted point, with the surrogate of the earlier ones: it never falls."""


def grow_frequencies(pass_: StepPass, earlier: FrequencySurrogate, P: Floats, tol: float, report: Reporter) -> Solver[Update]:
    """Update the frequencies P by new rows, from their memberships in the state, which move too."""
    given = {"P": P, "slope": earlier.slope, "curvature": earlier.curvature}
    surrogate = yield from step_tiles(Begin(), given)
    history, halvings, rejected = list[float](), 0, False
    for number in range(1, ROUNDS + 1):
        sums = yield from run(pass_, TileBroadcast("P", pass_.dtype, rejected))
        merit = float(sums.log_likelihood) + earlier.constant + float(surrogate.value)
        rejected = bool(history) and merit < history[-1] - FALL * abs(history[-1])
        if rejected:
            if halvings == _HALVINGS or number == ROUNDS:
                break
            surrogate, halvings = (yield from step_tiles(Halve())), halvings + 1
            continue
        converged = bool(history) and merit - history[-1] <= tol * abs(merit)
        history.append(merit)
        report.iteration(history)
        if converged or number == ROUNDS:
            break
        surrogate, halvings = (yield from step_tiles(Step())), 0
    return Update("accepted", "previous", history) if rejected else Update("P", "factors", history)


@dataclass
class Totals(PartialSums, name="binomial_totals", disclosure=Released("sums of memberships")):
    """Sums over the tiles of the step :class:`Total`."""

    earlier: NDArray[Any]
    """Value of the surrogate of the earlier rows, without its constant."""
    all: NDArray[Any]
    """The same of all rows."""
    changes: NDArray[Any]
    """Changes of the log-likelihoods of both halves (2, 2) of the new rows, by frequencies fitted to each of them, which the rows state."""


@dataclass(frozen=True)
class Total:
    """The surrogate of the rows of the last pass, in one or two groups, added to that of the earlier rows in the state."""

    frequencies: str
    """Name of the tiles' array."""

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        P, slopes, curvatures = tile.state[self.frequencies], tile.sums["slope"], tile.sums["curvature"]
        curvature, changes = curvatures.sum(axis=0), np.zeros((_HALVES, _HALVES))
        slope, earlier = slopes.sum(axis=0) + multiply(curvature, P), 0.0
        if "slope" in tile.state:
            earlier = _value(tile.state["slope"], tile.state["curvature"], P)
            slope, curvature = slope + tile.state["slope"], curvature + tile.state["curvature"]
        if len(slopes) == _HALVES:
            for own in range(_HALVES):
                moved = P.copy()
                newton_columns(moved, slopes[own], curvatures[own])
                changes[own] = [_value(slopes[half], curvatures[half], moved - P) for half in range(_HALVES)]
        total = Totals(np.asarray(earlier), np.asarray(_value(slope, curvature, P)), changes)
        return {"P": P, "slope": slope, "curvature": curvature, "items": tile.sums["items"]}, total


@dataclass(frozen=True)
class Items:
    """The figures of the items, kept for the driver."""

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        return {**tile.state, "items": tile.sums["items"]}, NoSums()


def measure_new(dataset: Dataset, codes: Codes, P: Floats, dtype: np.dtype[Any]) -> Solver[FigureSums]:
    """Project new rows on the frequencies P, which leaves their memberships in the state, and return their figures."""
    if dataset.dtype.kind == "f" and (yield from run(CountPass(codes, dtype), None)).fractional:
        raise DataError(f"{locate_noninteger(dataset)}, expected whole numbers from 0 to {codes.trials}")
    broadcast = P.astype(dtype), None
    yield from run(ProjectionPass(codes, dtype), broadcast)
    sums = yield from run(FigurePass(codes, len(P), dtype, curved=False), broadcast)
    yield from step_tiles(Items())
    return replace(sums, items=(yield from read_tiles("items", np.dtype(np.float64))))


@dataclass(frozen=True, eq=False)
class Growable:
    """Figures and sums that a model keeps of its rows."""

    figures: FigureSums
    """Figures of the rows of the last pass."""
    surrogate: FrequencySurrogate
    """Surrogate of all rows."""
    gain: Gain
    frequencies: Floats
    """P (K, m)."""
    memberships: str
    """Name of the state array with the memberships of the rows of the last pass."""


def sum_rows(pass_: FigurePass, frequencies: str, earlier: FrequencySurrogate | None = None) -> Solver[Growable]:
    """Return the figures of the rows at the frequencies in a tiles' array, and their surrogate, added to the earlier one.

    Two groups of rows also give the gain of a complete fit, estimated by second-order steps of the frequencies of each half. Afterwards
    the tiles have the frequencies in "P", and the surrogate in "slope" and "curvature".
    """
    sums = yield from run(pass_, TileBroadcast(frequencies, pass_.dtype))
    totals = yield from step_tiles(Total(frequencies))
    wide = np.dtype(np.float64)
    items, slope = (yield from read_tiles("items", wide)), (yield from read_tiles("slope", wide))
    curvature = yield from read_tiles("curvature", wide)
    before = float(sums.log_likelihood.sum()) + (0.0 if earlier is None else earlier.constant) + float(totals.earlier)
    surrogate = FrequencySurrogate(slope, curvature, before - float(totals.all))
    return Growable(
        replace(sums, items=items),
        surrogate,
        _gain(pass_, sums, totals.changes, slope.shape[1]),
        (yield from read_tiles("P", wide)),
        pass_.memberships,
    )


def _gain(pass_: FigurePass, sums: FigureSums, changes: Floats, m: int) -> Gain:
    if pass_.groups < _HALVES or sums.rows[0] < _HALVES * ROWS_PER_FACTOR * pass_.k or (sums.log_likelihood >= 0).any():
        return Gain()
    losses = -sums.log_likelihood
    found = []
    for own, other in ((0, 1), (1, 0)):
        after, other_after = losses[own] - changes[own, own], losses[other] - changes[own, other]
        found.append((losses[own], after, losses[other], other_after))
    return estimate_gain(found, float(np.sqrt(0.5 * pass_.k * m) / losses.mean()))


def grow_likelihood(model: Any, codes: Codes, P: Floats, earlier: FrequencySurrogate, dtype: np.dtype[Any]) -> Solver[Growable]:
    """Add rows, which :func:`measure_new` has projected, to the frequencies P and the surrogate of the earlier rows.

    Set the log-likelihood of the model, that of the earlier rows by their surrogate.
    """
    update = yield from grow_frequencies(
        StepPass(codes, len(P), dtype), earlier, P, model.tol, Reporter(model.callbacks, ROUNDS, LOG_LIKELIHOOD)
    )
    pass_ = FigurePass(codes, len(P), dtype, update.memberships, groups=_HALVES)
    model.log_likelihood_ = update.history[-1]
    model.log_likelihood_history_ = np.asarray([*model.log_likelihood_history_, *update.history])
    return (yield from sum_rows(pass_, update.frequencies, earlier))
