"""Records that accompany a model: the selection of its parameters, its variation between refits, the sites of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.lazy import pd, special
from dfact.linalg.several_tests import adjusted
from dfact.models.estimator import add_saved_types
from dfact.models.fitted_schema import Length, LessThan, Shape, UniformColumns
from dfact.models.item_tests import LARGE, NEGLIGIBLE, SHARE, ItemTests
from dfact.text import html_view

_COSINE = 1.0001  # greatest absolute value of a similarity, with its rounding error
_DIGITS = 12  # of a digest that are shown
STABLE = 0.9
"""Selection frequency from which a loading counts as selected."""


@dataclass(frozen=True, eq=False)
class SitesRecord:
    """The sites of a fit across sites: the attribute ``sites_`` of the coordinator's model, and of each site's."""

    names: Annotated[list[str], Length(("sites",))]
    """Names of the sites, in the order of their rows."""
    rows: Annotated[list[int], Length(("sites",))]
    """Number of rows of each site."""
    loadings: str
    """SHA-256 digest of the loadings: models of one fit, at the coordinator and at the sites, have the same."""

    def describe(self) -> str:
        """Return a line with the sites, their rows and the digest."""
        listed = ", ".join(f"{name} ({n} rows)" for name, n in zip(self.names, self.rows, strict=True))
        return f"{listed}; digest of the loadings {self.loadings[:_DIGITS]}, the same in all models of this fit"


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
    """Rule that chose the best score: "min", "max", "1se", "knee" or "stable"."""
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

    def __repr__(self) -> str:
        chosen = ", ".join(f"{name}={value}" for name, value in zip(self.names, self.values[self.best], strict=True))
        return f"<SelectionRecord of {len(self.values)} candidates by {self.criterion} ({self.rule}): {chosen}>"

    def _repr_html_(self) -> str:
        return html_view(
            repr(self)[1:-1], (), {"": self.table.assign(chosen=["✓" if i == self.best else "" for i in range(len(self.values))])}
        )


@dataclass(frozen=True, eq=False)
class Stability:
    """Variation of a model over refits on resampled rows: the attribute ``stability_`` of a fitted model.

    The factors of each refit are matched with the k factors of the model. An interval from ``low`` to ``high`` covers, at the
    ``level``, the loading that the same model has in the population, if it is fitted to unlimited data with the same parameters, at
    the scale that n rows give it. Loadings at a bound or set to 0 by a penalty have no interval, but a selection frequency. Loadings
    have the model's sign and the units of ``loadings_``.
    """

    similarity: Annotated[NDArray[np.float64], Shape(("refits", "k"), finite=False, low=-_COSINE, high=_COSINE)]
    """(B, k): similarity of each refit's loadings on each factor to the model's, for B refits; 1 is the same
    direction. NaN for a resample that the model could not be fitted to, and for a factor that it has not."""
    mean: Annotated[NDArray[np.float64], Shape(("k", "m"), finite=False)]
    """(k, m): mean loadings over the refits; m is the number of rows of ``loadings_``."""
    low: Annotated[NDArray[np.float64], Shape(("k", "m"), finite=False)]
    """(k, m): lower ends of the intervals; NaN for a loading whose interval is not determined."""
    high: Annotated[NDArray[np.float64], Shape(("k", "m"), finite=False)]
    """(k, m): upper ends of the intervals."""
    level: float
    """Level of the intervals, such as 0.95."""
    selected: Annotated[NDArray[np.float64], Shape(("k", "m"), finite=False, low=0, high=1)]
    """(k, m): selection frequency, the share of the refits in which the loading is not 0 (Meinshausen & Bühlmann 2010)."""
    confounder_mean: Annotated[NDArray[np.float64], Shape(("q", "m"), finite=False)] | None = None
    """(q, m): mean effects of the confounders over the refits, the q columns of the model's ``confounder_effects_``; None without any.
    Each refit is anchored, and its effects are free of the penalty's shrinkage. NaN where a refit does not determine one."""
    confounder_low: Annotated[NDArray[np.float64], Shape(("q", "m"), finite=False)] | None = None
    """(q, m): lower ends of the effects' intervals."""
    confounder_high: Annotated[NDArray[np.float64], Shape(("q", "m"), finite=False)] | None = None
    """(q, m): upper ends of the effects' intervals."""
    confounder_se: Annotated[NDArray[np.float64], Shape(("q", "m"), finite=False, low=0)] | None = None
    """(q, m): standard errors of the effects: their standard deviations over the refits."""
    impact_mean: Annotated[NDArray[np.float64], Shape(("q", "k"), finite=False)] | None = None
    """(q, k): mean impact of the confounders over the refits, in units of the factors; see the model's ``confounder_impact_``."""
    impact_low: Annotated[NDArray[np.float64], Shape(("q", "k"), finite=False)] | None = None
    """(q, k): lower ends of the impact's intervals."""
    impact_high: Annotated[NDArray[np.float64], Shape(("q", "k"), finite=False)] | None = None
    """(q, k): upper ends of the impact's intervals."""
    impact_se: Annotated[NDArray[np.float64], Shape(("q", "k"), finite=False, low=0)] | None = None
    """(q, k): standard errors of the impact."""

    estimate: Annotated[NDArray[np.float64], Shape(("k", "m"), finite=False)] | None = None
    """(k, m): loadings at the centres of the intervals: the model's, fitted further to all rows."""
    se: Annotated[NDArray[np.float64], Shape(("k", "m"), finite=False, low=0)] | None = None
    """(k, m): standard errors of the loadings."""
    resampling: str = "bootstrap"
    """Data of the refits: "bootstrap" samples, "halves" of the rows, either "of" a number of "clusters", or "replicate weights"."""
    choices: Annotated[list[str], Length(("choices",))] | None = None
    """Candidates of the selection that each resample repeated, as texts such as "n_components=4, beta=0.1"; None without ``reselect``."""
    choice_counts: Annotated[NDArray[Any], Shape(("choices",), "integers")] | None = None
    """Number of resamples that chose each candidate."""

    @property
    def n_refits(self) -> int:
        """Number of refits, B."""
        return len(self.similarity)

    @property
    def sparse(self) -> bool:
        """Whether any refit has a loading of exactly 0, because of a bound or a penalty."""
        return bool((self.selected < 1).any())

    def __repr__(self) -> str:
        return f"<Stability over {self.n_refits} refits: {self.resampling}>"

    def _repr_html_(self) -> str:
        return html_view(repr(self)[1:-1], (), {"": self.summary([str(i) for i in range(1, self.similarity.shape[1] + 1)])})

    def false_selections(self, threshold: float = STABLE) -> float:
        """Return an upper bound on the expected number of loadings with a selection frequency of at least ``threshold`` by chance:

            q² / ((2π − 1)·p)   for the threshold π, p = k·m loadings and the mean number q of loadings selected in a refit

        (Meinshausen & Bühlmann 2010, theorem 1). By chance means: of loadings that a half of the rows selects with a probability of
        at most q/p (Shah & Samworth 2013, theorem 1). Both theorems are about halves of the rows, so the bound is NaN for other
        refits; it is also NaN unless 1/2 < ``threshold`` ≤ 1.

        Parameters
        ----------
        threshold : float
            Selection frequency π from which on a loading counts as selected.

        Returns
        -------
        float
            The bound; NaN where the theorem says nothing.
        """
        if not self.resampling.startswith("halves") or not 0.5 < threshold <= 1 or not self.sparse:
            return float("nan")
        q, p = np.nansum(self.selected), np.count_nonzero(~np.isnan(self.selected))
        return float(q**2 / ((2 * threshold - 1) * p))

    def summary(self, names: Sequence[str]) -> pd.DataFrame:
        """Summarize each factor: ``median`` and 5th percentile of its similarities, and numbers of its loadings.

        The ``intervals`` of so many loadings are determined. If refits have loadings of exactly 0, no interval that includes 0 is, and
        ``selected`` loadings have a selection frequency of at least 0.9. Otherwise so many intervals are ``off 0``, without it.

        Parameters
        ----------
        names : sequence of k str
            Names of the factors.

        Returns
        -------
        DataFrame
            One row for each factor.
        """
        median, low = np.nanquantile(self.similarity, [0.5, 0.05], axis=0)
        columns = {"median": median, "5%": low}
        columns["intervals"] = (~np.isnan(self.low)).sum(axis=1)
        if self.sparse:
            columns["selected"] = (self.selected >= STABLE).sum(axis=1)
        else:
            columns["off 0"] = ((self.low > 0) | (self.high < 0)).sum(axis=1)
        return pd.DataFrame(columns, index=pd.Index(list(names), name="factor"))


