"""Descriptions of questionnaires: distributions of the items, reliability of the scales, adequacy for a factor analysis."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.data.replicate_weights import ReplicateWeights
from dfact.data.validation import require_finite
from dfact.engine.executors import data_client
from dfact.engine.memory_plan import Plan
from dfact.engine.threads import single_threaded
from dfact.errors import DataError, ParameterError, warn
from dfact.parameters import COUNT
from dfact.progress import Iteration, Reporter
from dfact.questionnaires.answer_sums import AnswerSums, SumsTask, SurveyFigures
from dfact.questionnaires.item_sums import ItemRange, ItemSums
from dfact.questionnaires.scale_statistics import Associations, adequacy, describe_scale, quoted
from dfact.questionnaires.scales import Scales, resolve_scales
from dfact.text import align_columns, html_view, table_text

Array = NDArray[np.float64]
INTERVALS = {"jackknife": "jackknife", "feldt": "Feldt", "replicates": "replicate weights"}
"""Intervals of alpha, with their names in a sentence."""
_NARROW = 0.2  # of the range of all answers: the largest range of an item that must have another scale than others


@dataclass(frozen=True, eq=False)
class Description:
    """Distributions of the items and reliability of the scales; ``print`` shows it as tables.

    A figure that is not defined is NaN, and ``note`` has the reason.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> answers = np.random.default_rng(0).integers(1, 6, (100, 3))
    >>> description = dfact.describe(answers, scales={"pair": ["0", "1"], "single": ["2"]})
    >>> description.scales.loc["single", "note"]
    'one item'
    """

    items: pd.DataFrame
    """By item: its ``scale``, ``key`` (1 or −1), number ``n`` of answers, the share ``missing``, ``mean`` and ``sd``, ``skew``
    (Σ(x − x̄)³/n / sd³), the shares of answers at the ``floor`` and at the ``ceiling`` of the range, ``r_drop`` (the correlation
    with the sum of the other items of the scale), ``alpha_if_dropped``, ``msa`` (sampling adequacy), ``note`` and ``text``.

    Reversed items are described as they count in the scale: reversed within their range."""
    scales: pd.DataFrame
    """By scale: the number of ``items``, the number ``n`` of participants, the least number ``n_pairwise_min`` who answered both items of a
    pair, Cronbach's ``alpha`` with its standard error ``se`` and the ends ``ci_low`` and ``ci_high`` of its 95% interval, the standardized
    alpha ``std_alpha``, Guttman's ``lambda6``, McDonald's ``omega`` of one factor, ``omega_total`` of a general factor and group factors,
    ``omega_hierarchical`` and ``ecv`` of the general factor, the average correlation ``average_r``, and ``note``."""
    kmo: float
    """Kaiser-Meyer-Olkin measure of sampling adequacy of all items; of smoothed correlations if they are indefinite."""
    bartlett: "pd.Series[float]"
    """Test of all items that no two are correlated: ``chi_square``, ``df`` and ``p``. Its ``name`` is "Bartlett", whose test is of
    complete answers, or "Steiger", whose test takes for each correlation the number of its own participants."""
    n: int
    """Number of participants with any answer, or with all answers if ``missing="listwise"``."""
    correlation: str
    """Kind of the correlations: "pearson" or "polychoric"."""
    missing: str
    """Treatment of missing answers: "pairwise" or "listwise"."""
    note: str = ""
    """Reason why ``kmo`` or ``bartlett`` is NaN."""
    interval: str = "jackknife"
    """Kind of the intervals of alpha: "jackknife" or "feldt"."""

    def summary(self) -> list[tuple[str, str]]:
        """Return what is said of all items together, as named lines.

        Returns
        -------
        list of (str, str)
            Names and values.
        """
        chi_square, df, p = self.bartlett
        level = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
        lines = [
            ("answers", f"{self.n} participants × {len(self.items)} items"),
            ("missing answers", self.missing),
            ("correlations", self.correlation),
            ("intervals of alpha", f"95%, {INTERVALS[self.interval]}"),
        ]
        lines += [] if np.isnan(self.kmo) else [("KMO", f"{self.kmo:.3f}")]
        if not np.isnan(chi_square):
            reason = "" if self.bartlett.name == "Bartlett" else "; answers are missing, and Bartlett's test needs complete ones"
            lines.append((f"{self.bartlett.name}'s test", f"χ² = {chi_square:.1f}, {df:.0f} df, {level}{reason}"))
        count = int((self.items["key"] < 0).sum())
        lines += [("reversed", f"{count} of {len(self.items)} items, whose key is -1, before all figures below")] if count else []
        return lines + ([("note", self.note)] if self.note else [])

    def _repr_html_(self) -> str:
        """Return the description for a notebook."""
        return html_view("Description of a questionnaire", self.summary(), {"Scales": self.scales, "Items": self.items})

    def __str__(self) -> str:
        return "\n\n".join([align_columns(self.summary()), _printed(self.scales), _printed(self.items)])


def describe(
    data: Any,
    *,
    scales: Mapping[str, Sequence[str]] | str | PathLike[str] | None = None,
    keys: Mapping[str, int] | None = None,
    correlation: str = "pearson",
    sample_weight: Any = None,
    missing: str = "pairwise",
    group_factors: int = 3,
    interval: str | None = None,
    executor: Any = None,
    memory_limit: int | str | None = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
) -> Description:
    """Describe the items and the scales of a questionnaire, from two passes over the answers.

    Reliability comes from the covariances C of the items of a scale, or from their correlations R:

    - alpha = m/(m − 1)·(1 − tr C/ΣC) with its standard error ``se`` by the jackknife (Maydeu-Olivares et al. 2007 have the
      same to first order), which holds whatever the distribution of the answers and with answers missing completely at random, or
      with the interval of Feldt et al. (1987), which does not: its coverage at 95% falls to 70 to 80% for skewed items;
      std_alpha, the standardized alpha: the same of R;
    - λ6 = 1 − Σ 1/(R⁻¹)_ii / ΣR (Guttman 1945);
    - omega = (Σλ)²/((Σλ)² + Σψ) of one minres factor (McDonald 1999), the ω of a scale with one dimension. Programs that fit the
      covariances by maximum likelihood give other values;
    - omega total = 1 − Σu²/ΣR and omega hierarchical = (Σg)²/ΣR: shares of all factors, and of the general factor with loadings g,
      in the variance of the sum. ECV is the share of the general factor in the common variance. The factors follow Schmid & Leiman (1957)
      from oblimin factors (Zinbarg et al. 2005), as in psych's ``omega``. Unlike psych, which reverses items with negative g, the items
      count as they are keyed. With a single group factor, omega hierarchical equals omega total.

    KMO, MSA and the test of sphericity describe all items, whether they belong to a scale or not. Bartlett's test (1951) needs complete
    answers. With missing answers, the test of Steiger (1980) takes its place, in which each correlation has the number of its own
    participants; Bartlett's with the number who answered anything, as psych has it, rejects too often. Feldt's interval uses as n the
    harmonic mean of these numbers.

    Parameters
    ----------
    data : array (n, m) of any kind, path or Dataset
        The answers; NaN is missing.
    scales : dict from scale to its items, or path, optional
        A path leads to a csv file with a column item and columns scale, key, text, or some of them. By default the scales of the
        dataset's codebook; without any, all items are one scale.
    keys : dict from item to 1 or -1, optional
        Items with −1 are reversed: x becomes low + high − x, with the item's valid range (for an array, the range of all answers).
        By default the keys of the csv file or the codebook, else 1. Nothing else is reversed.
    correlation : "pearson" or "polychoric"
        Correlations R. Alpha, its interval, r_drop and alpha if dropped use the answers' covariances in either case; with
        polychoric correlations, which treat answers as ordered categories, the standardized alpha is the ordinal alpha, and
        Bartlett's test is descriptive.
    sample_weight : array (n,), optional
        Weights of the participants, such as survey weights; by default the dataset's. Means, shares and covariances are
        weighted, and Kish's effective number takes the place of n in variances, Feldt's interval and Bartlett's test. It ignores
        strata and clusters: for a sample of schools or households, intervals are too narrow. Standard errors of such a sample need
        replicate weights. ``n`` and ``missing`` count participants, without those of weight 0.
    missing : "pairwise" or "listwise"
        Correlations from the participants who answered both items, or all items: of the scale for figures of a scale, of the
        data for KMO, MSA and Bartlett's test. n, mean, sd, skew, floor and ceiling are of all answers to the item.
    group_factors : int
        Number of group factors of omega hierarchical; fewer for a scale with too few items to determine them (two for five items,
        none for four).
    interval : "jackknife", "feldt" or "replicates", optional
        Interval of alpha: alpha ± t·se with the standard error of the jackknife, which leaves out each participant once; Feldt's
        interval, for items that are normal and equally correlated; or alpha ± t·se by the replicate weights of the dataset, from two
        passes for each of them, which alone takes strata and clusters of a survey into account. By default "replicates" for a dataset
        with any, else "jackknife". With "replicates", items also have the standard error of the mean, ``mean_se``.
    executor : None, "inline", "threads", "distributed", distributed.Client or cluster
        Executor of the pass; see :func:`dfact.engine.executors.resolve_executor`. It does not affect the result.
    memory_limit : int or str, optional
        Bytes that a process may use ("4GiB").
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` after each step, such as ``dfact.Progress("describe")``.

    Returns
    -------
    Description
        Tables of the items and of the scales, KMO and the test of Bartlett or Steiger.

    Raises
    ------
    DataError
        Infinite answers; a scale with items that the data does not have; an item in two scales.
    ParameterError
        A key other than 1 and −1, or another invalid parameter.
    MemoryPlanError
        The minimum that the pass needs exceeds ``memory_limit``.

    Warns
    -----
    UserWarning
        Items that correlate negatively with the rest of their scale; indefinite correlations, which were smoothed for omega, KMO and
        MSA.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> answers = np.rint(rng.normal(3, 1, (500, 1)) + rng.normal(0, 1, (500, 6)))
    >>> description = dfact.describe(answers, scales={"calm": ["0", "1", "2"], "open": ["3", "4", "5"]})
    >>> list(description.scales.index), bool(description.scales.loc["calm", "alpha"] > 0.6)
    (['calm', 'open'], True)
    """
    COUNT.check("group_factors", group_factors)
    dataset = _answers(data, sample_weight, executor)
    replicates = dataset.replicate_weights
    if interval is None:
        interval = "jackknife" if replicates is None else "replicates"
    if interval not in INTERVALS or (interval == "replicates" and replicates is None):
        named = [name for name in INTERVALS if name != "replicates" or replicates is not None]
        raise ParameterError(f"interval is {interval!r}, expected one of {', '.join(map(repr, named))}")
    resolved, task = _prepare(dataset, scales, keys, correlation, missing, executor, memory_limit)
    n_replicates = 0 if replicates is None or interval != "replicates" else replicates.n_replicates
    report = Reporter(callbacks, 2 + n_replicates)
    sums = task.run()
    report.step("answers")
    repeated: list[SurveyFigures] = []
    for r in range(n_replicates):
        assert replicates is not None, "they have been counted"
        repeated.append(task.with_weights(replicates.column(r)).figures())
        report.step(replicates.names[r])
    with single_threaded(), np.errstate(invalid="ignore", divide="ignore"):
        result = _summarize(dataset, resolved, sums, correlation, missing, group_factors, interval)
        if replicates is not None and repeated:
            result = _with_survey_errors(result, sums.items.means() + sums.range.shift, replicates, repeated)
    report.step("reliability")
    return result


def plan_description(
    data: Any,
    *,
    scales: Mapping[str, Sequence[str]] | str | PathLike[str] | None = None,
    correlation: str = "pearson",
    sample_weight: Any = None,
    missing: str = "pairwise",
    executor: Any = None,
    memory_limit: int | str | None = None,
) -> Plan:
    """Return the memory plan of :func:`describe` with these arguments; nothing runs."""
    return _prepare(_answers(data, sample_weight, executor), scales, None, correlation, missing, executor, memory_limit)[1].plan


def _answers(data: Any, weights: Any, executor: Any) -> Dataset:
    """Return the data as a dataset with its weights."""
    dataset = as_dataset(data, client=data_client(data, executor))
    if len(dataset.shape) != 2:
        raise DataError(f"X has {len(dataset.shape)} modes, expected rows (participants) and columns (items)")
    require_finite(dataset)
    if not isinstance(data, (str, PathLike, Dataset)):
        dataset = _with_own_ranges(dataset)
    return dataset if weights is None else dataset.with_weights(weights)


def _with_own_ranges(dataset: Dataset) -> Dataset:
    """Return the dataset with each item's own range, and warn, if the items of an array have ranges that one range would not fit."""
    statistics = dataset.statistics
    answered = np.flatnonzero(statistics.observed > 0)
    low, high = statistics.minimum[answered], statistics.maximum[answered]
    spans = high - low
    varying = np.where(spans > 0, spans, np.inf)
    if not answered.size or varying.min() > _NARROW * (high.max() - low.min()):
        return dataset
    narrow, wide = (answered[j] for j in (varying.argmin(), spans.argmax()))
    found = ", ".join(
        f"{str(dataset.column_labels[j])!r} from {statistics.minimum[j]:g} to {statistics.maximum[j]:g}" for j in sorted({narrow, wide})
    )
    used = "floor, ceiling and reversed means use the lowest and the highest answer to each item"
    warn(f"items have answers in different ranges ({found}), so {used}; import the table with valid_range to declare the ranges")
    ranges = dataset.valid_range.copy()
    ranges[answered] = np.stack([low, high], axis=1)
    return replace(dataset, valid_range=ranges)


def _prepare(
    dataset: Dataset, scales: Any, keys: Mapping[str, int] | None, correlation: str, missing: str, executor: Any, memory_limit: Any
) -> tuple[Scales, SumsTask]:
    """Return the scales, and the passes that collect the sums of their items."""
    if correlation not in ("pearson", "polychoric"):
        raise ParameterError(f"correlation is {correlation!r}, expected 'pearson' or 'polychoric'")
    if missing not in ("pairwise", "listwise"):
        raise ParameterError(f"missing is {missing!r}, expected 'pairwise' or 'listwise'")
    found, listwise = resolve_scales(dataset, scales, keys), missing == "listwise"
    settings: dict[str, Any] = {"polychoric": correlation == "polychoric", "executor": executor, "memory_limit": memory_limit}
    return found, SumsTask.prepare(dataset, found, listwise=listwise, **settings)


def _summarize(
    dataset: Dataset, scales: Scales, sums: AnswerSums, correlation: str, missing: str, group_factors: int, interval: str
) -> Description:
    """Compute the figures from the sums."""
    names = [str(label) for label in dataset.column_labels]
    polychoric: list[Any] = sums.polychoric or [None] * len(sums.moments)
    associations = Associations.of(sums.moments[0], scales.keys, polychoric[0])
    figures = {name: np.full(len(names), np.nan) for name in ("r_drop", "alpha_if_dropped", "msa")}
    rows = []
    for i, scale in enumerate(scales.scales):
        if missing == "pairwise":
            own = associations.part(scale.columns)
        else:
            own = Associations.of(sums.moments[1 + i], scales.keys[scale.columns], polychoric[1 + i])
        rows.append(describe_scale(scale, own, float(sums.alpha_se[i]), names, figures, group_factors, interval))
    _warn_negative([name for name, correlation in zip(names, figures["r_drop"], strict=True) if correlation < 0])
    table = pd.DataFrame(rows, index=pd.Index([scale.name for scale in scales.scales], name="scale"))
    kmo, test, note = adequacy(associations, names, figures["msa"])
    items = _item_table(names, dataset, scales, sums.range, sums.items, figures)
    description = Description(items, table, kmo, test, associations.n, correlation, missing, note, interval)
    if scales.texts:
        items["text"] = [scales.texts.get(name, "") for name in names]
    return description


def _with_survey_errors(
    description: Description, item_means: Array, replicates: ReplicateWeights, repeated: Sequence[SurveyFigures]
) -> Description:
    """Return the description with the standard errors of alphas and means by replicate weights, and the alphas' intervals."""
    scales, items = description.scales.copy(), description.items.copy()
    alphas, means = (np.stack(parts) for parts in zip(*((figures.alphas, figures.means) for figures in repeated), strict=True))
    scales["se"] = replicates.standard_error(alphas, scales["alpha"].to_numpy())
    half = float(stdtrit(replicates.df, 0.975)) * scales["se"]
    scales["ci_low"], scales["ci_high"] = scales["alpha"] - half, (scales["alpha"] + half).clip(upper=1)
    items.insert(list(items).index("mean") + 1, "mean_se", replicates.standard_error(means, item_means))
    return replace(description, scales=scales, items=items)


def _item_table(
    names: list[str], dataset: Dataset, scales: Scales, item_range: ItemRange, sums: ItemSums, figures: Mapping[str, Array]
) -> pd.DataFrame:
    """Return the table of the items, given their figures within scales."""
    n, reversed_ = sums.counts, scales.keys < 0
    low, high = item_range.low + dataset.offset, item_range.high + dataset.offset
    mean, deviations = sums.means() + (item_range.shift + dataset.offset), sums.deviations()
    scale = np.full(len(names), "", object)
    for each in scales.scales:
        scale[each.columns] = each.name
    constant_rest = np.isnan(figures["alpha_if_dropped"]) & np.isnan(figures["r_drop"]) & (deviations > 0)
    for each in scales.scales:
        alone = len(each.columns) < 3 or not np.isfinite(figures["r_drop"][each.columns]).any()
        constant_rest[each.columns] &= not alone
    floor, ceiling = sums.floor / sums.total, sums.ceiling / sums.total
    columns = {
        "scale": scale,
        "key": scales.keys.astype(int),
        "n": n.astype(int),
        "missing": 1 - n / _n_participants(dataset),
        "mean": np.where(reversed_, low + high - mean, mean),
        "sd": deviations,
        "skew": sums.skews() * scales.keys,
        "floor": np.where(reversed_, ceiling, floor),
        "ceiling": np.where(reversed_, floor, ceiling),
        **figures,
        "note": np.select(
            [n == 0, n == 1, deviations == 0, constant_rest],
            ["no answers", "one answer", "no variance", "the other items of its scale have a constant sum"],
            "",
        ),
    }
    return pd.DataFrame(columns, index=pd.Index(names, name="item"))


def _n_participants(dataset: Dataset) -> int:
    """Return the number of participants that count: a weight of 0 leaves one out."""
    weights = dataset.weight_summary()
    return dataset.shape[0] if weights is None else weights.n_positive


def _warn_negative(negative: list[str]) -> None:
    """Warn of items that correlate negatively with the rest of their scale."""
    if negative:
        warn(
            f"the correlation with the rest of the scale is negative for {quoted(negative)}, expected positive ones; if these items are "
            "worded in reverse, give them the key -1: keys=, or the column key of the file of items (--items)"
        )


def _printed(table: pd.DataFrame) -> str:
    """Return a table as text, with the labels of its rows first and without columns of notes that are empty."""
    shown = table.reset_index()
    return table_text(shown.loc[:, [name != "note" or (shown[name] != "").any() for name in shown]], header=True)
