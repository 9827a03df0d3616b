"""Admixture: ancestry of individuals in several populations, by the binomial likelihood of their genotypes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset, population_texts
from dfact.data.sources.entrance import known_labels
from dfact.data.validation import locate_noninteger
from dfact.engine.memory_plan import Footprint
from dfact.engine.passes import BlockView
from dfact.engine.requests import Solver, read_tiles, run, state_rows, step_tiles
from dfact.errors import DataError, ParameterError, warn
from dfact.genetics.footprint import fit_footprint, takes_newton_steps
from dfact.kernels.binomial import EDGE
from dfact.models.binomial.codes import MAX_TRIALS, Codes, require_counts
from dfact.models.binomial.fit import Maximum, begin, held_out_deviance, maximize_likelihood
from dfact.models.binomial.growth import FigurePass, FrequencySurrogate, grow_likelihood, measure_new, sum_rows
from dfact.models.binomial.passes import CountPass, ProjectionPass, StepPass
from dfact.models.binomial.row_block import ColumnWeights
from dfact.models.binomial.shrinkage import InformationPass, find_places, typical_memberships
from dfact.models.binomial.start import labelled_start, random_start, start_best
from dfact.models.fit_task import FitTask
from dfact.models.fitted_schema import OPTIONAL, Shape
from dfact.models.growth.baseline import Baseline
from dfact.models.growth.estimator import Added, Growing
from dfact.models.lazy_transform import lazy_of_dask
from dfact.models.row_factors import select_columns
from dfact.models.scikit_learn import check_is_fitted, component_labels
from dfact.models.traits import ModelTraits, Vocabulary
from dfact.parameters import COUNT, NOT_NEGATIVE, YES_OR_NO, Values, is_count, resolve_seed
from dfact.progress import LOG_LIKELIHOOD, Iteration, Reporter
from dfact.signals import finish_before_stop


@dataclass(frozen=True)
class AdmixtureProblem:
    """The data of a fit, as far as the solver needs them."""

    codes: Codes
    populations: tuple[str, ...] = ()
    """Names of the labelled populations, which are the first components."""
    curved: bool = True
    """Whether the frequencies take Newton's steps. Otherwise they take steps of the EM algorithm, whose sums are smaller."""


_TRIALS = Values(lambda value: is_count(value) and value <= MAX_TRIALS, f"an integer from 1 to {MAX_TRIALS}")