@dataclass(frozen=True, eq=False)
class TensorStability:
    """Variation of a CP decomposition over refits on resampled slices of mode 1: the attribute ``stability_`` of a fitted model.

    The components of each refit are matched with the k components of the model by their vectors of modes 2 to N. Loadings are
    these vectors scaled to length 1, in the order of the model's ``loadings_``, with the model's signs in each mode. Those
    of components that the model has lost are NaN.
    """

    similarity: Annotated[NDArray[np.float64], Shape(("refits", "k"), finite=False, low=-_COSINE, high=_COSINE)]
    """(B, k): |Π_n cos| of each component of a refit with the model's, over modes 2 to N; NaN for lost components."""
    estimate: Annotated[NDArray[np.float64], Shape(("k", "entries"), finite=False)]
    """(k, m): loadings of the fit to all rows, converged, and without penalties and constraints."""
    low: Annotated[NDArray[np.float64], Shape(("k", "entries"), finite=False)]
    """(k, m): lower ends of the loadings' intervals, without penalties and constraints; NaN for components that refits often lose."""
    high: Annotated[NDArray[np.float64], Shape(("k", "entries"), finite=False)]
    """(k, m): upper ends of the intervals."""
    selected: Annotated[NDArray[np.float64], Shape(("k", "entries"), finite=False, low=0, high=1)]
    """(k, m): selection frequency, the share of the refits, with penalties and constraints, in which the loading is not 0."""
    weight: Annotated[NDArray[np.float64], Shape(("k",), finite=False)]
    """(k,): weights γ_r of the same fit to all rows."""
    weight_low: Annotated[NDArray[np.float64], Shape(("k",), finite=False)]
    """(k,): lower ends of the weights' intervals."""
    weight_high: Annotated[NDArray[np.float64], Shape(("k",), finite=False)]
    """(k,): upper ends of the intervals."""
    level: float
    """Level of the intervals, such as 0.95."""

    @property
    def n_refits(self) -> int:
        """Number of refits, B."""
        return len(self.similarity)

    @property
    def resampling(self) -> str:
        """Data of the refits: always "bootstrap" samples of the slices of mode 1."""
        return "bootstrap"

    @property
    def sparse(self) -> bool:
        """Whether any penalized refit has a loading of exactly 0."""
        return bool((self.selected < 1).any())

    def __repr__(self) -> str:
        return f"<TensorStability over {self.n_refits} refits: {self.resampling}>"

    def _repr_html_(self) -> str:
        return html_view(repr(self)[1:-1], (), {"": self.summary([str(i) for i in range(1, self.similarity.shape[1] + 1)])})

    @property
    def factor_match_scores(self) -> NDArray[np.float64]:
        """Factor match score of each refit (B,): the mean of the similarities of its components."""
        return np.asarray(np.nanmean(self.similarity, axis=1))

    def summary(self, names: Sequence[str]) -> pd.DataFrame:
        """Summarize each component that is left: ``median`` and 5th percentile of its similarities, its weight with the ends of the
        interval, and the number of ``loadings`` whose interval excludes 0.

        Parameters
        ----------
        names : sequence of R str
            Names of the components.

        Returns
        -------
        DataFrame
            One row for each component that is left.
        """
        left = ~np.isnan(self.weight)
        median, low = np.nanquantile(self.similarity[:, left], [0.5, 0.05], axis=0)
        off = ((self.low > 0) | (self.high < 0)).sum(axis=1)[left]
        columns = {"median": median, "5%": low, "weight": self.weight[left], "low": self.weight_low[left], "high": self.weight_high[left]}
        names = [name for name, kept in zip(names, left, strict=True) if kept]
        return pd.DataFrame(columns | {"loadings": off}, index=pd.Index(names, name="component"))


