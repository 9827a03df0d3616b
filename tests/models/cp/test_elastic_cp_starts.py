"""ElasticCP's starts: the best of short ones, samples that grow, equal bits on all executors, components that cancel each other."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dfact
from benchmarks.cp.starts import planted as planted_kinds
from dfact.data.layout import Layout
from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block
from dfact.engine.requests import Solver, drive
from dfact.models.cp import kept_sample
from dfact.models.cp.block_descent import ALL_ROWS, ImputingDescent, RowSample
from dfact.models.cp.block_descent import descend as descend_by
from dfact.models.cp.initialization import growing_samples, row_sample
from dfact.models.cp.kept_sample import KeepRowsPass, KeptRows, SampleSession, most_rows, plan_sample
from dfact.models.cp.passes import RowStart, row_solutions
from dfact.models.cp.problem import ElasticNet, Factors, Prior, RowPrior, khatri_rao
from tests.cases import exhaustive_after
from tests.models.cp.test_elastic_cp import Array, answers, assert_same, many_partitions, planted

__all__ = ["many_partitions"]


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples on the driver of data of a few thousand rows."""
    monkeypatch.setattr(kept_sample, "_ENTRIES", 1 << 13)
    monkeypatch.setattr(kept_sample, "_OBSERVATIONS", 16)


@pytest.mark.further
@pytest.mark.parametrize("number", exhaustive_after(2, [2, 10, 62, 189]))
def test_the_default_keeps_the_components_that_single_starts_may_lose(number: int) -> None:
    """The same fits lost a component with the penalties in force from the first iteration."""
    kind, rank, Z = planted_kinds(number)
    settings: dict[str, Any] = {"nonnegative": kind == "nonnegative", "executor": "inline"}
    single = [dfact.ElasticCP(rank, init="random", n_init=1, random_state=seed, **settings).fit(Z) for seed in range(4)]
    best = min(model.objective_history_[-1] for model in single)
    for seed in range(3):
        assert dfact.ElasticCP(rank, random_state=seed, **settings).fit(Z).objective_history_[-1] < 1.01 * best


@pytest.mark.further
@pytest.mark.parametrize("init", ["random", "svd", "auto"])
def test_more_starts_end_no_higher(init: Any) -> None:
    Z = planted((20, 9, 6, 5), 3, seed=3)
    ends = [dfact.ElasticCP(3, init=init, n_init=n, max_iter=200, random_state=0).fit(Z).objective_history_[-1] for n in (1, 6)]
    assert ends[1] <= 1.001 * ends[0]


def test_given_factors_are_the_only_start() -> None:
    Z = planted((20, 9, 6), 2, seed=1)
    init = [np.random.default_rng(n).standard_normal((size, 2)) for n, size in enumerate(Z.shape)]
    fits = [dfact.ElasticCP(2, init=init, n_init=n, max_iter=3, random_state=0).fit(Z) for n in (1, 6)]
    assert_same(*fits)


