"""Records that accompany a model: the selection of its parameters, and its variation between refits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import chi2, false_discovery_control, norm

from dfact.models.estimator import SAVED_TYPES
from dfact.models.fitted_schema import Length, LessThan, Shape, UniformColumns

_COSINE = 1.0001  # greatest absolute value of a similarity, with its rounding error


@dataclass(frozen=True, eq=False)
class SelectionRecord:
    """Selection that chose the parameters of a model: the attribute ``selection_`` of the fitted model that a selection returns."""

    names: Annotated[list[str], Length(("parameters",))]
    """Names of the parameters that were varied."""
    values: Annotated[list[list[float | str]], Length(("candidates", "parameters")), UniformColumns()]
    """Values of the parameters, a list for each candidate in the order of ``names``. A parameter's values are all numbers or all texts."""
    criterion: str
    """Name of the score, as the column of the selection's table: "error", "median", "modularity", "held_out", …."""
    scores: Annotated[NDArray[np.float64], Shape(("candidates",), finite=False)]
    """Score of each candidate (candidates,); NaN where it has none."""
    errors: Annotated[NDArray[np.float64], Shape(("candidates",), finite=False, low=0)]
    """Standard error of each score; NaN where it is unknown."""
    rule: str
    """Rule that chose the best score: "lowest", "highest", "1se", "knee" or "stable"."""
    best: Annotated[int, LessThan("candidates")]
    """Index of the chosen candidate."""
    figure_names: Annotated[list[str], Length(("figures",))]
    """Names of the other columns of the selection's table."""
    figures: Annotated[NDArray[np.float64], Shape(("candidates", "figures"), finite=False)]
    """Values of the other columns (candidates, figures)."""

    @classmethod
    def from_table(cls, table: pd.DataFrame, best: int, criterion: str, rule: str, error: str | None = None) -> Self:
        """Record a selection's table: a row for each candidate, parameters as index, scores in the columns ``criterion`` and ``error``."""
        index = table.index.to_frame(index=False)
        names = [str(name) for name in index]
        omitted = (criterion, error, "seconds")  # times differ between runs of the same selection
        figures = [name for name in table if name not in omitted and table[name].dtype.kind in "iufb"]
        return cls(
            names,
            [list(row) for row in zip(*(_numbers_or_texts(index[name]) for name in names), strict=True)],
            criterion,
            table[criterion].to_numpy(np.float64),
            np.full(len(table), np.nan) if error is None else table[error].to_numpy(np.float64),
            rule,
            int(best),
            [str(name) for name in figures],
            table[figures].to_numpy(np.float64),
        )

    @property
    def table(self) -> pd.DataFrame:
        """Candidates with their parameters, score, standard error (if any is known) and other figures."""
        table = pd.DataFrame(self.values, columns=self.names).assign(**{self.criterion: self.scores})
        if np.isfinite(self.errors).any():
            table["standard error"] = self.errors
        return table.assign(**{name: self.figures[:, i] for i, name in enumerate(self.figure_names)})


@dataclass(frozen=True, eq=False)
class Stability:
    """Variation of a model over refits on resampled rows: the attribute ``stability_`` of a fitted model.

    The factors of each refit are matched with the k factors of the model. The interval from ``low`` to ``high`` holds the
    share ``level`` of the refits' loadings, matched and with the model's sign, in the units of ``loadings_``.
    """

    similarity: Annotated[NDArray[np.float64], Shape(("refits", "k"), finite=False, low=-_COSINE, high=_COSINE)]
    """(B, k): similarity of each refit's loadings on each factor to the model's, for B refits; 1 is the same
    direction. NaN for a resample that the model could not be fitted to."""
    mean: Annotated[NDArray[np.float64], Shape(("k", "m"))]
    """(k, m): mean loadings over the refits; m is the number of rows of ``loadings_``."""
    low: Annotated[NDArray[np.float64], Shape(("k", "m"))]
    """(k, m): lower ends of the intervals."""
    high: Annotated[NDArray[np.float64], Shape(("k", "m"))]
    """(k, m): upper ends of the intervals."""
    level: float
    """Level of the intervals, such as 0.95."""
    selected: Annotated[NDArray[np.float64], Shape(("k", "m"))]
    """(k, m): share of the refits in which the loading is not 0."""
    confounder_mean: Annotated[NDArray[np.float64], Shape(("q", "m"))] | None = None
    """(q, m): mean effects of the confounders over the refits, the q columns of the model's ``confounder_effects_``; None without any."""
    confounder_low: Annotated[NDArray[np.float64], Shape(("q", "m"))] | None = None
    """(q, m): lower ends of the effects' intervals."""
    confounder_high: Annotated[NDArray[np.float64], Shape(("q", "m"))] | None = None
    """(q, m): upper ends of the effects' intervals."""
    confounder_se: Annotated[NDArray[np.float64], Shape(("q", "m"), low=0)] | None = None
    """(q, m): standard errors of the effects: their standard deviations over the refits."""

    @property
    def n_refits(self) -> int:
        """Number of refits, B."""
        return len(self.similarity)

    def summary(self, names: Sequence[str]) -> pd.DataFrame:
        """Summarize each factor: ``median`` and 5th percentile of its similarities, number of loadings whose interval excludes 0."""
        median, low = np.nanquantile(self.similarity, [0.5, 0.05], axis=0)
        off = ((self.low > 0) | (self.high < 0)).sum(axis=1)
        return pd.DataFrame({"median": median, "5 %": low, "loadings": off}, index=pd.Index(list(names), name="factor"))


