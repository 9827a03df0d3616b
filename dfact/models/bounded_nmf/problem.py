"""Objective and bounds of bounded non-negative factorization, of which ICQF and NMF are cases, and checks of its inputs."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.sources.entrance import as_numbers, require_complete
from dfact.data.validation import largest_magnitude, locate_outside, magnitude_limits
from dfact.data.weights import WeightSummary
from dfact.engine.passes import Block
from dfact.errors import DataError, ParameterError
from dfact.kernels.box_qp import coordinate_descent, fista
from dfact.kernels.norms import norm_descent
from dfact.models.fitted_schema import AtLeast, Shape, Size
from dfact.parameters import TooManyComponentsError, Values, is_in_range

STARTS = Values(lambda value: not isinstance(value, str) or value in ("nndsvd", "random"), "'nndsvd', 'random' or an array of loadings")
INNER = {"cd": coordinate_descent, "fista": fista}
_LARGEST_EXPONENT = 20  # ‖x‖₂₀ of eight numbers is within 11% of the largest, and powers of answers stay within the range of a double
_NAMED = {"l1": (1.0, 1.0), "l2": (2.0, 2.0), "l2,1": (2.0, 1.0)}


def _is_penalty(value: Any) -> bool:
    if isinstance(value, str):
        return value in _NAMED
    pair = isinstance(value, (list, tuple)) and len(value) == 2
    return pair and all(is_in_range(number, 1, np.inf) and number <= _LARGEST_EXPONENT for number in value)


PENALTIES = Values(
    _is_penalty, f"'l1', 'l2', 'l2,1' or (p, q) with two numbers from 1, below which no norm is convex, to {_LARGEST_EXPONENT}"
)
"""The values of ICQF's ``penalty``."""


def parse_penalty(penalty: str | tuple[float, float]) -> tuple[Literal["l1", "l2", "norm"], float, float]:
    """Return the kind of a penalty, and its p and q."""
    p, q = (float(number) for number in (_NAMED[penalty] if isinstance(penalty, str) else penalty))
    kinds: dict[tuple[float, float], Literal["l1", "l2"]] = {_NAMED["l1"]: "l1", _NAMED["l2"]: "l2"}
    return kinds.get((p, q), "norm"), p, q


PerItem = float | Annotated[NDArray[np.float64], Shape(("m",), finite=False)]
"""Number for all items, or an array with one for each (m,)."""