MANTEL = ("n", "chi_square", "smd", "alpha", "in_total", "first_chi_square", "first_smd", "sd", "alpha_se")
"""Figures of Mantel's test: participants; χ², mean difference and odds ratio with purified totals; whether the item counts in them; χ² and
mean difference with totals of all items; standard deviation of the item within strata's groups; standard error of the log odds ratio."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Comparison of groups of participants: the attribute ``comparison_`` of a fitted model.

    The first of the levels is the reference, with which each of the g others is compared. Factors are those of fits to each
    group, matched with the k factors of the model.
    """

    by: str
    """Name of the variable with the groups."""
    levels: Annotated[list[str], Length(("levels",))]
    """Levels of the variable, the reference first."""
    sizes: Annotated[NDArray[Any], Shape(("levels",), "integers")]
    """Number of participants of each level."""
    congruence: Annotated[NDArray[np.float64], Shape(("g", "k"))]
    """(g, k): Tucker's congruence of each factor of a group with the reference's, as the model rotates them."""
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
    item_tests: ItemTests | None
    """Tests of the items at equal factors; None if they were not possible."""
    untested: str
    """The reason why there are no tests of the items; empty if there are."""
    mantel: Annotated[NDArray[np.float64], Shape(("statistics", "g", "m"), finite=False)] | None
    """Figures of Mantel's test, in the order of ``MANTEL``; None if it was not possible."""
    unscreened: str
    """The reason why there is no Mantel test; empty if there is."""
    n_clusters: int = 0
    """Number of clusters that jackknife and draws took as independent; 0 if they took rows so."""

    def factors(self, names: Sequence[str]) -> pd.DataFrame:
        """Return the congruences as a table, groups × factors, with their intervals and p values; columns without a number are left out.

        Parameters
        ----------
        names : sequence of k str
            Names of the factors.

        Returns
        -------
        DataFrame
            One row for each group and factor.
        """
        index = pd.MultiIndex.from_product([self._others, list(names)], names=[self.by, "factor"])
        columns = {"congruence": self.congruence, "rotated": self.rotated, "centred": self.centred, "population": self.population}
        columns |= {"low": self.low, "high": self.high, "p": self.p}
        known = {name: values.ravel() for name, values in columns.items() if values is not None and not np.isnan(values).all()}
        return pd.DataFrame(known, index)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{level} ({size})" for level, size in zip(self.levels, self.sizes, strict=True))
        return f"<Comparison of {self.by}: {sizes}>"

    def _repr_html_(self) -> str:
        tables = {"Factors": self.factors([str(i) for i in range(1, self.congruence.shape[1] + 1)])}
        tables |= {"Items with differential functioning": self.dif_items} if len(self.dif_items) else {}
        return html_view(repr(self)[1:-1], (), tables)

    @property
    def lowest_p(self) -> float:
        """The smallest p value that Holm's procedure can give with this number of draws; NaN if there was no test."""
        n_tests = int((~np.isnan(self.p)).sum())
        return min(1.0, n_tests / (self.n_resamples + 1)) if n_tests else float("nan")

    def impact(self, names: Sequence[str]) -> pd.DataFrame | None:
        """Return the differences of the groups in the factors as a table, groups × factors, in standard deviations within the groups.

        Parameters
        ----------
        names : sequence of k str
            Names of the factors.

        Returns
        -------
        DataFrame or None
            One row for each group and factor; None for a comparison without impact.
        """
        tests = self.item_tests
        if tests is None:
            return None
        index = pd.MultiIndex.from_product([self._others, list(names)], names=[self.by, "factor"])
        low, high = tests.impact_interval(self.level)
        columns = {"impact": tests.impact, "se": tests.impact_se, "low": low, "high": high}
        return pd.DataFrame({name: values.ravel() for name, values in columns.items()}, index)

    @property
    def effects(self) -> pd.DataFrame | None:
        """Tests of the items at equal factors as a table, groups × items; None without any.

        Columns: ``difference`` of the groups, ``effect`` at equal factors and its ``se``, in points; ``size``, the effect in standard
        deviations of the item; ``t``, the smallest over the numbers of factors that were tested, its ``p``, and ``p_adjusted`` by
        Benjamini and Hochberg; whether it is ``flagged``, and is in the ``anchor``.
        """
        tests = self.item_tests
        if tests is None:
            return None
        columns = {"difference": tests.difference, "effect": tests.effect, "se": tests.se, "size": tests.size}
        columns |= {"t": tests.t if tests.least is None else tests.least, "p": tests.p}
        anchors = tests.anchors.astype(bool)
        return self._table(columns | {"p_adjusted": adjusted(tests.p), "flagged": tests.flagged, "anchor": anchors})

    @property
    def mantel_tests(self) -> pd.DataFrame | None:
        """Mantel's tests of equal answers at equal totals of the scales as a table, groups × items; None without any.

        Equal totals are not equal factors, so that ``p`` is not a test of the latter: see the guide ``evidence`` for how often it rejects.
        ``size`` is the mean difference in standard deviations of the item, ``class`` that of ETS; classes B and C that are
        significant at the false discovery rate are flagged.
        """
        if self.mantel is None:
            return None
        columns = dict(zip(MANTEL, self.mantel, strict=True))
        p, alpha = special.chdtrc(1, columns["chi_square"]), columns["alpha"]
        with np.errstate(divide="ignore", invalid="ignore"):
            delta, size = -2.35 * np.log(alpha), columns["smd"] / columns["sd"]
        classes = ets_classes(p, size, delta, 2.35 * columns["alpha_se"])
        scale = np.broadcast_to(np.asarray(self.scales, object), p.shape)
        flagged = (adjusted(p) <= SHARE) & np.isin(classes, ("B", "C"))
        table = {"scale": scale, **columns, "p": p, "size": size, "delta": delta, "class": classes, "flagged": flagged}
        order = ["scale", "n", "chi_square", "p", "smd", "size", "alpha", "delta", "class", "flagged", "in_total"]
        return self._table({name: table[name] for name in [*order, "first_chi_square", "first_smd"]}).astype({"in_total": bool})

    @property
    def dif_items(self) -> pd.DataFrame:
        """Items with differential functioning as a table, groups × items: flagged at equal factors, and by Mantel's test if possible.

        Columns: ``effect`` at equal factors in points, its ``se``, its ``size`` in standard deviations of the item, and ``p_adjusted`` by
        Benjamini and Hochberg; ``smd``, the mean difference at equal totals in points, with its ``class`` of ETS, if Mantel's test was
        possible.
        """
        if self.effects is None:
            return pd.DataFrame(index=self._index[:0])
        flagged, tables = self.effects["flagged"], [self.effects[["effect", "se", "size", "p_adjusted"]]]
        if self.mantel_tests is not None:
            flagged = flagged & (self.mantel_tests["flagged"] | self.mantel_tests["p"].isna())
            tables.append(self.mantel_tests[["smd", "class"]])
        return pd.concat(tables, axis=1)[flagged]

    @property
    def _others(self) -> list[str]:
        return [f"{level} − {self.levels[0]}" for level in self.levels[1:]]

    @property
    def _index(self) -> pd.MultiIndex:
        return pd.MultiIndex.from_product([self._others, self.items], names=[self.by, "item"])

    def _table(self, columns: dict[str, NDArray[Any]]) -> pd.DataFrame:
        return pd.DataFrame({name: values.ravel() for name, values in columns.items()}, self._index)


