"""Grade of membership: mixed memberships of subjects in latent classes, by spectral methods."""

import warnings
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Annotated, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dfact.data.dataset import Dataset
from dfact.data.validation import locate_noninteger, locate_outside, require_no_empty_columns
from dfact.engine.memory_plan import Footprint
from dfact.engine.session import Session, StateRows
from dfact.errors import DataError, ParameterError
from dfact.linalg.kmeans import search_bytes
from dfact.linalg.svd import gram_size
from dfact.models.estimator import Factorization, gather_rows
from dfact.models.fitted_schema import Shape
from dfact.models.gom.passes import PURE, MembershipPass, MembershipSums, ResponseCounts, ResponsePass, Responses
from dfact.models.gom.search import METHODS, VERTEX_METHODS, Candidate, Search
from dfact.models.lazy_transform import lazy_of_dask
from dfact.models.parameters import COUNT, check, is_count, is_in_range, resolve_seed
from dfact.models.traits import ModelTraits, Vocabulary
from dfact.progress import Iteration, Reporter

_N_STEPS = 5  # that the callbacks are told of


class GradeOfMembership(Factorization):
    """Grade of membership (GoM) for categorical data with polytomous responses.

    The responses R (N, J), whole numbers from 0 (no response) to M, are modelled as

        R(i, j) ~ Binomial(M, (ΠΘᵀ)(i, j) / M),   Π (N, K) ≥ 0 with rows that sum to 1,   0 ≤ Θ (J, K) ≤ M,

    with the memberships Π of the subjects in K latent classes and the item parameters Θ: the response
    that is expected of a pure subject of a class. Each class needs pure subjects (a membership of 1).
    NaN and the missing code of a dataset are no response. Answers that an import shifted to start at
    0 are taken as they were given.

    All methods find K pure subjects I among the rows Y of a matrix, and Z = max(0, Y·Y(I, :)⁻¹), scaled
    to rows of sum 1, is Π. With D_τ the row sums of R plus τ and U the K leading left singular vectors:

    - "crsc": of L_τ = D_τ^(−½)R; pure subjects at the corners of the cone of U's rows (algorithm 2);
    - "srsc": of L_τ; at the corners of the simplex of D_τ^(½)U, by successive projection (algorithm 1);
    - "ssc": of R; at the corners of the simplex of U (algorithm 3);
    - "srm": of the rows of R themselves, Y(I, :)⁻¹ being the pseudo-inverse (algorithm 4).

    Each of these is one projection of the responses, Z = max(0, R P), which ``transform`` applies to
    new subjects with the items fixed. Θ = RᵀΠ(ΠᵀΠ)⁻¹, clipped to [0, M]. Classes come in the order of
    their size, the sum of their memberships.

    Parameters
    ----------
    n_components : int
        Number of classes K; :func:`dfact.selection.select_by_modularity` chooses it.
    method : "crsc", "srsc", "ssc" or "srm"
    vertex_hunting : "kmeans" or "svm-cone"
        How "crsc" finds the corners of the cone: the row nearest to each centre of K-means on all
        rows, which gives the paper's tables; or the rows at the margin of the one-class SVM, which is
        the paper's text. Of expected responses the corners lie on the margin exactly, and either takes them there.
    tau : float, optional
        Regularisation τ of "crsc" and "srsc"; by default M·max(N, J).
    n_levels : int, optional
        The highest response M; by default the top of the answer range.
    random_state : int, RandomState or None
        Seed of the starts of K-means.
    executor : None, "inline", "threads", "distributed" or distributed.Client
        Where passes run; see :func:`dfact.engine.executors.resolve_executor`. The result is the same.
    memory_limit : int or str, optional
        Bytes a process may use ("4GiB"); ``dfact.plan`` tells beforehand what a fit needs.
    checkpoint : path, optional
        A store, a folder or the URL of one, that keeps what is done: after an interruption the same fit goes on from
        there, and ends with the same bits. See :mod:`dfact.engine.checkpoint`.
    checkpoint_every : int
        Passes from one version of it to the next.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` after each step, such as ``dfact.Progress("fit")``.
    dtype : "float32" or "float64", optional
        Working precision; by default float32 for stored answers and float32 arrays, else float64.

    Attributes
    ----------
    memberships_ : array (N, K)
        Π; a Zarr array where the data is one. NaN for subjects without any response.
    item_parameters_ : DataFrame (J, K)
        Θ with the items' names.
    components_ : array (K, J)
        Θᵀ.
    pure_subjects_ : array (K,)
        Row numbers of the pure subjects, one for each class.
    modularity_ : float
        Fuzzy modularity Q (equation 5) of the memberships: the higher, the better they part the subjects.
    highly_pure_share_, highly_mixed_share_ : float
        Shares of the subjects whose highest membership is at least 0.9, and at most 0.7 (definition 1).
    n_nonrespondents_ : int
        Subjects without any response, who take no part.
    projection_ : array (J, K)
        P.
    column_labels_, row_labels_, offset_, n_features_in_, n_levels_, fingerprint_ : what was fitted
        Row labels as they lie in stored data; None where there are none. The fingerprint is that of a stored dataset, else None.

    Raises
    ------
    DataError
        Responses that are negative, above M, or not whole numbers, and rows of a rank below K. Expected
        responses ΠΘᵀ, which need not be whole, are taken if their rank is K exactly.
    MemoryPlanError
        Not even the least the fit needs is within ``memory_limit``.

    Warns
    -----
    UserWarning
        Subjects without any response; a class in which nobody is pure but the subject it was found by.

    References
    ----------
    Qing, "Mixed membership estimation for categorical data with polytomous responses": equations
    (1)-(5), algorithms 1-4.

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
    n_levels_: float
    n_nonrespondents_: int
    modularity_: float
    highly_pure_share_: float
    highly_mixed_share_: float
    traits = ModelTraits(
        Vocabulary("class", "classes", "subjects", "items", "Responses of the classes", "expected response"),
        nonnegative=True,
        ordered=True,
        original_units=True,
        centred_matching=True,
    )

    def __init__(
        self,
        n_components: int = 3,
        *,
        method: str = "crsc",
        vertex_hunting: str = "kmeans",
        tau: float | None = None,
        n_levels: int | None = None,
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
        self.n_levels = n_levels
        self.random_state = random_state
        self.executor = executor
        self.memory_limit = memory_limit
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.callbacks = callbacks
        self.dtype = dtype

    def fit(self, X: Any, y: None = None, *, checkpoint: str | PathLike[str] | None = None) -> Self:
        """Fit the responses X (N, J): any array, path or Dataset. ``checkpoint`` takes the parameter's place."""
        del y
        self.fit_candidates(X, [self.n_components], checkpoint=checkpoint)
        return self

    @property
    def _row_factors(self) -> Any:
        return self.memberships_

    def fit_candidates(self, X: Any, n_components: Sequence[int], *, checkpoint: str | PathLike[str] | None = None) -> list[float]:
        """Fit with that of these numbers of classes whose memberships have the highest modularity (the first of equals).

        Returns the modularity of each. All share the singular vectors, the searches' passes, and one pass for their scores.
        """
        self._check_parameters(n_components)
        dataset = self._dataset(X, None, reset=True)
        self._check_size(dataset, n_components)
        self.n_levels_ = self._levels(dataset)
        dtype, responses, n = self._working_dtype(dataset), _responses(dataset), dataset.shape[0]
        report = Reporter(self.callbacks, _N_STEPS)
        footprint, further = self._footprint_of(dataset.shape, n_components, dtype), {"n_components": list(n_components)}
        with self._open_to_fit(dataset, None, footprint, checkpoint, **further) as session:
            census = self._census(session, ResponsePass(dtype, responses), n, max(n_components))
            report.step("responses")
            expected = bool(census.fractional)
            tau, seed = self._tau(dataset), self._seed(session)
            search = Search(session, responses, dtype, dataset.shape, expected, self.method, self.vertex_hunting, tau, seed)
            directions = search.directions(max(n_components))
            if expected and not search.spans_rows(directions):
                raise DataError(f"{locate_noninteger(dataset)}, expected whole numbers from 0 (no response) to {self.n_levels_:g}")
            report.step("singular vectors")
            candidates = search.candidates(directions, n_components)
            report.step("pure subjects")
            sums = session.run(MembershipPass(dtype, responses, keep=False), [c.projection for c in candidates])
            scored = [c.scored(part, census) for c, part in zip(candidates, sums.split(n_components), strict=True)]
            best = max(scored, key=lambda candidate: candidate.modularity)
            report.step("modularity")
            sums = session.run(MembershipPass(dtype, responses, keep=True), [best.projection])
            shape = (n, len(best.pure_subjects))
            self.memberships_ = gather_rows(StateRows(session, "factors"), shape, dtype, stored=dataset.path is not None)
        report.step("memberships")
        self._store(best, sums, census, dataset)
        return [candidate.modularity for candidate in scored]

    def _census(self, session: Session, pass_: ResponsePass, n: int, most: int) -> ResponseCounts:
        census = session.run(pass_, None)
        self.n_nonrespondents_ = int(census.silent)
        if n - self.n_nonrespondents_ < most:
            raise DataError(f"{n - self.n_nonrespondents_} of {n} subjects have any response, expected at least n_components={most}")
        _warn_nonrespondents(self.n_nonrespondents_, n)
        return census

    def _tau(self, dataset: Dataset) -> float | None:
        """τ of the methods that regularise."""
        if self.method in ("ssc", "srm"):
            return None
        n, n_items = dataset.shape[0] - self.n_nonrespondents_, dataset.shape[1]
        return self.n_levels_ * max(n, n_items) if self.tau is None else float(self.tau)

    def _seed(self, session: Session) -> int:
        seed = self.random_state
        return int(seed) if isinstance(seed, (int, np.integer)) else resolve_seed(seed, session)

    def _store(self, best: Candidate, sums: MembershipSums, census: ResponseCounts, dataset: Dataset) -> None:
        n = dataset.shape[0] - self.n_nonrespondents_
        self.components_ = np.clip(np.linalg.solve(sums.gram, sums.cross.T), 0, self.n_levels_).astype(self.memberships_.dtype)
        self.projection_ = best.projection
        self.pure_subjects_ = best.pure_subjects
        self.modularity_ = best.scored(sums, census).modularity
        self.highly_pure_share_ = float(sums.highly_pure[0] / n)
        self.highly_mixed_share_ = float(sums.highly_mixed[0] / n)
        alone = np.flatnonzero(sums.pure <= 1)
        if alone.size:
            names = self.get_feature_names_out()
            found = ", ".join(f"{names[k]} ({dataset.row_labels[best.pure_subjects[k]]!r})" for k in alone)
            seen = f"nobody but the subject it was found by has a membership of {PURE} or more in {found}"
            warnings.warn(f"{seen}; a class rests on its pure subjects: try fewer classes or another method", UserWarning, stacklevel=5)

    @lazy_of_dask
    def transform(self, X: Any, *, out: str | PathLike[str] | None = None) -> Any:
        """Memberships Π (N, K) of subjects X (N, J) with the items fixed; NaN for those without any response.

        Stored data gives a Zarr array, at ``out`` or in a temporary folder.
        A dask array gives a dask array, which is computed when it is asked for, or at once for ``out``.
        """
        check_is_fitted(self)
        dataset = self._dataset(X, None, reset=False)
        self._check_range(dataset, self.n_levels_)
        dtype, k = self._working_dtype(dataset), len(self.components_)
        with self._open(dataset, None, self._footprint_of(dataset.shape, [k], dtype)) as session:
            sums = session.run(MembershipPass(dtype, _responses(dataset), keep=True), [self.projection_])
            _warn_nonrespondents(int(sums.silent), dataset.shape[0])
            return gather_rows(StateRows(session, "factors"), (dataset.shape[0], k), dtype, stored=dataset.path is not None, out=out)

    def inverse_transform(self, memberships: Any) -> NDArray[Any]:
        """The expected responses ΠΘᵀ (N, J) of memberships Π (N, K)."""
        expected: NDArray[Any] = self._as_factors(memberships) @ self.components_
        return expected

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Names of the classes: class1, class2, …."""
        del input_features
        check_is_fitted(self)
        return np.array([f"class{k + 1}" for k in range(len(self.components_))], dtype=object)

    @property
    def item_parameters_(self) -> pd.DataFrame:
        """Θ, items × classes."""
        items: pd.Index[Any] = pd.Index(self.column_labels_, name="item")
        return pd.DataFrame(self.components_.T, index=items, columns=self.get_feature_names_out())

    def _check_observed(self, dataset: Dataset, *, reset: bool) -> None:
        """Subjects without an answer are counted with those whose responses are all 0."""
        if reset:
            require_no_empty_columns(dataset)

    def _check_loaded(self) -> None:
        super()._check_loaded()
        n = self.memberships_.shape[0]
        if self.pure_subjects_.min() < 0 or self.pure_subjects_.max() >= n or self.n_nonrespondents_ >= n:
            raise DataError(
                f"pure_subjects_ is {self.pure_subjects_.tolist()} and n_nonrespondents_ is {self.n_nonrespondents_}, "
                f"expected some of {n} rows"
            )

    def _check_parameters(self, n_components: Sequence[int] = ()) -> None:
        for k in n_components or [self.n_components]:
            if not is_count(k):
                raise ParameterError(f"n_components is {k!r}, expected {COUNT}")
        check(
            self,
            {
                "method": (self.method in METHODS, f"one of {METHODS}"),
                "hunt": (self.vertex_hunting in VERTEX_METHODS, f"one of {VERTEX_METHODS}"),
                "tau": (self.tau is None or is_in_range(self.tau, 0), "a number of at least 0, or None"),
                "n_levels": (self.n_levels is None or is_in_range(self.n_levels, 1), "a number of at least 1, or None"),
            },
        )

    def _check_size(self, dataset: Dataset, n_components: Sequence[int]) -> None:
        n, m = dataset.shape
        if max(n_components) > min(n, m):
            raise ParameterError(f"n_components={max(n_components)} is larger than the data allows: n_samples={n}, n_features={m}")

    def _levels(self, dataset: Dataset) -> float:
        """M, once all responses are known to lie within [0, M]."""
        highest = float((dataset.statistics.maximum + dataset.offset).max())
        levels = float(max(highest, 1) if self.n_levels is None else self.n_levels)
        self._check_range(dataset, levels)
        return levels

    @staticmethod
    def _check_range(dataset: Dataset, levels: float) -> None:
        seen = dataset.statistics.observed > 0
        lowest = (dataset.statistics.minimum + dataset.offset)[seen].min(initial=0)
        highest = (dataset.statistics.maximum + dataset.offset)[seen].max(initial=0)
        if np.isfinite([lowest, highest]).all() and lowest >= 0 and highest <= levels:
            return
        where = locate_outside(dataset, -dataset.offset, levels - dataset.offset, original_units=True)
        kind = "Negative values" if lowest < 0 else "Values above the highest response"
        raise DataError(f"{kind} in data passed to GradeOfMembership: {where}, expected 0 to {levels:g}")

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        return self._footprint_of(shape, [self.n_components], dtype)

    @staticmethod
    def _footprint_of(shape: tuple[int, ...], n_components: Sequence[int], dtype: np.dtype[Any]) -> Footprint:
        size, m, most, width = dtype.itemsize, shape[1], max(n_components), sum(n_components)
        return Footprint(
            state_per_row=size * most,
            work_per_row=size * (3 * m + 5 * width),
            broadcast=8 * (gram_size(m, most) + 2 * m * width + 8 * most * width) + search_bytes(shape[0], most),
            result_per_row=size * most,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        return tags


def _warn_nonrespondents(silent: int, n: int) -> None:
    if silent:
        warnings.warn(f"{silent} of {n} subjects have no response; their memberships are NaN", UserWarning, stacklevel=4)


def _responses(dataset: Dataset) -> Responses:
    return Responses(dataset.offset if dataset.offset.any() else None)
