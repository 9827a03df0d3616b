"""Grade of membership: mixed memberships of subjects in latent classes, by spectral methods, or by likelihood."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.validation import locate_noninteger
from dfact.engine.memory_plan import Footprint
from dfact.engine.passes import BlockView
from dfact.engine.requests import Solver, drive, read_tiles, run, state_rows, step_tiles
from dfact.engine.session import StateRows
from dfact.errors import DataError, ParameterError, warn
from dfact.kernels.binomial import EDGE
from dfact.linalg.kmeans import search_bytes
from dfact.linalg.svd import gram_size, tiled_gram_size
from dfact.models.binomial.codes import MAX_TRIALS, Codes, require_counts
from dfact.models.binomial.fit import begin, held_out_deviance, maximize_likelihood
from dfact.models.binomial.footprint import slopes_bytes, state_bytes, step_sums_bytes, tile_state_bytes, with_growth
from dfact.models.binomial.growth import FigurePass, FrequencySurrogate, grow_likelihood, measure_new, sum_rows
from dfact.models.binomial.passes import CountPass, ProjectionPass, RestartPass, StepPass
from dfact.models.binomial.start import start_best
from dfact.models.fit_task import FitTask
from dfact.models.fitted_schema import OPTIONAL, AtLeast, Shape
from dfact.models.gom.growth import ClassSums
from dfact.models.gom.passes import PURE, MembershipPass, MembershipSums, ResponseCounts, ResponsePass, Responses, SummaryPass
from dfact.models.gom.search import MembershipProblem, Search
from dfact.models.growth.baseline import Baseline
from dfact.models.growth.estimator import Added, Growing
from dfact.models.lazy_transform import lazy_of_dask
from dfact.models.row_factors import select_columns
from dfact.models.scikit_learn import check_is_fitted, component_labels
from dfact.models.traits import ModelTraits, Vocabulary
from dfact.parameters import COUNT, NOT_NEGATIVE, at_least, resolve_seed
from dfact.progress import LOG_LIKELIHOOD, Iteration, Reporter

_N_STEPS = 5  # reported to the callbacks


class GradeOfMembership(Growing):
    """Grade of membership (GoM) for categorical data with polytomous responses.

    The responses R (N, J), whole numbers from 0 (no response) to M, are modelled as

        R(i, j) ~ Binomial(M, (ΠΘᵀ)(i, j) / M),   Π (N, K) ≥ 0 with rows that sum to 1,   0 ≤ Θ (J, K) ≤ M,

    with the memberships Π of the subjects in K latent classes and the item parameters Θ, the expected
    responses of a pure subject of each class. Each class needs pure subjects (a membership of 1).
    NaN and the missing code of a dataset are missing responses. Answers that an import shifted to start at
    0 are used in their original units.

    The codes of responses are counts: a class with an expected response of 2 may give 2, or 0 and 4. Categories without an order,
    such as countries, need a column of 0 and 1 for each category, which :func:`dfact.expand_categories` writes. Then
    M = 1, and Θ has the probability of each category. This also suits items in which 0 is an answer like others.

    All methods find K pure subjects I among the rows Y of a matrix. Π is Z = max(0, Y·Y(I, :)⁻¹), scaled
    to rows of sum 1. With D_τ the row sums of R plus τ and U the K leading left singular vectors:

    - "crsc", cone regularized spectral clustering: of L_τ = D_τ^(−½)R; pure subjects at the corners of the cone of U's
      rows (algorithm 2);
    - "srsc", simplex regularized spectral clustering: of L_τ; at the corners of the simplex of D_τ^(½)U, by
      successive projection (algorithm 1);
    - "ssc", simplex spectral clustering: of R; at the corners of the simplex of U (algorithm 3);
    - "srm", simplex response matrix: of the rows of R themselves, Y(I, :)⁻¹ being the pseudo-inverse (algorithm 4).

    Each of these is one projection of the responses, Z = max(0, R P), which ``transform`` applies to
    new subjects with the items fixed. Θ = RᵀΠ(ΠᵀΠ)⁻¹, clipped to [0, M]. Classes are ordered by
    decreasing size, the sum of their memberships.

    These estimates treat a missing response as 0. With ``likelihood="binomial"`` they are the start of a fit by maximum likelihood,
    in which missing responses are left out, and 0 is a response like others:

        ℓ(Π, Θ) = Σ over observed (i, j) of R log f + (M − R) log(1 − f),   f = (ΠΘᵀ)(i, j) / M.

    One pass over the data makes a Newton step of all memberships, then one of all items, as in :class:`dfact.Admixture`; ℓ never falls.
    It predicts held-out answers better where many subjects are mixed. It does not help if most are pure: memberships and
    item parameters then come nearer to the truth without it.

    Parameters
    ----------
    n_components : int
        Number of classes K. :func:`dfact.selection.select_number_of_classes` chooses it.
    method : "crsc", "srsc", "ssc" or "srm"
        Search for pure subjects: cone or simplex regularized spectral clustering (crsc, srsc), simplex spectral clustering without
        regularization (ssc), or simplex of the response matrix (srm).
    vertex_hunting : "kmeans" or "svm-cone"
        Method by which "crsc" finds the corners of the cone: K-means or a one-class SVM. "kmeans" takes the row nearest to each centre
        of K-means on all rows, "svm-cone" the rows at the margin of the SVM, which the paper names. Only K-means
        reproduces the digits of the paper's tables, so the paper seems to have used it. The corners of expected responses lie on the margin
        exactly, and both methods take them there.
    tau : float, optional
        Regularization τ of "crsc" and "srsc"; by default M·max(N, J), the highest response times the longer side of the data.
    likelihood : "none" or "binomial"
        Likelihood to maximize after the spectral estimate, without missing answers; does not help if most subjects are pure.
    tol : float
        With a likelihood: stop when in four passes in a row the estimated rise of its logarithm that is left is at most 100 times this
        much, or 3% of this share of its value if that is more: by default 1e-5, or a third of a billionth.
    max_iter : int
        With a likelihood: maximum number of passes after the spectral estimate.
    max_response : int, optional
        Highest response M; by default the maximum of the answer range.
    random_state : int, RandomState or None
        Seed of the starts of K-means.

    Attributes
    ----------
    memberships_ : array (N, K)
        Π; a Zarr array if the data is stored. NaN for subjects without any response.
    item_parameters_ : DataFrame (J, K)
        Θ with the items' names.
    components_ : array (K, J)
        Θᵀ.
    pure_subjects_ : array (K,)
        Row numbers of the pure subjects, one for each class.
    modularity_ : float
        Fuzzy modularity Q (equation 5) of the memberships: the higher, the better they separate the subjects.
    highly_pure_share_, highly_mixed_share_ : float
        Shares of the subjects whose highest membership is at least 0.9, and at most 0.7 (definition 1).
    n_unobserved_ : int
        Number of subjects without any response, who are left out of the fit.
    projection_ : array (J, K)
        P of the spectral estimate.
    log_likelihood_, log_likelihood_history_, n_iter_, converged_ : float, array, int, bool
        With a likelihood: ℓ, ℓ of each accepted pass, the number of passes after the spectral estimate, and whether the last ones met
        ``tol``.
    column_labels_, row_labels_, offset_, n_features_in_, max_response_, fingerprint_
        Description of the fitted data. Row labels and fingerprint come from a stored dataset; otherwise they are None.

    Raises
    ------
    DataError
        Responses that are negative, above M, or not whole numbers, and responses of a rank below K. Expected
        responses ΠΘᵀ, which need not be whole numbers, are accepted if their rank is exactly K.
    MemoryPlanError
        The minimum that the fit needs exceeds ``memory_limit``.

    Warns
    -----
    UserWarning
        Subjects without any response; a class of the spectral estimate whose only pure subject is the one that defines it.

    References
    ----------
    Qing (2023): equations (1)-(5), algorithms 1-4.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> memberships = np.vstack([np.eye(2)[rng.integers(0, 2, 300)], rng.dirichlet([1, 1], 100)])
    >>> answers = rng.binomial(4, memberships @ rng.random((2, 20)))
    >>> model = dfact.GradeOfMembership(n_components=2, random_state=0).fit(answers)
    >>> model.memberships_.shape
    (400, 2)
    """

    memberships_: Annotated[Any, Shape(("n", "k"), rows=True)]
    projection_: Annotated[NDArray[Any], Shape(("m", "k"))]
    pure_subjects_: Annotated[NDArray[Any], Shape(("k",), "integers")]
    max_response_: Annotated[float, AtLeast(0, finite=True)]
    n_unobserved_: int
    modularity_: float
    highly_pure_share_: float
    highly_mixed_share_: float
    log_likelihood_: Annotated[float, OPTIONAL]
    log_likelihood_history_: Annotated[NDArray[Any], Shape((None,)), OPTIONAL]
    sums_: Annotated[ClassSums, OPTIONAL]
    rows_attribute = "memberships_"
    saved_sums = (ClassSums, FrequencySurrogate)
    traits = ModelTraits(
        Vocabulary("class", "classes", "subjects", "items", "Responses of the classes", "expected response"),
        nonnegative=True,
        counts_empty_rows=True,
        original_units=True,
        centred_matching=True,
        limited_parameters=("tau", "max_response"),
    )

    def __init__(
        self,
        n_components: Annotated[int, COUNT] = 3,
        *,
        method: Literal["crsc", "srsc", "ssc", "srm"] = "crsc",
        vertex_hunting: Literal["kmeans", "svm-cone"] = "kmeans",
        tau: Annotated[float | None, NOT_NEGATIVE.or_none()] = None,
        likelihood: Literal["none", "binomial"] = "none",
        tol: Annotated[float, NOT_NEGATIVE] = 1e-7,
        max_iter: Annotated[int, COUNT] = 500,
        max_response: Annotated[int | None, at_least(1).or_none()] = None,
        random_state: Any = None,
        executor: Any = None,
        memory_limit: int | str | None = None,
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_every: int = 10,
        callbacks: Sequence[Callable[[Iteration], None]] = (),
        dtype: Any = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.vertex_hunting = vertex_hunting
        self.tau = tau
        self.likelihood = likelihood
        self.tol = tol
        self.max_iter = max_iter
        self.max_response = max_response
        self.random_state = random_state
        self.executor = executor
        self.memory_limit = memory_limit
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.callbacks = callbacks
        self.dtype = dtype

    def fit_candidates(self, X: Any, n_components: Sequence[int], *, checkpoint: str | PathLike[str] | None = None) -> list[float]:
        """Fit with the one of these numbers of classes whose memberships have the highest modularity (the first of equals).

        Return the modularity of each. All share the singular vectors, the passes of the search, and one pass for their scores.

        Parameters
        ----------
        X : array (N, J), path or Dataset
            Responses; NaN is none.
        n_components : sequence of int
            Candidate numbers of classes.
        checkpoint : path, optional
            Store (folder or URL) for the progress, in place of the parameter of this name.

        Returns
        -------
        list of float
            The modularity of each candidate.
        """
        task = self.prepare(X, n_components=n_components)
        with task.open(checkpoint) as session:
            scores: list[float] = drive(self.solve(task), session)
        return scores

    def row_factors(self) -> Any:
        return self.memberships_

    def _prepare(self, X: Any, n_components: Sequence[int] | None = None) -> FitTask[MembershipProblem]:
        candidates = [self.n_components] if n_components is None else list(n_components)
        self._check_parameters(candidates)
        dataset = self._dataset(X, None, reset=True)
        self._check_size(dataset, candidates)
        self.max_response_ = self._resolve_levels(dataset)
        problem = MembershipProblem(candidates, self.max_response_, _responses(dataset))
        footprint = self._footprint_for(dataset.shape, candidates, self._working_dtype(dataset))
        return self._task(dataset, problem, footprint=footprint, n_components=candidates)

    def _solve(self, task: FitTask[MembershipProblem]) -> Solver[list[float]]:
        problem, dataset, dtype = task.problem, task.dataset, task.dtype
        report, largest = Reporter(self.callbacks, _N_STEPS), max(problem.n_components)
        counts = yield from run(ResponsePass(dtype, problem.responses), None)
        n = dataset.shape[0] - int(counts.nonrespondents)
        if n < largest:
            raise DataError(f"{n} of {dataset.shape[0]} subjects have any response, expected at least n_components={largest}")
        report.step("responses")
        expected = bool(counts.fractional)
        tau, seed = self._resolve_tau(problem.levels, n, dataset.shape[1]), (yield from self._resolve_seed())
        search = Search(problem.responses, dtype, dataset.shape, expected, self.method, self.vertex_hunting, tau, seed)
        directions = yield from search.directions(largest)
        if expected and (self.likelihood != "none" or not (yield from search.spans_rows(directions))):
            raise DataError(f"{locate_noninteger(dataset)}, expected whole numbers from 0 (no response) to {problem.levels:g}")
        report.step("singular vectors")
        candidates = yield from search.candidates(directions, problem.n_components)
        report.step("pure subjects")
        sums = yield from run(MembershipPass(dtype, problem.responses, keep=False), [c.projection for c in candidates])
        scored = [c.with_score(part, counts) for c, part in zip(candidates, sums.split(problem.n_components), strict=True)]
        best = max(scored, key=lambda candidate: candidate.modularity)
        report.step("modularity")
        sums = yield from run(MembershipPass(dtype, problem.responses, keep=True), [best.projection])
        report.step("memberships")
        self.components_ = np.clip(np.linalg.solve(sums.gram, sums.cross.T), 0, problem.levels).astype(dtype)
        rows = yield from state_rows("factors")
        if self.likelihood != "none":
            sums, rows = yield from self._refine(task, counts)
            n = dataset.shape[0] - int(sums.nonrespondents)
            best = best.with_score(sums, counts)
        self.n_unobserved_ = dataset.shape[0] - n
        _warn_nonrespondents(self.n_unobserved_, dataset.shape[0])
        self.memberships_ = task.gather(rows, len(best.pure_subjects))
        self.projection_, self.pure_subjects_ = best.projection, best.pure_subjects
        self.modularity_ = best.with_score(sums, counts).modularity
        self.highly_pure_share_ = float(sums.highly_pure[0] / n)
        self.highly_mixed_share_ = float(sums.highly_mixed[0] / n)
        alone = np.flatnonzero(sums.pure <= 1) if self.likelihood == "none" else np.empty(0, np.intp)
        if alone.size:
            names = self.get_feature_names_out()
            classes = ", ".join(f"{names[k]} ({dataset.row_labels[best.pure_subjects[k]]!r})" for k in alone)
            found = f"only the subject that defines the class has a membership of {PURE} or more in {classes}"
            warn(f"{found}; a class depends on its pure subjects: try fewer classes or another method")
        return [c.modularity for c in scored]

    def _refine(self, task: FitTask[MembershipProblem], counts: ResponseCounts) -> Solver[tuple[MembershipSums, StateRows]]:
        """Maximize the likelihood from the estimate, and set what describes the maximum. Return sums over its memberships, and these."""
        problem, dtype = task.problem, task.dtype
        codes, k = problem.codes, len(self.components_)
        yield from run(RestartPass(codes, dtype), None)
        yield from step_tiles(begin, {"P": self.components_.astype(np.float64) / problem.levels})
        report = Reporter(self.callbacks, self.max_iter, LOG_LIKELIHOOD)
        pass_ = StepPass(codes, k, dtype)
        maximum = yield from maximize_likelihood(pass_, tol=self.tol, max_iter=self.max_iter, report=report.iteration)
        self.log_likelihood_, self.log_likelihood_history_ = maximum.history[-1], np.asarray(maximum.history)
        self.n_iter_, self.converged_ = maximum.n_passes, maximum.converged
        sums = yield from run(SummaryPass(dtype, problem.responses, maximum.state), None)
        order = np.argsort(-sums.sizes, kind="stable")
        P = yield from read_tiles(maximum.frequencies, dtype)
        self.components_ = P[order] * dtype.type(problem.levels)
        found = yield from sum_rows(FigurePass(codes, k, dtype, maximum.state), maximum.frequencies)
        self.sums_ = ClassSums.of(found.surrogate.ordered(order), sums, counts.column_sums, order)
        self._begin_growth(task, replace(found.figures, factors=found.figures.factors[:, order]))
        rows = yield from state_rows(maximum.state)
        return sums, replace(rows, convert=partial(select_columns, columns=order, dtype=dtype))

    def held_out_deviance(self, task: FitTask[MembershipProblem], held_out: BlockView) -> Solver[NDArray[np.float64]]:
        """Maximize the likelihood on a view of the blocks as counts, from the start that :class:`dfact.Admixture` has.

        Return the deviance of the counts of the view ``held_out`` from the maximum, their number, and the number of passes.
        """
        codes = Codes(int(task.problem.levels))  # the views have added the offset
        counts = yield from run(CountPass(codes, task.dtype), None)
        pass_ = StepPass(codes, self.n_components, task.dtype)
        yield from start_best(codes, counts, self.n_components, task.dataset, pass_)
        maximum = yield from maximize_likelihood(pass_, tol=self.tol, max_iter=self.max_iter)
        return (yield from held_out_deviance(pass_, maximum, held_out))

    def _never_grows(self) -> str:
        if self.likelihood == "none":
            return (
                "the classes are found by singular vectors of all rows, which sums of earlier rows do not give, expected "
                "likelihood='binomial' to add rows"
            )
        return ""

    def _prepare_update(self, X: Any) -> FitTask[MembershipProblem]:
        dataset = self._dataset(X, None, reset=False)
        require_counts(dataset, self.max_response_, "GradeOfMembership", "the highest response")
        problem = MembershipProblem([self.n_components], self.max_response_, _responses(dataset))
        footprint = self._footprint_for(dataset.shape, problem.n_components, self._working_dtype(dataset), update=True)
        return self._task(dataset, problem, footprint=footprint)

    def _measure(self, task: FitTask[MembershipProblem]) -> Solver[Baseline]:
        return (yield from measure_new(task.dataset, *self._codes_and_shares(task.problem), task.dtype))

    def _codes_and_shares(self, problem: MembershipProblem) -> tuple[Codes, NDArray[np.float64]]:
        """Return the view of responses as counts, and Θᵀ/M (K, J)."""
        shares: NDArray[np.float64] = np.clip(self.components_.astype(np.float64) / problem.levels, EDGE, 1 - EDGE)
        return problem.codes, shares

    def _grow(self, task: FitTask[MembershipProblem]) -> Solver[Added]:
        (codes, P), dtype, earlier = self._codes_and_shares(task.problem), task.dtype, self.sums_
        found = yield from grow_likelihood(self, codes, P, earlier.surrogate, dtype)
        sums = yield from run(SummaryPass(dtype, task.problem.responses, found.memberships), None)
        counts = yield from run(ResponsePass(dtype, task.problem.responses), None)
        self.components_ = (found.frequencies * self.max_response_).astype(self.components_.dtype)
        self.sums_ = ClassSums.of(found.surrogate, sums, counts.column_sums, np.arange(len(P)), earlier)
        silent = int(found.figures.silent)
        _warn_nonrespondents(silent, task.dataset.shape[0])
        self.n_unobserved_ += silent
        self.modularity_ = self.sums_.modularity
        n = self.growth_.n_rows + task.dataset.shape[0] - self.n_unobserved_
        self.highly_pure_share_, self.highly_mixed_share_ = self.sums_.highly_pure / n, self.sums_.highly_mixed / n
        return Added((yield from state_rows(found.memberships)), found.figures, found.gain)

    def _resolve_tau(self, levels: float, n: int, n_items: int) -> float | None:
        """Return τ, by default M·max(N, J); None for methods without regularization."""
        if self.method in ("ssc", "srm"):
            return None
        return levels * max(n, n_items) if self.tau is None else float(self.tau)

    def _resolve_seed(self) -> Solver[int]:
        seed = self.random_state
        return int(seed) if isinstance(seed, (int, np.integer)) else (yield from resolve_seed(seed))

    @lazy_of_dask
    def transform(self, X: Any, *, out: str | PathLike[str] | None = None) -> Any:
        """Return the memberships Π (N, K) of subjects X (N, J) with the items fixed; NaN for those without any response.

        They come from the spectral projection or, with a likelihood, from its maximum.
        Stored data gives a Zarr array, at ``out`` or in a temporary folder.
        A Dask array gives a Dask array, computed on demand, or at once with ``out``.
        """
        check_is_fitted(self)
        dataset = self._dataset(X, None, reset=False)
        require_counts(dataset, self.max_response_, "GradeOfMembership", "the highest response")
        k = len(self.components_)
        task = self._task(dataset, footprint=self._footprint_for(dataset.shape, [k], self._working_dtype(dataset)))
        if self.likelihood != "none":
            P = np.clip(self.components_.astype(np.float64) / self.max_response_, EDGE, 1 - EDGE).astype(task.dtype)
            pass_ = ProjectionPass(Codes(int(self.max_response_), _responses(dataset).offset), task.dtype)
            projected, memberships = task.compute_rows(pass_, (P, None), k, out, partial(np.asarray, dtype=task.dtype))
            _warn_nonrespondents(int(projected.silent), dataset.shape[0])
            return memberships
        sums, memberships = task.compute_rows(MembershipPass(task.dtype, _responses(dataset), keep=True), [self.projection_], k, out)
        _warn_nonrespondents(int(sums.nonrespondents), dataset.shape[0])
        return memberships

    def inverse_transform(self, memberships: Any) -> NDArray[Any]:
        """Return the expected responses ΠΘᵀ (N, J) for memberships Π (N, K)."""
        expected: NDArray[Any] = self._as_factors(memberships) @ self.components_
        return expected

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the classes: class1, class2, …."""
        del input_features
        check_is_fitted(self)
        return np.array(component_labels(len(self.components_), "class"), dtype=object)

    @property
    def item_parameters_(self) -> pd.DataFrame:
        """Θ as a table, items × classes."""
        return self.loadings_

    def _check_loaded(self) -> None:
        super()._check_loaded()
        n = self.memberships_.shape[0]
        if self.pure_subjects_.min() < 0 or self.pure_subjects_.max() >= n or self.n_unobserved_ >= n:
            raise DataError(
                f"pure_subjects_ is {self.pure_subjects_.tolist()} and n_unobserved_ is {self.n_unobserved_}, expected some of {n} rows"
            )

    def _check_parameters(self, n_components: Sequence[int] = ()) -> None:
        super()._check_parameters()
        for k in n_components:
            COUNT.check("n_components", k)

    def _check_size(self, dataset: Dataset, n_components: Sequence[int]) -> None:
        n, m = dataset.shape
        if max(n_components) > min(n, m):
            raise ParameterError(f"n_components={max(n_components)} is larger than the data allows: n_samples={n}, n_features={m}")

    def _resolve_levels(self, dataset: Dataset) -> float:
        """Return M, after a check that all responses lie within [0, M]."""
        highest = float((dataset.statistics.maximum + dataset.offset).max())
        levels = float(max(highest, 1) if self.max_response is None else self.max_response)
        if self.likelihood != "none" and (not levels.is_integer() or levels > MAX_TRIALS):
            raise ParameterError(f"the highest response is {levels:g}, expected a whole number up to {MAX_TRIALS} with a likelihood")
        require_counts(dataset, levels, "GradeOfMembership", "the highest response")
        return levels

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        return self._footprint_for(shape, [self.n_components], dtype)

    def _footprint_for(
        self, shape: tuple[int, ...], n_components: Sequence[int], dtype: np.dtype[Any], *, update: bool = False
    ) -> Footprint:
        size, m, largest, width = dtype.itemsize, shape[1], max(n_components), sum(n_components)
        refined = self.likelihood != "none"
        resident, tile_state = tile_state_bytes(largest, m) if refined else (0, 0)
        footprint = Footprint(
            # With a likelihood: memberships in double precision and those before; codes, slopes and curvatures of the rows.
            state_per_row=state_bytes(largest) if refined else size * largest,
            work_per_row=size * (3 * m + 5 * width) + refined * (m + slopes_bytes(largest)),
            broadcast=size * tiled_gram_size(m, largest)
            + 8 * (gram_size(m, largest) + 2 * m * width + 8 * largest * width)
            + search_bytes(shape[0], largest)
            + resident,
            result_per_row=size * largest,
            tiled=max(8 * tiled_gram_size(m, largest), refined * step_sums_bytes(largest, m)),
            tile_state=tile_state,
        )
        return with_growth(footprint, largest, m, update=update) if refined else footprint

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        return tags


def _warn_nonrespondents(nonrespondents: int, n: int) -> None:
    if nonrespondents:
        found = f"{nonrespondents} of {n} subjects have no response, as 0 counts as none; their memberships are NaN"
        remedy = "dfact.expand_categories (dfact indicators) makes 0 a category of its own"
        warn(f"{found}; {remedy}")


def _responses(dataset: Dataset) -> Responses:
    return Responses(dataset.offset if dataset.offset.any() else None)