class Admixture(Growing):
    """Admixture: ancestry of individuals in several populations, by maximum likelihood.

    The genotypes G (n, m), counts 0 to M of an allele, are modelled as

        g_ij ~ Binomial(M, f_ij),   F = QP,   Q (n, K) ≥ 0 with rows that sum to 1,   0 ≤ P (K, m) ≤ 1,

    with the ancestry proportions Q of the individuals in K populations and the allele frequencies P in them. The fit maximizes

        ℓ(Q, P) = Σ over observed (i, j) of g log f + (M − g) log(1 − f).

    Individuals must be unrelated, as a family would become a population; the guide ``admixture`` says how to check. Missing genotypes
    are left out. Q and P stay at least 1e-5 from 0, and P from 1.

    One pass over the data makes a Newton step of the ancestry proportions of every individual, on the simplex, and one of the
    frequencies of every SNP. Anderson's method extrapolates P. A point whose likelihood is lower than the previous one's is
    rejected, so the likelihood never falls. A maximum may be local.

    Parameters
    ----------
    n_components : int
        Number of populations K. :func:`dfact.selection.cross_validate_entries` chooses it.
    ploidy : int
        Highest count M: 2 for genotypes; more for ordinal answers from 0 to M.
    unshrink : bool
        Whether ``transform`` corrects the shrinkage of new individuals towards the middle, by ``projection_frequencies_``. Without, it
        projects them on ``allele_frequencies_``, as other programs do.
    supervised : bool
        Whether the individuals whose population the dataset holds, or ``populations`` of ``fit``, belong to that population alone.
    init : "spectral" or "random"
        Start of fits that are not supervised: pure individuals that are found among the others, or frequencies near the mean of all at
        random. A random start looks at no single individual, as fits across sites need, and may end in a lower maximum: compare a few.
    tol : float
        Stop when in four passes in a row the estimated rise of the log-likelihood that is left is at most 100 times this much, or 3% of
        this share of its value if that is more: by default 1e-5, or a third of a billionth. Single passes may gain less on the way to a
        higher maximum.
    max_iter : int
        Maximum number of passes after the start.
    random_state : int, RandomState or None
        Seed of a random start, and of the start of populations without labelled individuals in supervised fits. Other fits use no random
        numbers.
    memory_limit : int or str, optional
        Bytes that a process may use ("4GiB"). The part of the solver's state that exceeds it is spilled to disk, in TMPDIR;
        ``dfact.plan`` reports it beforehand. If the sums of Newton's steps of the frequencies, 8m(2K + K(K+1)/2) bytes, exceed an
        eighth of it, frequencies take the steps of the EM algorithm, extrapolated, in some 2 to 4 times as many passes.
    dtype : "float32" or "float64", optional
        Precision of the arrays of a block; by default float32 for data that it can hold exactly, such as stored genotypes, else
        float64. Sums are in double precision.

    Attributes
    ----------
    memberships_ : array (n, K)
        Ancestry proportions Q; a Zarr array if the data is stored. NaN for individuals without any genotype.
    allele_frequencies_ : array (K, m)
        Allele frequencies P. Populations are ordered by decreasing size, the sum of their proportions; labelled ones first, by name.
    projection_frequencies_ : array (K, m) or None
        Frequencies on which ``transform`` projects new individuals: for each population those of the mixture as which the likelihood
        places its new individuals. On P they would be placed nearer to the middle than the individuals of the fit, whose sampling
        errors P contains. P is taken, and this is None, if the memory limit excludes Newton's steps, or, with a warning, if the errors
        exceed the differences between populations.
    memberships_se_ : array (n, K)
        Standard errors of Q, if they have been set to the result of :func:`dfact.selection.block_bootstrap`.
    log_likelihood_ : float
        ℓ(Q, P), without the binomial coefficients, as ADMIXTURE reports it. After ``partial_fit`` that of the earlier individuals is its
        expansion to second order in P, with their proportions as they were.
    log_likelihood_history_ : array
        Log-likelihood of each accepted pass.
    n_iter_, converged_ : int, bool
        Number of passes after the start, and whether the last ones met ``tol``.
    populations_ : list of str
        Names of the labelled populations; empty unless ``supervised``.
    n_unobserved_ : int
        Number of individuals without any genotype.

    Raises
    ------
    DataError
        Genotypes that are not whole numbers from 0 to M, SNPs without any genotype, data of a rank below K.
    ParameterError
        Fewer components than labelled populations.
    MemoryPlanError
        The minimum that the fit needs exceeds ``memory_limit``.

    Warns
    -----
    UserWarning
        Individuals without any genotype; components of a supervised fit without labelled individuals; a memory limit that excludes Newton's
        steps of the frequencies.

    References
    ----------
    Alexander et al. (2009); Alexander & Lange (2011). The correction of projections is dfact's own; compare Carroll et al. (2006).

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> memberships = np.vstack([np.eye(2)[rng.integers(0, 2, 60)], rng.dirichlet([1, 1], 40)])
    >>> genotypes = rng.binomial(2, memberships @ rng.random((2, 200)))
    >>> model = dfact.Admixture(n_components=2).fit(genotypes)
    >>> model.memberships_.shape, model.allele_frequencies_.shape
    ((100, 2), (2, 200))
    """

    memberships_: Annotated[Any, Shape(("n", "k"), rows=True)]
    allele_frequencies_: Annotated[NDArray[Any], Shape(("k", "m"))]
    projection_frequencies_: Annotated[NDArray[Any], Shape(("k", "m"))] | None
    log_likelihood_: float
    log_likelihood_history_: Annotated[NDArray[Any], Shape((None,))]
    n_iter_: int
    converged_: bool
    populations_: Annotated[list[str], OPTIONAL]
    n_unobserved_: int
    memberships_se_: Annotated[Any, Shape(("n", "k"), rows=True), OPTIONAL]
    sums_: Annotated[FrequencySurrogate, OPTIONAL]
    rows_attribute = "memberships_"
    saved_sums = (FrequencySurrogate,)
    traits = ModelTraits(
        Vocabulary(
            "population", "populations", "individuals", "SNPs", "Allele frequencies of the populations", "allele frequency", "genotypes"
        ),
        nonnegative=True,
        counts_empty_rows=True,
        original_units=True,
        centred_matching=True,
        matches_labels=True,
    )

    def __init__(
        self,
        n_components: Annotated[int, COUNT] = 3,
        *,
        ploidy: Annotated[int, _TRIALS] = 2,
        unshrink: Annotated[bool, YES_OR_NO] = True,
        supervised: Annotated[bool, YES_OR_NO] = False,
        init: Literal["spectral", "random"] = "spectral",
        tol: Annotated[float, NOT_NEGATIVE] = 1e-7,
        max_iter: Annotated[int, COUNT] = 500,
        random_state: Any = None,
        executor: Any = None,
        memory_limit: int | str | None = None,
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_every: int = 10,
        callbacks: Sequence[Callable[[Iteration], None]] = (),
        dtype: Any = None,
    ) -> None:
        self.n_components = n_components
        self.ploidy = ploidy
        self.unshrink = unshrink
        self.supervised = supervised
        self.init = init
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.executor = executor
        self.memory_limit = memory_limit
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.callbacks = callbacks
        self.dtype = dtype

    def fit(self, X: Any, y: None = None, *, populations: Any = None, checkpoint: str | PathLike[str] | None = None) -> Self:
        """Fit the genotypes X (n, m): any array, path or Dataset; NaN is missing. ``checkpoint`` overrides the parameter.

        ``populations`` (n,) are the names of the individuals' populations, None, NaN, "" or "-" where unknown, for a
        ``supervised`` fit. By default they come from the dataset.
        """
        del y
        return self.fit_prepared(self.prepare(X, populations=populations), checkpoint=checkpoint)

    def row_factors(self) -> Any:
        return self.memberships_

    @property
    def components_(self) -> NDArray[Any]:  # type: ignore[override]  # derived from the frequencies
        """The allele's frequencies (K, m)."""
        return self.allele_frequencies_

    def _prepare(self, X: Any, populations: Any = None) -> FitTask[AdmixtureProblem]:
        dataset = self._dataset(X, None, reset=True)
        require_counts(dataset, self.ploidy, "Admixture", "the ploidy")
        if self.n_components > min(dataset.shape):
            n, m = dataset.shape
            raise ParameterError(f"n_components={self.n_components} is larger than the data allows: n_samples={n}, n_features={m}")
        texts = self._population_texts(dataset, populations)
        self.row_populations_ = texts
        names = self._population_names(texts)
        labels = _label_numbers(texts, names) if self.supervised else None
        offset, curved = (
            dataset.offset if dataset.offset.any() else None,
            takes_newton_steps(self.n_components, dataset.shape[1], self.memory_limit),
        )
        task = self._task(
            dataset, AdmixtureProblem(Codes(self.ploidy, offset), names, curved), covariates=labels, populations=names, curved=curved
        )
        if task.footprint.note:
            warn(task.footprint.note)
        return task

    def _population_texts(self, dataset: Dataset, populations: Any = None) -> NDArray[np.object_] | None:
        """Return the name of each individual's population, "" where unknown; None without any."""
        if populations is not None and not self.supervised:
            raise ParameterError("populations are given for a fit that is not supervised; pass supervised=True")
        populations = dataset.genotypes.population if populations is None else populations
        if populations is None:
            return None
        texts, n = population_texts(known_labels(populations)), dataset.shape[0]
        if texts is not None and len(texts) != n:
            raise DataError(f"populations has {len(texts)} names, expected one for each of {n} individuals")
        return texts

    def _population_names(self, texts: NDArray[np.object_] | None) -> tuple[str, ...]:
        """Return the names of the labelled populations."""
        if not self.supervised:
            return ()
        if texts is None:
            raise ParameterError("supervised is True, expected populations of the individuals; pass fit(X, populations=…)")
        names = sorted({*texts} - {""})
        if not names:
            raise DataError("populations has no known population, expected the names of some individuals'")
        if len(names) > self.n_components:
            raise ParameterError(f"n_components is {self.n_components}, expected at least {len(names)}, the number of labelled populations")
        if len(names) < self.n_components:
            found = f"{self.n_components - len(names)} of {self.n_components} components have no labelled individuals"
            warn(f"{found}; label some, or fit {len(names)} components")
        return tuple(names)

    def _solve(self, task: FitTask[AdmixtureProblem]) -> Solver[None]:
        counts, maximum = yield from self.maximize(task)
        with finish_before_stop():  # a time limit must not take what is found
            yield from self._complete(task, counts, maximum)

    def _complete(self, task: FitTask[AdmixtureProblem], counts: Any, maximum: Maximum) -> Solver[None]:
        """Set the attributes of the maximum that was found, in a last pass."""
        supervised = bool(task.problem.populations)
        order = np.arange(self.n_components) if supervised else np.argsort(-maximum.sizes, kind="stable")
        self.n_unobserved_ = int(counts.silent)
        _warn_silent(self.n_unobserved_, task)
        P = yield from read_tiles(maximum.frequencies, task.dtype)
        self.allele_frequencies_ = P[order]
        self.projection_frequencies_ = None
        if task.problem.curved:
            pass_ = FigurePass(task.problem.codes, len(order), task.dtype, maximum.state)
            found = yield from sum_rows(pass_, maximum.frequencies)
            self.sums_ = found.surrogate.ordered(order)
            information = InformationPass(task.problem.codes, len(order), task.dtype, maximum.state)
            points = typical_memberships(found.figures.factors)
            places = yield from find_places(points, self.ploidy, information)
            self.projection_frequencies_ = _corrected(self.allele_frequencies_, None if places is None else places[np.ix_(order, order)])
            self._begin_growth(task, replace(found.figures, factors=found.figures.factors[:, order]))
        self.log_likelihood_, self.log_likelihood_history_ = maximum.history[-1], np.asarray(maximum.history)
        self.n_iter_, self.converged_, self.populations_ = maximum.n_passes, maximum.converged, list(task.problem.populations)
        rows = yield from state_rows(maximum.state)
        self.memberships_ = task.gather(replace(rows, convert=partial(select_columns, columns=order, dtype=task.dtype)), len(order))

    def maximize(self, task: FitTask[AdmixtureProblem]) -> Solver[tuple[Any, Maximum]]:
        """Find the maximum; return the counts of the data, too. Memberships stay in the state, and frequencies with the tiles."""
        codes, dtype, names = task.problem.codes, task.dtype, task.problem.populations
        counts = yield from run(CountPass(codes, dtype), None)
        if counts.fractional:
            raise DataError(f"{locate_noninteger(task.dataset)}, expected whole numbers from 0 to {self.ploidy}")
        if names:
            seed = yield from resolve_seed(self.random_state)
            yield from labelled_start(codes, counts, self.n_components, len(names), seed, dtype)
        elif self.init == "random":
            seed = yield from resolve_seed(self.random_state)
            yield from random_start(codes, counts, self.n_components, seed, dtype)
        else:
            yield from start_best(codes, counts, self.n_components, task.dataset, self._step_pass(task))
        report = Reporter(self.callbacks, self.max_iter, LOG_LIKELIHOOD)
        pass_ = self._step_pass(task)
        maximum = yield from maximize_likelihood(pass_, tol=self.tol, max_iter=self.max_iter, report=report.iteration)
        return counts, maximum

    def _step_pass(self, task: FitTask[AdmixtureProblem]) -> StepPass:
        return StepPass(task.problem.codes, self.n_components, task.dtype, curved=task.problem.curved)

    def _no_sums(self) -> str:
        if not takes_newton_steps(self.n_components, self.n_features_in_, self.memory_limit):
            return "memory_limit excludes the sums of Newton's steps, to which those of new rows are added; fit with a higher one"
        return super()._no_sums()

    def _prepare_update(self, X: Any, populations: Any = None) -> FitTask[AdmixtureProblem]:
        dataset = self._dataset(X, None, reset=False)
        require_counts(dataset, self.ploidy, "Admixture", "the ploidy")
        texts = self._population_texts(dataset, populations)
        names = tuple(self.populations_)
        labels = None if texts is None or not self.supervised else _label_numbers(texts, names)
        footprint = fit_footprint(self.n_components, dataset.shape[1], self._working_dtype(dataset), self.memory_limit, update=True)
        offset = dataset.offset if dataset.offset.any() else None
        return self._task(dataset, AdmixtureProblem(Codes(self.ploidy, offset), names), covariates=labels, footprint=footprint)

    def _measure(self, task: FitTask[AdmixtureProblem]) -> Solver[Baseline]:
        return (yield from measure_new(task.dataset, task.problem.codes, self._projected_on(), task.dtype))

    def _projected_on(self) -> NDArray[np.float64]:
        """Return the frequencies (K, m) on which new individuals are projected."""
        expected = self.projection_frequencies_
        frequencies: NDArray[np.float64] = (self.allele_frequencies_ if expected is None else expected).astype(np.float64)
        return frequencies

    def _grow(self, task: FitTask[AdmixtureProblem]) -> Solver[Added]:
        P = self.allele_frequencies_.astype(np.float64)
        found = yield from grow_likelihood(self, task.problem.codes, P, self.sums_, task.dtype)
        self.allele_frequencies_ = found.frequencies.astype(self.allele_frequencies_.dtype)
        self.sums_ = found.surrogate
        points = typical_memberships(self.growth_.baseline.factors + found.figures.factors)
        self.projection_frequencies_ = _corrected(self.allele_frequencies_, (yield from find_places(points, self.ploidy)))
        silent = int(found.figures.silent)
        _warn_silent(silent, task)
        self.n_unobserved_ += silent
        self.__dict__.pop("memberships_se_", None)  # of the earlier frequencies
        return Added((yield from state_rows(found.memberships)), found.figures, found.gain)

    def held_out_deviance(self, task: FitTask[AdmixtureProblem], held_out: BlockView) -> Solver[NDArray[np.float64]]:
        """Solve the task on a view of the blocks as counts.

        Return the deviance of the counts of the view ``held_out`` from the maximum, their number, and the number of passes.
        """
        codes = Codes(task.problem.codes.trials)  # the views have added the offset
        task = replace(task, problem=AdmixtureProblem(codes, curved=task.problem.curved))
        _, maximum = yield from self.maximize(task)
        return (yield from held_out_deviance(self._step_pass(task), maximum, held_out))

    def refit(self, task: FitTask[AdmixtureProblem], weights: ColumnWeights) -> Solver[str]:
        """Maximize the likelihood with weights of the SNPs, from the fitted frequencies. Return the name of the state's memberships."""
        problem, P = task.problem, self.allele_frequencies_.astype(np.float64)
        pass_ = StepPass(problem.codes, len(P), task.dtype, curved=problem.curved, weights=weights)
        yield from step_tiles(begin, {"P": P})
        maximum = yield from maximize_likelihood(pass_, tol=self.tol, max_iter=self.max_iter, em_reads=0)
        return maximum.state

    @lazy_of_dask
    def transform(self, X: Any, *, out: str | PathLike[str] | None = None) -> Any:
        """Return the ancestry proportions (n, K) of new individuals X, in one pass; NaN for those without genotypes.

        With ``unshrink`` they are projected on ``projection_frequencies_``, which correct the shrinkage towards the middle; the guide
        ``admixture`` has the errors of both. For the individuals of the fit, ``memberships_`` is better.

        Columns of a stored dataset are matched by their labels: they may come in any order, and those that are not in the model
        are left out, with a warning. SNPs with alleles are matched by name or position, alleles and strand, as in all models: see
        :func:`dfact.genetics.matcher.match_columns`. Stored data gives a Zarr array, at ``out`` or in a temporary folder. A Dask array
        gives a Dask array, computed on demand, or at once with ``out``.
        """
        check_is_fitted(self)
        dataset = self._dataset(X, None, reset=False)
        require_counts(dataset, self.ploidy, "Admixture", "the ploidy")
        codes = Codes(self.ploidy, dataset.offset if dataset.offset.any() else None)
        P = self._projected_on() if self.unshrink else self.allele_frequencies_
        pass_ = ProjectionPass(codes, (task := self._task(dataset)).dtype)
        convert = partial(np.asarray, dtype=task.dtype)
        sums, memberships = task.compute_rows(pass_, (P.astype(task.dtype), None), len(P), out, convert)
        _warn_silent(int(sums.silent), task)
        return memberships

    def _check_columns(self, dataset: Dataset, offset: NDArray[np.float64] | None) -> None:
        """Refuse columns other than the fitted ones; what an import subtracted from them may differ, as the model adds it."""
        super()._check_columns(dataset, None)

    def inverse_transform(self, memberships: Any) -> NDArray[Any]:
        """Return the expected genotypes M·QP (n, m) for ancestry proportions Q (n, K)."""
        Q = self._as_factors(memberships)
        expected: NDArray[Any] = self.ploidy * (Q @ self.allele_frequencies_)
        return expected

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the populations: the labels, then population1, population2, …."""
        del input_features
        check_is_fitted(self)
        labels = component_labels(len(self.allele_frequencies_), "population")
        return np.array([*self.populations_, *labels[len(self.populations_) :]], dtype=object)

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        return fit_footprint(self.n_components, shape[1], dtype, self.memory_limit)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        return tags


def _corrected(P: NDArray[Any], places: NDArray[np.float64] | None) -> NDArray[Any] | None:
    """Return the frequencies for projections, given those of the fit (K, m) and the places of its populations; warn if there are none."""
    if places is None:
        warn(
            "the sampling errors of the allele frequencies exceed the differences between populations, so that transform cannot correct "
            "for them: it takes allele_frequencies_; with more individuals, or without rare alleles, the errors are smaller"
        )
        return None
    corrected = np.zeros(P.shape)
    for column, frequencies in zip(places.T, P.astype(np.float64), strict=True):  # a SNP's rounding does not depend on the number of SNPs
        corrected += column[:, None] * frequencies
    found: NDArray[Any] = np.clip(corrected, EDGE, 1 - EDGE).astype(P.dtype)
    return found


def _label_numbers(texts: NDArray[np.object_] | None, names: Sequence[str]) -> NDArray[np.float64]:
    """Return the number of each individual's population (n, 1), −1 where unknown."""
    numbers = {name: float(number) for number, name in enumerate(names)} | {"": -1.0}
    texts = np.empty(0, object) if texts is None else texts
    unknown = sorted({*texts} - {*numbers})
    if unknown:
        raise DataError(f"{unknown[0]!r} is not a population of the model, expected {', '.join(names)} or none; fit all individuals again")
    return np.array([[numbers[text]] for text in texts])


def _warn_silent(silent: int, task: FitTask[Any]) -> None:
    if silent:
        text = f"{silent} of {task.dataset.shape[0]} individuals have no genotype; their ancestry proportions are NaN"
        warn(text)