def ets_classes(
    p: NDArray[np.float64], size: NDArray[np.float64], delta: NDArray[np.float64], delta_se: NDArray[np.float64]
) -> NDArray[Any]:
    """Return the classes of the Educational Testing Service: A negligible, B moderate, C large; empty where nothing was tested.

    Two categories: C from |Δ| = 1.5 on if |Δ| exceeds 1 significantly, else B from |Δ| = 1 on (Zieky 1993). More categories: C above a
    difference of 0.25 standard deviations, else B above 0.17 (Zwick, Thayer & Mazzeo 1997). What is not significant at 5% is A.
    """
    binary = ~np.isnan(delta)
    with np.errstate(invalid="ignore"):
        large = np.where(binary, (np.abs(delta) >= 1.5) & (np.abs(delta) - 1 > special.ndtri(0.95) * delta_se), np.abs(size) > LARGE)
        moderate = np.where(binary, np.abs(delta) >= 1, np.abs(size) > NEGLIGIBLE)
        classes = np.where(p > SHARE, "A", np.where(large, "C", np.where(moderate, "B", "A"))).astype(object)
    classes[np.isnan(p) | (np.isnan(size) & ~binary)] = ""
    return classes


def _numbers_or_texts(values: pd.Series[Any]) -> list[float] | list[str]:
    """Return a parameter's values as numbers if all of them are finite numbers, else as texts."""
    if values.dtype.kind in "iuf" and np.isfinite(values).all():
        numbers: list[float] = values.tolist()
        return numbers
    return [str(value) for value in values]


add_saved_types(SelectionRecord, Stability, TensorStability, Comparison, SitesRecord)  # any model may have them