@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_a_sample_has_its_share_of_the_penalties(nonnegative: bool, missing: float) -> None:
    """Half of data that consists of the same rows twice has the same solution, with half the objective."""
    Z, net, rng = np.abs(planted((30, 8, 5), 3, 0, missing=missing)), ElasticNet(2.0, 0.3, nonnegative), np.random.default_rng(0)
    others = [np.abs(rng.standard_normal((3, size))) for size in (8, 5)]
    prior = Prior(RowPrior("given"), tuple(rng.uniform(0.5, 2, size) for size in (8, 5)))
    variances = rng.uniform(0.5, 2, (30, 1))

    def descend(descent: ImputingDescent) -> Solver[tuple[list[float], Factors]]:
        objectives, _ = yield from descend_by(descent, net, 12, 0.0)
        return objectives, descent.others

    found = []
    for copies, sample in ((1, RowSample(None, 0.5)), (2, ALL_ROWS)):
        rows = KeptRows(np.concatenate([Z.reshape(30, -1)] * copies), np.concatenate([variances] * copies))
        descent = ImputingDescent(prior, RowStart(3, net, khatri_rao(others)), np.dtype(np.float64), others, sample=sample)
        found.append(drive(descend(descent), SampleSession(rows, (8, 5))))
    np.testing.assert_allclose(2 * np.array(found[0][0]), found[1][0], rtol=1e-9)
    for A, B in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(A, B, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("missing", [0.0, 0.5])
def test_rows_begin_near_their_optimum(missing: float, dtype: type) -> None:
    Z = planted((25, 8, 5), 3, 0, missing=missing).astype(dtype)
    H, net, variances = np.random.default_rng(0).standard_normal((3, 40)), ElasticNet(1.0, 0.0), np.linspace(0.5, 2, 25)
    for scale in (1.0, 1e12):
        V = (scale * Z).reshape(25, -1)
        A, unconverged = row_solutions(Block(V, None, 0, 0), np.nan_to_num(V), scale * H, net, variances, 1e-2)
        assert unconverged == 0
        for v, a, variance in zip(V.astype(np.float64), A.T, variances, strict=True):
            h = scale * H[:, ~np.isnan(v)]
            expected = np.linalg.solve(h @ h.T + np.eye(3) / variance, h @ v[~np.isnan(v)])
            np.testing.assert_allclose(a, expected, rtol=1e-3 if dtype is np.float32 else 1e-9, atol=1e-4 if dtype is np.float32 else 1e-9)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_driver_s_sample_is_drawn_from_a_few_partitions(seed: int) -> None:
    shape = (40_000, 60, 40)
    layout = Layout.of(shape)
    plan = plan_sample(shape, 10, 0.2, layout)
    assert plan is not None
    assert len(plan.partitions) == 8
    assert len(plan.partitions) * plan.rows <= most_rows(shape, 10)
    assert plan.rows * len(plan.partitions) * 2400 * 0.8 >= 256 * 1000
    V = np.arange(40_000.0)[:, None] * np.ones((1, 2))
    drawn: list[float] = []
    for partition in plan.partitions:
        extent = layout.rows(partition, partition + 1)
        for start in range(extent.start, extent.stop, layout.block_rows):
            block = Block(V[start : min(start + layout.block_rows, extent.stop)], None, start // layout.block_rows, start)
            rows = KeepRowsPass(plan.rows, seed, RowPrior("none"), layout, np.dtype(np.float64)).step(block, BlockState(), None)[1]
            drawn += rows.values[:, 0].tolist()
    assert drawn == sorted(set(drawn))
    assert len(drawn) == plan.rows * len(plan.partitions)
    assert plan_sample((300, 60, 40), 10, 0.2, Layout.of((300, 60, 40))) is None


def test_samples_grow() -> None:
    shape = (200_000, 300, 5)
    first = row_sample(shape, 10, 0.2, 1000, None)
    samples = [first, *growing_samples(shape, 10, 0.2, first, Layout.of(shape))]
    assert [round(sample.share, 2) for sample in samples] == [0.01, 0.06, 0.24]
    assert all(a.noise > 2 * b.noise for a, b in pairwise(samples))
    small = (300, 20, 5)
    assert growing_samples(small, 2, 0.0, row_sample(small, 2, 0.0, 70, None), Layout.of(small)) == []


@pytest.mark.further
@pytest.mark.usefixtures("many_partitions", "small_samples")
@pytest.mark.filterwarnings("ignore:components 1 and 2 cancel")
@pytest.mark.parametrize("solver", exhaustive_after(1, ["bcd", "stochastic"]))
def test_samples_are_the_same_on_every_executor(solver: Any, client: Client, tmp_path: Path) -> None:
    X = answers(15_000, 3).astype(np.float32)
    dataset = dfact.import_array(X, tmp_path / "d.zarr")
    assert plan_sample(X.shape, 3, 0.2, Layout.of(X.shape)) is not None
    settings: dict[str, Any] = {"lam": 3.0, "max_iter": 4, "solver": solver, "random_state": 0}
    heard: list[dfact.progress.Iteration] = []
    reference = dfact.ElasticCP(3, executor="inline", callbacks=[heard.append], **settings).fit(X)
    assert sum(iteration.number == 0 for iteration in heard) >= 2
    for executor, data in (("threads", dataset), (client, dataset)):
        assert_same(reference, dfact.ElasticCP(3, executor=executor, **settings).fit(data))


class InterruptionError(Exception):
    """Raised by a callback."""


@pytest.mark.further
@pytest.mark.usefixtures("many_partitions", "small_samples")
def test_a_fit_that_began_on_samples_is_resumed(tmp_path: Path) -> None:
    X = answers(15_000, 3).astype(np.float32)
    settings: dict[str, Any] = {"lam": 3.0, "max_iter": 6, "random_state": 0, "executor": "inline", "checkpoint_every": 1}

    def interrupt(iteration: dfact.progress.Iteration) -> None:
        if iteration.number == 3:
            raise InterruptionError

    with pytest.raises(InterruptionError):
        dfact.ElasticCP(3, checkpoint=tmp_path / "c", callbacks=[interrupt], **settings).fit(X)
    resumed = dfact.ElasticCP(3, checkpoint=tmp_path / "c", **settings).fit(X)
    assert_same(resumed, dfact.ElasticCP(3, **settings).fit(X))


@pytest.mark.further
def test_growing_samples_reach_the_objective_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    X = answers(15_000, 3)
    ends = []
    for entries in (1 << 13, 1 << 40):
        monkeypatch.setattr(kept_sample, "_ENTRIES", entries)
        monkeypatch.setattr(kept_sample, "_OBSERVATIONS", 16)
        ends.append(dfact.ElasticCP(3, lam=3.0, random_state=0).fit(X).objective_history_[-1])
    assert ends[0] < 1.001 * ends[1]


def degenerate(size: int) -> Array:
    """A tensor of rank 3 that tensors of rank 2 approximate ever better, by components that cancel each other."""
    a, b = np.random.default_rng(0).standard_normal((2, size))
    products = [np.einsum("i,j,k->ijk", *vectors) for vectors in ((a, a, b), (a, b, a), (b, a, a))]
    return np.asarray(sum(products))


def test_components_that_cancel_each_other_are_reported() -> None:
    Z = degenerate(6)
    with pytest.warns(UserWarning, match="components 1 and 2 cancel each other: their cosine is -0.9.*fewer components"):
        model = dfact.ElasticCP(2, lam=1e-8, max_iter=500, random_state=0).fit(Z)
    assert np.isnan(model.remaining_)
    single = dfact.ElasticCP(1, lam=1e-8, random_state=0).fit(Z)
    assert single.remaining_ >= 0


@pytest.mark.parametrize("seed", [3, 4, 9])
def test_components_of_hardly_any_weight_cancel_no_other(seed: int) -> None:
    """Where one of three components takes a tensor of rank 1, the others have rounding errors only, and the fit converges."""
    rng = np.random.default_rng(seed)
    model = dfact.ElasticCP(3, lam=0, random_state=0).fit(np.einsum("i,j,k->ijk", *(rng.random(size) for size in (6, 5, 7))))
    assert model.weights_[1] < 1e-6 * model.weights_[0]
    assert np.isfinite(model.remaining_)
