"""Sums of a principal component analysis, to which those of new rows are added.

Up to 512 columns they are sums of products, from which the components of all rows follow. With more they are the leading singular
vectors, which stand for the rows that they come from (Ross, Lim, Lin & Yang 2008): their further directions are lost. Where missing
entries are taken by expectation, they are the sums of the EM algorithm.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.engine.requests import Solver, run
from dfact.linalg.svd import gram_pairs
from dfact.models.fit_task import FitTask
from dfact.models.fitted_schema import AtLeast, Shape
from dfact.models.growth.record import EXACT, Gain
from dfact.models.pca.expectation import Expectations, ProbabilisticPCA, maximize_likelihood
from dfact.models.pca.passes import ColumnMoments, ColumnMomentsPass, Floats, PairSums, PairSumsPass, Standardized
from dfact.models.pca.spectrum import Columns, Scale, Spectrum, decompose

_OF_COLUMNS = Annotated[NDArray[Any], Shape(("m",))]
_OF_PAIRS = Annotated[NDArray[Any], Shape(("m", "m"))]
OnPass = Callable[[int], None]
ROUNDS = 20
"""Maximum number of passes over new rows by which the EM algorithm adds them."""


@dataclass(frozen=True)
class Current:
    """The probabilistic model of a fitted PCA, in the units of its standardized columns."""

    loadings: Floats
    """W (k, m), principal components times their standard deviations without the noise."""
    mean: Floats
    """Means of the columns as they were given (m,)."""
    scale: Floats
    noise: float


@dataclass(frozen=True, eq=False)
class ProductSums:
    """Sums of products of the columns over the rows that a model has seen, about fixed shifts; missing entries add nothing."""

    shift: _OF_COLUMNS
    """Value of each column (m,) from which the sums are counted."""
    counts: _OF_PAIRS
    """Number of rows with entries in both of two columns (m, m)."""
    sums: _OF_PAIRS
    """Σ x_i over these rows (m, m)."""
    cross: _OF_PAIRS
    """Σ x_i x_j over these rows (m, m)."""
    rows: Annotated[float, AtLeast(0)]
    """Number of rows with any entry."""
    gain = EXACT

    @classmethod
    def of(cls, columns: Columns, found: PairSums) -> Self:
        """Return the sums of a fit, given those of its standardized columns."""
        d = columns.scale
        return cls(columns.mean + columns.offset, found.counts, found.sums * d[:, None], found.cross * np.outer(d, d), float(found.rows))

    def update(self, task: FitTask[Any], scale: Scale, k: int, max_passes: int, on_pass: OnPass) -> Solver[tuple[Columns, Spectrum, Self]]:
        """Add the rows of the task. Returns the columns and the components of all rows, and their sums."""
        del max_passes  # one is enough
        offset = task.dataset.offset
        found = yield from run(PairSumsPass(task.dtype, Standardized(self.shift - offset, np.ones(len(offset)), task.dtype)), None)
        on_pass(1)
        rows = self.rows + float(found.rows)
        sums = replace(self, counts=self.counts + found.counts, sums=self.sums + found.sums, cross=self.cross + found.cross, rows=rows)
        columns = sums.columns(offset, scale)
        gram = sums.gram(columns)
        return columns, Spectrum(gram_pairs(gram, k), gram), sums

    def columns(self, offset: Floats, scale: Scale) -> Columns:
        """Return the standardization of the columns of data from which an import has subtracted the offset (m,)."""
        moments = np.stack([self.counts.diagonal(), self.sums.diagonal(), self.cross.diagonal()])
        return Columns.of(ColumnMoments(moments, np.asarray(self.rows)), self.shift - offset, offset, scale)

    def gram(self, columns: Columns) -> Floats:
        """Return the sums of products of the standardized columns (m, m), 0 for missing entries."""
        mean = self.sums.diagonal() / np.maximum(self.counts.diagonal(), 1)
        moved = self.sums * mean
        products: Floats = self.cross - moved - moved.T + self.counts * np.outer(mean, mean)
        products /= np.outer(columns.scale, columns.scale)
        return products

    def expected(self, current: Current, scale: Scale) -> "LatentSums":
        """Return the sums of the EM algorithm given the model of these rows, which are complete."""
        columns = self.columns(np.zeros_like(self.shift), scale)
        S, W, n = self.gram(columns), current.loadings, self.rows
        C = current.noise * np.eye(len(W)) + W @ W.T
        B = np.linalg.solve(C, W)  # E[z] = B x
        E = np.zeros((len(W) + 1, len(W) + 1))
        E[:-1, :-1], E[-1, -1] = n * current.noise * np.linalg.inv(C) + B @ S @ B.T, n
        total, cross = E[np.tril_indices(len(E))], np.vstack([B @ S, np.zeros(len(S))])
        moments = np.stack([columns.observed, np.zeros(len(S)), S.diagonal() * columns.scale**2])
        grams = np.repeat(total[:, None], len(S), axis=1)
        return LatentSums(columns.mean, moments, n, grams, cross * columns.scale, total)


@dataclass(frozen=True, eq=False)
class LeadingSums:
    """Moments of the columns over the rows that a model has seen, and the leading part of their products."""

    shift: _OF_COLUMNS
    """Value of each column (m,) from which the moments are counted."""
    moments: Annotated[NDArray[Any], Shape(("moments", "m"))]
    """Number, sum and sum of squares of the entries of each column (3, m)."""
    rows: Annotated[float, AtLeast(0)]
    """Number of rows with any entry."""
    leading: Annotated[NDArray[Any], Shape(("leading", "m"))]
    """Leading right singular vectors of the centred columns, times their singular values (r, m)."""
    gain = Gain()

    @classmethod
    def of(cls, columns: Columns, leading: Floats) -> Self:
        """Return the sums of a fit, given the leading singular vectors of its standardized columns, times their values (r, m)."""
        squares = columns.squares * columns.scale**2
        moments = np.stack([columns.observed, np.zeros_like(squares), squares])
        return cls(columns.mean + columns.offset, moments, float(columns.rows), leading * columns.scale)

    def update(self, task: FitTask[Any], scale: Scale, k: int, max_passes: int, on_pass: OnPass) -> Solver[tuple[Columns, Spectrum, Self]]:
        """Add the rows of the task. Returns the columns of all rows, and the components of these rows and of the leading part."""
        offset = task.dataset.offset
        found = yield from run(ColumnMomentsPass(task.dtype), self.shift - offset)
        moments, rows = self.moments + found.moments, self.rows + float(found.rows)
        columns = Columns.of(ColumnMoments(moments, np.asarray(rows)), self.shift - offset, offset, scale)
        counts, sums, _ = self.moments
        moved = np.sqrt(counts) * (sums / np.maximum(counts, 1) - moments[1] / np.maximum(moments[0], 1))  # of the mean
        below = np.vstack([self.leading, moved]) / columns.scale
        view = columns.view(task.dtype)
        spectrum = yield from decompose(view, len(offset), k, max_passes, on_pass, below=below)
        assert spectrum.leading is not None, "the columns are as many as in the fit"
        return columns, spectrum, replace(self, moments=moments, rows=rows, leading=spectrum.leading * columns.scale)


@dataclass(frozen=True, eq=False)
class LatentSums:
    """Expectations over the rows that a model has seen, each given the loadings of its time, about fixed shifts of the columns."""

    shift: _OF_COLUMNS
    """Value of each column (m,) from which entries are counted."""
    moments: Annotated[NDArray[Any], Shape(("moments", "m"))]
    """Number, sum and sum of squares of the entries of each column (3, m)."""
    rows: Annotated[float, AtLeast(0)]
    """Number of rows with any entry."""
    grams: Annotated[NDArray[Any], Shape(("packed", "m"))]
    """Σ E[ẑẑᵀ] over the rows that have an entry in the column, packed (t, m); ẑ = (z, 1)."""
    cross: Annotated[NDArray[Any], Shape(("latent", "m"))]
    """Σ E[ẑ] x (k+1, m)."""
    total: Annotated[NDArray[Any], Shape(("packed",))]
    """Σ E[ẑẑᵀ] over all rows, packed (t,)."""
    gain = Gain()

    @property
    def n_latent(self) -> int:
        """Number of components; −1 if the arrays contradict one another."""
        k = len(self.cross) - 1
        return k if len(self.total) == (k + 1) * (k + 2) // 2 else -1

    @classmethod
    def of(cls, columns: Columns, model: ProbabilisticPCA, earlier: "LatentSums | None" = None) -> Self:
        """Return the sums of a fit; those of an update about the shifts of the earlier ones."""
        assert model.sums is not None, "the fit keeps its sums"
        rotation = np.eye(len(model.loadings) + 1)
        rotation[:-1, :-1] = model.principal()[2]
        mean = columns.mean + columns.offset
        shift = mean if earlier is None else earlier.shift
        sums = model.sums.moved(rotation).centred((shift - mean) / columns.scale, 1 / columns.scale)
        squares = columns.squares * columns.scale**2
        moved = mean - shift
        moments = np.stack([columns.observed, columns.observed * moved, squares + columns.observed * moved**2])
        return cls(shift, moments, float(columns.rows), sums.grams, sums.cross, sums.total)

    def update(
        self, task: FitTask[Any], scale: Scale, current: Current, tol: float, report: Callable[[list[float]], None]
    ) -> Solver[tuple[Columns, ProbabilisticPCA, Self]]:
        """Add the rows of the task. Returns the columns and the model of all rows, and their sums."""
        offset = task.dataset.offset
        found = yield from run(ColumnMomentsPass(task.dtype), self.shift - offset)
        moments, rows = self.moments + found.moments, self.rows + float(found.rows)
        columns = Columns.of(ColumnMoments(moments, np.asarray(rows)), self.shift - offset, offset, scale)
        mean, d = columns.mean + offset, columns.scale
        start = np.vstack([current.loadings * (current.scale / d), (current.mean - mean) / d])
        model = yield from maximize_likelihood(
            columns.view(task.dtype),
            start,
            current.noise,
            columns.squares,
            float(moments[0].sum()),
            tol=tol,
            max_iter=ROUNDS,
            report=report,
            keeps_sums=True,
            earlier=Expectations(self.grams, self.cross, self.total).centred(mean - self.shift, d),
            n_earlier=float(self.moments[0].sum()),
        )
        return columns, model, type(self).of(columns, model, self)