MANTEL = ("n", "chi_square", "smd", "alpha", "in_total", "first_chi_square", "first_smd")
"""Figures of Mantel's test: participants; χ², mean difference and odds ratio with purified totals; whether the item counts in them; χ² and
mean difference with totals of all items."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Comparison of groups of participants: the attribute ``comparison_`` of a fitted model.

    The first level of ``by`` is the reference, with which each of the g others is compared. Factors are those of fits to each
    group, matched with the k factors of the model.
    """

    by: str
    """Name of the variable with the groups."""
    levels: Annotated[list[str], Length(("levels",))]
    """Levels of the variable, the reference first."""
    sizes: Annotated[NDArray[Any], Shape(("levels",), "integers")]
    """Number of participants of each level."""
    congruence: Annotated[NDArray[np.float64], Shape(("g", "k"))]
    """(g, k): Tucker's congruence of each factor of a group with that of the reference, as the model rotates them."""
    low: Annotated[NDArray[np.float64], Shape(("g", "k"), finite=False)]
    """(g, k): lower ends of the intervals of ``population``; NaN if not determined."""
    high: Annotated[NDArray[np.float64], Shape(("g", "k"), finite=False)]
    """(g, k): upper ends of the intervals; 1 if equal loadings cannot be rejected, NaN if not determined."""
    p: Annotated[NDArray[np.float64], Shape(("g", "k"), finite=False)]
    """(g, k): p values of equal loadings, adjusted by Holm's procedure; NaN if there was no test."""
    level: float
    """Level of the intervals, such as 0.95."""
    n_resamples: int
    """Number of draws that could be fitted: resamples, or simulations of equal loadings."""
    rotated: Annotated[NDArray[np.float64], Shape(("g", "k"))] | None
    """(g, k): congruences after rotation to the model's factors, those that are tested; None for models without rotation."""
    centred: Annotated[NDArray[np.float64], Shape(("g", "k"))] | None
    """(g, k): congruences of non-negative loadings less each item's mean over the factors; None for loadings with signs."""
    population: Annotated[NDArray[np.float64], Shape(("g", "k"), finite=False)]
    """(g, k): estimated congruence of the loadings of the populations, without the noise of the samples; NaN if not determined."""
    factors_untested: str
    """The reason why there are no p values of the factors; empty if there are."""
    items: Annotated[list[str], Length(("m",))]
    """Labels of the items."""
    scales: Annotated[list[str], Length(("m",))]
    """Scale of each item, within which Mantel's test matches; empty for an item in none."""
    effect: Annotated[NDArray[np.float64], Shape(("g", "m"))] | None
    """(g, m): effect of each group on the answers, less the reference, in points; None if the groups are no confounder of the model."""
    effect_se: Annotated[NDArray[np.float64], Shape(("g", "m"), low=0)] | None
    """(g, m): standard errors of the effects over refits to resamples."""
    unshrunken: Annotated[NDArray[np.float64], Shape(("g", "m"), finite=False)] | None
    """(g, m): differences of the groups' mean residuals from the factors alone, which no penalty shrinks: a size, no test."""
    mantel: Annotated[NDArray[np.float64], Shape(("statistics", "g", "m"), finite=False)] | None
    """Figures of Mantel's test, in the order of ``MANTEL``; None if the answers are no ordered categories."""
    share: float = 0.05
    """False discovery rate of both screens, by the procedure of Benjamini and Hochberg over items and groups."""
    minimum: float = 0.1
    """Smallest effect, and smallest mean difference, that a screen flags, in points."""

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of this version from those of any version."""
        return _upgrade_factors(values)

    def factors(self, names: Sequence[str]) -> pd.DataFrame:
        """Return the congruences as a table, groups × factors, with their intervals and p values; columns without a number are left out."""
        index = pd.MultiIndex.from_product([self._others, list(names)], names=[self.by, "factor"])
        columns = {"congruence": self.congruence, "rotated": self.rotated, "centred": self.centred, "population": self.population}
        columns |= {"low": self.low, "high": self.high, "p": self.p}
        known = {name: values.ravel() for name, values in columns.items() if values is not None and not np.isnan(values).all()}
        return pd.DataFrame(known, index)

    @property
    def lowest_p(self) -> float:
        """The smallest p value that Holm's procedure can give with this number of draws; NaN if there was no test."""
        n_tests = int((~np.isnan(self.p)).sum())
        return min(1.0, n_tests / (self.n_resamples + 1)) if n_tests else float("nan")

    @property
    def effects(self) -> pd.DataFrame | None:
        """Effects of the groups in the model as a table, groups × items: effect, standard error, z, p, whether flagged, unshrunken effect.

        An effect of exactly 0 has p = 1, as the penalty sets most effects of no size to 0.
        """
        if self.effect is None or self.effect_se is None or self.unshrunken is None:
            return None
        with np.errstate(invalid="ignore", divide="ignore"):
            z = np.where(self.effect == 0, 0.0, self.effect / self.effect_se)
        p = 2 * norm.sf(np.abs(z))
        flagged = self._flagged(p, self.effect)
        columns = {"effect": self.effect, "se": self.effect_se, "z": z, "p": p, "flagged": flagged, "unshrunken": self.unshrunken}
        return self._table(columns)

    @property
    def screen(self) -> pd.DataFrame | None:
        """Mantel's tests within scales as a table, groups × items."""
        if self.mantel is None:
            return None
        columns = dict(zip(MANTEL, self.mantel, strict=True))
        p, alpha = chi2.sf(columns["chi_square"], 1), columns["alpha"]
        with np.errstate(divide="ignore", invalid="ignore"):
            delta = -2.35 * np.log(alpha)
        scale = np.broadcast_to(np.asarray(self.scales, object), p.shape)
        table = {"scale": scale, **columns, "p": p, "delta": delta, "flagged": self._flagged(p, columns["smd"])}
        order = ["scale", "n", "chi_square", "p", "smd", "alpha", "delta", "flagged", "in_total", "first_chi_square", "first_smd"]
        return self._table({name: table[name] for name in order}).astype({"in_total": bool})

    @property
    def findings(self) -> pd.DataFrame:
        """Items that all screens flag as a table, groups × items; none without a screen."""
        screens = [table for table in (self.effects, self.screen) if table is not None]
        if not screens:
            return pd.DataFrame(index=self._index[:0])
        flagged = np.all([table["flagged"] for table in screens], axis=0)
        figures = [table[[name for name in ("effect", "unshrunken", "smd", "chi_square") if name in table]] for table in screens]
        return pd.concat(figures, axis=1)[flagged]

    @property
    def _others(self) -> list[str]:
        return [f"{level} − {self.levels[0]}" for level in self.levels[1:]]

    @property
    def _index(self) -> pd.MultiIndex:
        return pd.MultiIndex.from_product([self._others, self.items], names=[self.by, "item"])

    def _table(self, columns: "dict[str, NDArray[Any]]") -> pd.DataFrame:
        return pd.DataFrame({name: values.ravel() for name, values in columns.items()}, self._index)

    def _flagged(self, p: NDArray[Any], size: NDArray[Any]) -> NDArray[np.bool_]:
        """Flag p values at the false discovery rate, of sizes that are large enough; those that are NaN never."""
        known, flagged = ~np.isnan(p), np.zeros(p.shape, bool)
        if known.any():
            flagged[known] = false_discovery_control(p[known]) <= self.share
        large: NDArray[np.bool_] = np.abs(size) >= self.minimum
        return flagged & large


def _upgrade_factors(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with those of the factors: earlier versions had p values of permutations, and intervals of the samples' congruence.

    Neither says what its successor says, so they are left out.
    """
    if "n_permutations" not in values:
        return values
    former = "the comparison was stored by an earlier version, whose test has been replaced; run dfact compare again"
    undetermined = {name: np.full(np.shape(values["congruence"]), np.nan) for name in ("population", "low", "high", "p")}
    current = {name: value for name, value in values.items() if name != "n_permutations"}
    return current | undetermined | {"rotated": None, "centred": None, "factors_untested": former}


def _numbers_or_texts(values: "pd.Series[Any]") -> list[float] | list[str]:
    """Return a parameter's values as numbers if all of them are finite numbers, else as texts."""
    if values.dtype.kind in "iuf" and np.isfinite(values).all():
        numbers: list[float] = values.tolist()
        return numbers
    return [str(value) for value in values]


SAVED_TYPES.update({kind.__name__: kind for kind in (SelectionRecord, Stability, Comparison)})  # any model may have them
