"""Starts of expectile matrix factorization: of large data by passes over a sample of the partitions, and the best of several."""

from dataclasses import replace
from math import ceil, sqrt
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.engine.requests import Solver, run
from dfact.models.expectile.alternation import Alternation
from dfact.models.expectile.passes import ExactPass, Point, RowStart, SurrogatePass
from dfact.progress import Reporter, relative_change, remaining_change

_SHARE = 16  # one of this many partitions is in the sample
_ENTRIES = 64  # observed entries of a column in the sample, per component
_PASSES = 80  # maximum, for any max_iter: these passes are not counted as iterations
_TOLERANCE = 1e-3  # relative change of the objective on the sample; few passes over all rows then remain

_ROUNDS = (100, 8), (300, 3)  # passes of a descent, and how many of the starts they are made from: the best of the round before
_SETTLED = 1e-6  # estimated distance from the limit, relative, at which a descent ends

K = TypeVar("K", ExactPass, SurrogatePass)


def sample_partitions(layout: Layout, n_rows: int) -> tuple[int, ...]:
    """Choose a 16th of the partitions, or more for a sample of at least ``n_rows``; none if that is more than an 8th."""
    step = min(_SHARE, layout.n_rows // max(n_rows, 1))
    if step < _SHARE // 2 or layout.n_partitions < 2 * step:
        return ()
    return layout.sample(1 / step)


def start_on_sample(pass_: K, alternation: Alternation, dataset: Dataset, report: Reporter) -> Solver[K]:
    """Run passes over a sample of large data, which update ``alternation``. Return the pass over all rows that begins at their result.

    The sample's share s of the rows has the objective Σ ρ_τ + ridge·‖X‖² + s·ridge·‖Y‖². With X·s^-¼ and Y·s^¼ that is the
    objective of a dataset of these rows alone, whose ridge is √s·ridge.
    """
    layout, observed, Y = dataset.source.layout, 1 - dataset.missing_rate, alternation.point.Y
    partitions = sample_partitions(layout, ceil(_ENTRIES * Y.shape[1] / observed))
    # At τ = ½ the SVD of complete data is the minimum up to the ridge.
    solved = pass_.loss.tau == 0.5 and observed == 1 and pass_.row_start.projection.any()
    if not partitions or solved:
        return pass_
    rows = (layout.rows(i, i + 1) for i in partitions)
    root = sqrt(sum(part.stop - part.start for part in rows) / layout.n_rows)
    scale, loss, units = sqrt(root), replace(pass_.loss, ridge=root * pass_.loss.ridge), pass_.units
    sample = alternation.restart_from(loss, Y * scale)
    sampled = replace(pass_, loss=loss, row_start=RowStart(units, pass_.row_start.projection / scale))
    for _ in range(_PASSES):
        sample.update((yield from run(sampled, sample.point, sample=partitions)))
        objectives = sample.history[1::2]
        report.on_sample(objectives)
        if relative_change(objectives) < _TOLERANCE and not sample.rejected:
            break
    Y = sample.point.Y / scale
    alternation.point = Point(Y, restart=True)
    return replace(pass_, row_start=RowStart.from_columns(units, Y, observed))


def random_columns(m: int, k: int, largest: float, seed: int) -> NDArray[np.float64]:
    """Return random factors of the columns (m, k) for data with this largest magnitude."""
    return np.asarray(np.random.default_rng(seed).standard_normal((m, k)) * np.sqrt(largest / k))


def start_best(pass_: K, alternation: Alternation, dataset: Dataset, report: Reporter) -> Solver[tuple[K, Alternation]]:
    """Return the pass and the alternation of the start from which a short descent ends lowest: this one, or a random one.

    Data whose columns are hardly connected has many local minima, in which components of one group of columns belong to others of
    the next group. The random numbers are the same for all data. The best few are compared after more passes.
    """
    (m, k), units, statistics = alternation.point.Y.shape, pass_.units, dataset.statistics
    largest = float(max(-statistics.minimum.min(), statistics.maximum.max()))
    starts = [(pass_, alternation.point.Y)]
    random = replace(pass_, row_start=RowStart(units, np.zeros((m, k))))
    starts += [(random, random_columns(m, k, largest, seed)) for seed in range(_ROUNDS[0][1] - 1)]
    for passes, count in _ROUNDS:
        starts, ends = starts[:count], list[float]()
        for begun, Y in starts:
            descent = alternation.restart_from(pass_.loss, Y)
            for number in range(passes):
                descent.update((yield from run(begun, descent.point, reset=number == 0)))
                report.on_sample(descent.history[1::2])
                if not descent.rejected and remaining_change(descent.history[1::2]) < _SETTLED:
                    break
            ends.append(descent.history[-1])
        starts = [starts[i] for i in np.argsort(ends, kind="stable")]
    best, Y = starts[0]
    alternation = alternation.restart_from(pass_.loss, Y)
    alternation.point = Point(Y, restart=True)
    return best, alternation
