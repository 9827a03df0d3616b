"""L1NMF, an old name: non-negative matrix factorization with ℓ1 penalties, the ICQF paper's baseline."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Annotated, Any, Literal

import numpy as np

from dfact.data.dataset import Dataset
from dfact.data.weights import WeightSummary
from dfact.models.bounded_nmf.nmf import NMF, RHO
from dfact.models.bounded_nmf.problem import STARTS, Problem
from dfact.models.fitted_schema import OPTIONAL
from dfact.models.traits import ModelTraits
from dfact.parameters import COUNT, FINITE, NOT_NEGATIVE
from dfact.progress import Iteration


class L1NMF(NMF):
    """Non-negative matrix factorization with ℓ1 penalties, the old name of :class:`dfact.NMF`, which the next version drops.

    On complete data it is ``NMF(alpha_W=beta / m, alpha_H=beta / n, l1_ratio=1)``.

    Finds factors W (n, k) of the participants and loadings Q (m, k) of the items that

        minimize  ½‖O∘(M − WQᵀ)‖² + β‖W‖₁ + β‖Q‖₁,   W, Q ≥ 0,

    for answers M (n, m) ≥ 0 with mask O (0 where missing). It is the first baseline of the ICQF
    paper, with β = 0.1 and the NNDSVD start. The paper names the algorithm's source (Cichocki & Phan)
    and no scaling of the penalties, so both have the weight β itself here. The weights depend on the shape of the data.

    The solver is ICQF's without bounds (``solver="mm"``): missing entries are filled in by
    the model, and coordinate descent solves the row and item problems, which are non-negative Lassos. An iteration is one pass
    over the rows; a fit of large data starts with up to 80 passes over a tenth of its rows. At the end every row is
    solved to its optimum given Q, so that ``factors_`` equals the ``transform`` of the same rows.
    Confounders of a dataset are not used.

    Parameters
    ----------
    n_components : int
        Number of factors k.
    beta : float
        Weight β of both penalties.
    init : "nndsvd", "random" or array (k, m)
        Initial loadings: NNDSVD of the answers with zeros for the missing ones, or uniformly random up to the highest answer. An
        array holds given loadings.
    max_iter : int
        Maximum number of iterations.
    tol : float
        Stop when the estimated distance of the objective from its limit, relative to its value, falls below this. It needs
        at least 11 iterations; see :func:`dfact.progress.remaining_change`.
    random_state : int, RandomState or None
        Seed of the random start.

    Attributes
    ----------
    components_ : array (k, m)
        Qᵀ.
    factors_ : array (n, k)
        W; a Zarr array if the data is stored.
    loadings_ : DataFrame
        Q as a table, items × factors.
    objective_history_ : array
        Objective at the start, after each iteration, and of the model itself (last).
    n_iter_, converged_ : int, bool
    remaining_ : float
        Estimated distance of the objective from its limit, relative to its value; NaN after fewer than 11 iterations.
    explained_share_ : float
        Share of the answers' variance about their column means that the model explains.
    weighted_ : bool
        Whether the rows have weights.
    n_effective_ : float
        Kish's effective number of rows, (Σw)²/Σw²; n without weights. It leaves out strata and clusters of the sample.

    Raises
    ------
    DataError
        Negative or infinite answers, a column without any answer.
    MemoryPlanError
        The minimum that the fit needs exceeds ``memory_limit``.

    References
    ----------
    Cichocki & Phan (2009); Lam et al. (2023), section 4.

    Examples
    --------
    >>> import numpy as np
    >>> from dfact.models.bounded_nmf.l1nmf import L1NMF
    >>> answers = np.random.default_rng(0).integers(0, 4, (200, 12)).astype(np.float32)
    >>> model = L1NMF(n_components=3).fit(answers)
    >>> model.loadings_.shape
    (12, 3)
    """

    loss = "frobenius"
    problem_: Problem  # type: ignore[assignment]  # stored by earlier versions
    reconstruction_err_: Annotated[float, OPTIONAL]
    traits = ModelTraits(nonnegative=True, warm_starts=True, limited_parameters=("beta",), loading_intervals=False)
    saved_types = (Problem,)  # type: ignore[assignment]

    def __init__(
        self,
        n_components: Annotated[int, COUNT] = 8,
        *,
        beta: Annotated[float, FINITE] = 0.1,
        init: Annotated[Literal["nndsvd", "random"] | Any, STARTS] = "nndsvd",
        max_iter: Annotated[int, COUNT] = 200,
        tol: Annotated[float, NOT_NEGATIVE] = 1e-4,
        random_state: Any = None,
        executor: Any = None,
        memory_limit: int | str | None = None,
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_every: int = 10,
        callbacks: Sequence[Callable[[Iteration], None]] = (),
        dtype: Any = None,
    ) -> None:
        self.n_components = n_components
        self.beta = beta
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.executor = executor
        self.memory_limit = memory_limit
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.callbacks = callbacks
        self.dtype = dtype

    def _make_problem(self, dataset: Dataset, weights: WeightSummary | None) -> Problem:
        # The problem of an ICQF without upper bounds, and with γ = 1.
        return Problem(self.n_components, float(self.beta), 1.0, RHO, np.inf, np.inf, 0.0, np.inf, "l1", "cd", weighted=weights is not None)

    def _grown_problem(self, n: int) -> Problem:
        return self.problem_  # the penalty of the loadings does not depend on the number of rows