@dataclass(frozen=True)
class Problem:
    """Constants of the objective, for one dataset."""

    k: Annotated[int, Size("k")]
    beta: Annotated[float, AtLeast(0, finite=True)]
    gamma: Annotated[PerItem, AtLeast(0)]
    rho: Annotated[float, AtLeast(0, finite=True)]
    w_max: Annotated[float, AtLeast(0)]
    q_max: Annotated[PerItem, AtLeast(0)]
    lower: Annotated[PerItem, AtLeast(0, finite=True)]
    upper: Annotated[PerItem, AtLeast(0)]
    penalty: Literal["l1", "l2", "norm"] = "l1"
    inner: Literal["cd", "fista"] = "cd"
    weighted: bool = False
    """Whether the last of a block's covariates is the weight of its rows."""
    norm_p: Annotated[float, AtLeast(1, finite=True)] = 1.0
    norm_q: Annotated[float, AtLeast(1, finite=True)] = 1.0
    """With penalty "norm", that of a row x of W or Q is (Σ x_r^p)^(q/p) / q."""

    @property
    def bounded(self) -> bool:
        """Whether the model could leave its bounds. Non-negative factors never leave a lower bound of 0."""
        return bool(np.isfinite(self.upper).any() or np.any(np.asarray(self.lower) > 0))

    def limits(self, m: int, dtype: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the lower and the upper bound of each item's model, (m,) each."""
        lower, upper = (np.full(m, bound).astype(dtype) for bound in (self.lower, self.upper))
        return lower, upper

    def covariates(self, block: Block) -> NDArray[Any]:
        """Return C (rows, c)."""
        if block.covariates is None:
            return np.empty((block.stored.shape[0], 0))
        return block.covariates[:, :-1] if self.weighted else block.covariates

    def sample_weight(self, block: Block, dtype: Any) -> NDArray[Any]:
        """Return the weight of each row (rows,)."""
        if not self.weighted or block.covariates is None:
            return np.ones(block.stored.shape[0], dtype)
        return np.ascontiguousarray(block.covariates[:, -1], dtype)

    def column_penalties(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return the penalty of each column of non-negative X (k, n): Σx, ½Σx², or (Σx^p)^(q/p) / q."""
        if self.penalty == "norm":
            powers: NDArray[np.float64] = (X.astype(np.float64) ** self.norm_p).sum(axis=0)
            return powers ** (self.norm_q / self.norm_p) / self.norm_q
        sums: NDArray[np.float64] = X.sum(axis=0, dtype=np.float64)
        return sums if self.penalty == "l1" else np.asarray(0.5 * np.einsum("ij,ij->j", X, X, dtype=np.float64))

    @property
    def row_penalty(self) -> tuple[float, float]:
        """Weights of Σw and of ½Σw² in a row's penalty."""
        return (self.beta, 0.0) if self.penalty == "l1" else (0.0, self.beta)

    @property
    def divergence(self) -> bool:
        """Whether the loss is the Kullback-Leibler divergence."""
        return False

    @property
    def start_tolerance(self) -> float:
        """Tolerance of the singular vectors from which a fit starts."""
        return 1e-3

    @property
    def loadings_ridge(self) -> float:
        """Weight of ½‖Q‖² in addition to the penalty of the loadings."""
        return 0.0

    def on_share(self, share: float) -> Self:
        """Return the problem of this share of the rows."""
        return replace(self, gamma=share * self.gamma)

    @property
    def loadings_penalty(self) -> PerItem:
        """Weight βγ of the loadings' penalty; 0 without a penalty, even if γ is infinite because q_max is."""
        return self.beta * self.gamma if self.beta else 0.0

    def penalties(self, penalty_w: float, Q: NDArray[Any]) -> float:
        """Return the share of both penalties in the objective, from W's penalty summed over the rows and from Qᵀ (k+c, m)."""
        return self.rows_penalty(penalty_w) + float((self.loadings_penalty * self.column_penalties(Q)).sum())

    def rows_penalty(self, penalty_w: float) -> float:
        """Return the share of W's penalty in the objective, from its sum over the rows in a pass."""
        return self.beta * penalty_w

    def solve(
        self,
        X: NDArray[Any],
        H: NDArray[Any],
        G: NDArray[Any],
        strength: NDArray[Any] | PerItem,
        upper: PerItem,
        sweeps: int,
        tolerance: float,
    ) -> None:
        """Minimize ½ xᵀG x − hᵀx + strength·penalty(x) over 0 ≤ x_r ≤ upper, r < len(H), for every column x of X (k, n), in place.

        H (n_free, n) is overwritten.
        """
        solve_columns((self.penalty, self.norm_p, self.norm_q), self.inner, X, H, G, strength, upper, sweeps, tolerance)


@dataclass(frozen=True)
class NMFProblem(Problem):
    """Constants of a non-negative factorization without upper bounds: a divergence, and an elastic net on factors and on loadings.

    The penalty of a row is beta·Σw + ridge_w·½Σw², that of the loadings l1_q·ΣQ + ridge_q·½ΣQ².
    """

    loss: Literal["frobenius", "kullback-leibler"] = "frobenius"
    ridge_w: Annotated[float, AtLeast(0, finite=True)] = 0.0
    l1_q: Annotated[float, AtLeast(0, finite=True)] = 0.0
    ridge_q: Annotated[float, AtLeast(0, finite=True)] = 0.0
    masked: bool = False
    """Whether entries of the data are missing."""

    @property
    def divergence(self) -> bool:
        return self.loss == "kullback-leibler"

    @property
    def start_tolerance(self) -> float:
        return 0.05  # more passes for the start than for the fit would not pay

    @property
    def row_penalty(self) -> tuple[float, float]:
        return self.beta, self.ridge_w

    @property
    def loadings_penalty(self) -> PerItem:
        return self.l1_q

    @property
    def loadings_ridge(self) -> float:
        return self.ridge_q

    def on_share(self, share: float) -> Self:
        return replace(self, l1_q=share * self.l1_q, ridge_q=share * self.ridge_q)

    def column_penalties(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return the complete penalty of each row whose factors are a column of X (k, n)."""
        return np.asarray(self.beta * X.sum(axis=0, dtype=np.float64) + 0.5 * self.ridge_w * np.einsum("ij,ij->j", X, X, dtype=np.float64))

    def penalties(self, penalty_w: float, Q: NDArray[Any]) -> float:
        wide = Q.astype(np.float64)
        return penalty_w + self.l1_q * float(wide.sum()) + 0.5 * self.ridge_q * float(np.vdot(wide, wide))

    def rows_penalty(self, penalty_w: float) -> float:
        return penalty_w


def solve_columns(
    penalty: tuple[str, float, float],
    inner: str,
    X: NDArray[Any],
    H: NDArray[Any],
    G: NDArray[Any],
    strength: NDArray[Any] | PerItem,
    upper: NDArray[Any] | PerItem,
    sweeps: int,
    tolerance: float,
) -> None:
    """Solve the columns of X as :meth:`Problem.solve` does, with this penalty, its p and q, and this inner solver."""
    n, dtype = X.shape[1], X.dtype
    kind, p, q = penalty
    weights, limits = np.full(n, strength).astype(dtype), np.full(n, upper).astype(dtype)
    if kind == "norm":
        norm_descent(X, H, G, len(H), weights, limits, p, q, sweeps, tolerance)
        return
    ridge = np.zeros(n, dtype)
    if kind == "l1":
        H -= weights
    else:
        ridge = weights
    INNER[inner](X, H, G, len(H), ridge, limits, sweeps, tolerance)


def make_problem(model: Any, dataset: Dataset, weights: WeightSummary | None) -> Problem:
    """Make the problem of an ICQF for this data. Refuse data and parameters that do not fit it."""
    n, m = dataset.shape
    k = model.n_components
    check_size(k, model.init, dataset)
    lower, upper = (0.0, np.maximum(dataset.valid_range[:, 1], 0)) if model.bounds is None else model.bounds
    lower, upper, q_max = (_per_item(name, bound, m) for name, bound in (("bounds", lower), ("bounds", upper), ("q_max", model.q_max)))
    q_max = upper if model.q_max is None else q_max
    if model.beta and np.isinf(q_max).any():
        raise ParameterError(f"q_max is {q_max}, expected finite upper bounds of the loadings with a penalty; give q_max, or beta=0")
    gamma = (n if weights is None else weights.total) / m * q_max
    rho = 3.0 if model.rho == "adaptive" else float(model.rho)
    kind, p, q = parse_penalty(model.penalty)
    problem = Problem(
        k,
        float(model.beta),
        gamma,
        rho,
        float(model.w_max),
        q_max,
        lower,
        upper,
        kind,
        model.subproblem_solver,
        weights is not None,
        p,
        q,
    )
    check_range(dataset, problem)
    if weights is not None:
        check_weight_size(weights.scale, largest_magnitude(dataset), model._working_dtype(dataset))
    return problem


def check_weight_size(weight: float, largest: float, dtype: np.dtype[Any]) -> None:
    """Refuse weights up to ``weight`` whose products with squared answers, up to ``largest``, leave the range of the working precision."""
    lowest, highest = magnitude_limits(dtype)
    root, unit = float(np.sqrt(weight)), largest or 1.0
    low, high = lowest / min(unit, 1.0), highest / max(unit, 1.0)
    if not low <= root <= high:
        found = f"weights of rows are up to {weight:g}, expected {low**2:.0e} to {high**2:.0e} in {dtype}"
        raise DataError(f"{found}; multiply all weights by the same number: their ratios alone determine the factors")


def check_size(k: int, init: Any, dataset: Dataset) -> None:
    """Refuse more components than the data allows, and initial loadings of another shape."""
    n, m = dataset.shape
    if k > min(n, m):
        raise TooManyComponentsError(k, n, m)
    if not isinstance(init, str) and np.shape(init) != (k, m):
        raise ParameterError(f"init has shape {np.shape(init)}, expected (n_components, n_features) = ({k}, {m})")
    if not isinstance(init, str):
        require_complete("init", as_numbers("init", init), "finite loadings", ParameterError)


def _per_item(name: str, value: Any, m: int) -> Any:
    """Check a number, or one for each item. Return a number if all items have the same."""
    numbers = as_numbers(name, np.nan if value is None else value)
    if numbers.shape not in ((), (m,)):
        raise ParameterError(f"{name} has shape {numbers.shape}, expected one number or one for each of {m} items")
    return float(numbers.flat[0]) if (numbers == numbers.flat[0]).all() or numbers.ndim == 0 else numbers


def check_range(dataset: Dataset, problem: Problem) -> None:
    """Refuse answers that are negative or outside the bounds."""
    statistics = dataset.statistics
    observed = statistics.observed > 0
    lowest, highest = statistics.minimum[observed], statistics.maximum[observed]
    lower, upper = (bound[observed] for bound in problem.limits(len(observed), np.float64))
    if (lowest < np.minimum(0, lower)).any():
        where = locate_outside(dataset, 0.0, np.inf)
        raise DataError(f"Negative values in data passed to ICQF: {where}; shift the answers to start at 0, and mark missing ones as NaN")
    if (lowest < lower).any() or (highest > upper).any():
        where = locate_outside(dataset, problem.lower, problem.upper)
        uniform = np.ndim(problem.lower) == np.ndim(problem.upper) == 0
        bounds = f"bounds=({problem.lower:g}, {problem.upper:g})" if uniform else "the bounds of its item"
        raise DataError(f"{where}, outside {bounds}; correct the entry or widen the bounds")
