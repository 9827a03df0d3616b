"""The way to the first iteration over all rows: short starts, the best of which is continued, and growing samples of the rows.

Between descents only the factors of modes 2 to N are kept: the rows of each begin at their optimum given these.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Protocol

from dfact.data.layout import Layout
from dfact.engine.requests import Solver
from dfact.models.cp.block_descent import Descent, RowSample
from dfact.models.cp.problem import ElasticNet, Factors
from dfact.progress import Reporter, relative_change

_ROUNDS = (10, 20)  # iterations of each start, and further ones of the better half
_WARMUP, _WARMUP_SHARE = 4, 0.01  # first iterations, and their share of the penalties: with all, components vanish before they form
_SHARES = (1 / 16, 1 / 4)  # of the partitions in the samples that follow the driver's
_PASSES = 80  # over a sample, at most
_PROGRESS = 0.25  # relative change of the objective in a pass, as a share of the sample's noise, below which the next sample follows


class MakeDescent(Protocol):
    """Makes a descent from factors of modes 2 to N on a sample of the rows."""

    def __call__(self, others: Factors, net: ElasticNet, sample: RowSample) -> Solver[Descent]: ...


def row_sample(shape: tuple[int, ...], rank: int, missing_rate: float, rows: int, partitions: tuple[int, ...] | None) -> RowSample:
    """Return a sample of so many rows, and its noise.

    At the minimum of a sample with n observed entries, the objective exceeds its minimum, by as much as p parameters fit noise: p/n of
    its value. More passes over the sample than reach this are of no use for all rows (progressive batching; Bollapragada et al. 2018).
    """
    observed = rows * prod(shape[1:]) * (1 - missing_rate)
    return RowSample(partitions, rows / shape[0], rank * sum(shape[1:]) / max(observed, 1))


def growing_samples(shape: tuple[int, ...], rank: int, missing_rate: float, first: RowSample, layout: Layout) -> list[RowSample]:
    """Return the samples of a 16th and a quarter of the partitions that are at least twice as large as the one before."""
    samples = [first]
    for share in _SHARES:
        partitions = layout.sample(share)
        rows = sum(part.stop - part.start for part in (layout.rows(i, i + 1) for i in partitions))
        if rows >= 2 * samples[-1].share * shape[0]:
            samples.append(row_sample(shape, rank, missing_rate, rows, partitions))
    return samples[1:]


def best_start(starts: Sequence[Factors], sample: RowSample, net: ElasticNet, make: MakeDescent) -> Solver[Factors]:
    """Return the factors of modes 2 to N at which the best of short descents ends. Half of them stop early."""
    found: list[tuple[float, Factors]] = [(0.0, others) for others in starts]
    for number, iterations in enumerate(_ROUNDS):
        found = sorted(found, key=lambda end: end[0])[: len(found) if number == 0 else -(-len(found) // 2)]
        warmup = _WARMUP if number == 0 else 0
        weak = replace(net, lam=_WARMUP_SHARE * net.lam)
        for i, (_, others) in enumerate(found):
            descent = yield from make(others, weak if warmup else net, sample)
            objective = 0.0
            for k in range(iterations):
                objective = yield from descent.iterate(weak if k < warmup else net)
            found[i] = objective, descent.others
    return min(found, key=lambda end: end[0])[1]


def grow(others: Factors, samples: Sequence[RowSample], net: ElasticNet, make: MakeDescent, report: Reporter | None) -> Solver[Factors]:
    """Continue on larger and larger samples, on each until a pass brings less than the sample's noise. Return the factors."""
    for sample in samples:
        descent, history = (yield from make(others, net, sample)), list[float]()
        for _ in range(_PASSES):
            history.append((yield from descent.iterate(net)))
            if report is not None:
                report.on_sample(history)
            if relative_change(history) < _PROGRESS * sample.noise:
                break
        others = descent.others
    return others
