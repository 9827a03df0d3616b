"""Start of expectile matrix factorization on a sample of the partitions: the same minimum, in fewer passes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray

import dfact
from dfact.data.layout import Layout
from dfact.models.expectile import alternation as emf_solver
from dfact.models.expectile import sampled_start as emf_sample
from dfact.models.expectile.sampled_start import sample_partitions
from dfact.progress import Iteration
from tests.cases import exhaustive_after, exhaustive_unless
from tests.conftest import CutRows


@pytest.fixture(autouse=True)
def small_partitions(cut_rows: CutRows) -> None:
    """Partitions of 64 rows of 40 columns, so that small data has many."""

    cut_rows(block_entries=1 << 11, partition_entries=1 << 12, chunk_entries=1 << 13)


class InterruptionError(Exception):
    """Error that ends the driver."""


def skewed(seed: int, n: int = 3000, observed: float = 0.7) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    V = rng.random((n, 3)) @ rng.random((3, 40)) + 0.2 * rng.exponential(1, (n, 40))
    V[rng.random(V.shape) > observed] = np.nan
    return V


def without_sample(model: dfact.ExpectileMF, V: NDArray[np.float64]) -> dfact.ExpectileMF:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emf_sample, "sample_partitions", lambda *_: ())
        return model.fit(V)


@pytest.mark.further
@pytest.mark.parametrize(
    ("tau", "solver", "ridge", "orthogonalize"),
    exhaustive_unless(
        lambda case: case[2] != 1.0,
        [
            (0.1, "exact", 1e-8, True),
            (0.1, "surrogate", 1.0, False),
            (0.1, "surrogate", 100.0, True),
            (0.5, "surrogate", 1e-8, False),
            (0.9, "exact", 1.0, False),
            (0.9, "exact", 100.0, True),
        ],
    ),
)
def test_the_minimum_is_that_of_all_rows(tau: float, solver: str, ridge: float, orthogonalize: bool) -> None:
    V = skewed(int(orthogonalize))
    settings: Any = {"tau": tau, "solver": solver, "ridge": ridge, "orthogonalize": orthogonalize}
    model = dfact.ExpectileMF(3, **settings).fit(V)
    whole = without_sample(dfact.ExpectileMF(3, **settings, tol=1e-7, max_iter=1000), V)
    assert model.objective_history_[-1] <= (1 + 5e-4) * whole.objective_history_[-1]
    assert (np.diff(model.objective_history_) <= 1e-12 * model.objective_history_[0]).all()


@pytest.mark.further
@pytest.mark.parametrize("tau", exhaustive_after(1, [0.1, 0.5]))
def test_the_first_pass_over_all_rows_nearly_reaches_the_minimum(tau: float) -> None:
    for seed in range(2):
        V = skewed(seed, 6000)
        model = dfact.ExpectileMF(3, tau=tau, tol=1e-5).fit(V)
        assert model.objective_history_[1] <= 1.03 * model.objective_history_[-1]
        assert model.n_iter_ <= without_sample(dfact.ExpectileMF(3, tau=tau, tol=1e-5), V).n_iter_


def test_a_start_at_the_minimum_is_not_resampled() -> None:
    """The SVD of complete data at τ = ½."""
    V = np.nan_to_num(skewed(4))
    model, whole = dfact.ExpectileMF(3, ridge=1e-8).fit(V), without_sample(dfact.ExpectileMF(3, ridge=1e-8), V)
    assert model.n_iter_ <= whole.n_iter_
    np.testing.assert_allclose(model.objective_history_[-1], whole.objective_history_[-1], rtol=1e-6)


def test_rows_sorted_by_their_sums_reach_the_same_minimum() -> None:
    V = skewed(0)
    V = V[np.argsort(np.nan_to_num(V).sum(axis=1))]
    model, whole = dfact.ExpectileMF(3, tau=0.2).fit(V), without_sample(dfact.ExpectileMF(3, tau=0.2), V)
    assert model.objective_history_[-1] <= (1 + 5e-4) * whole.objective_history_[-1]


@pytest.mark.further
@pytest.mark.filterwarnings("ignore:the model.s entries have a root mean square:UserWarning")  # noise without a ridge
@pytest.mark.parametrize("observed", [0.8, 0.3])
def test_every_executor_gives_the_same_bits(observed: float, client: Client, tmp_path: Path) -> None:
    V = skewed(1, observed=observed)
    stored = dfact.import_array(V, tmp_path / "v.zarr")
    assert sample_partitions(Layout.of(V.shape), 64 * 3)
    settings: Any = {"tau": 0.2, "max_iter": 4, "tol": 0}
    inline = dfact.ExpectileMF(2, **settings, executor="inline").fit(V)
    for executor in ("threads", client):
        model = dfact.ExpectileMF(2, **settings, executor=executor).fit(stored)
        np.testing.assert_array_equal(model.objective_history_, inline.objective_history_)
        np.testing.assert_array_equal(np.asarray(model.row_factors_), inline.row_factors_)


@pytest.mark.further
def test_several_taus_equal_single_fits() -> None:
    """Their samples take different numbers of passes."""
    V = skewed(2)
    taus = (0.05, 0.5, 0.9)
    together = dfact.ExpectileMF(3).fit_each(V, taus)
    for tau, model in zip(taus, together, strict=True):
        single = dfact.ExpectileMF(3, tau=tau).fit(V)
        np.testing.assert_array_equal(model.objective_history_, single.objective_history_)
        np.testing.assert_array_equal(model.row_factors_, single.row_factors_)


@pytest.mark.further
@pytest.mark.parametrize(("solver", "after"), exhaustive_after(2, [("exact", 1), ("surrogate", 3), ("exact", 3), ("surrogate", 1)]))
def test_an_interrupted_fit_ends_with_the_same_bits(after: int, solver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emf_solver, "_PLAIN_ITERATIONS", 1)

    def interrupt(iteration: Any) -> None:
        if iteration.number == after:
            raise InterruptionError

    V = skewed(3)
    settings: Any = {"tau": 0.2, "max_iter": 5, "tol": 0, "solver": solver}
    undisturbed = dfact.ExpectileMF(3, **settings).fit(V)
    settings |= {"checkpoint": tmp_path / "c.zarr", "checkpoint_every": 2}
    with pytest.raises(InterruptionError):
        dfact.ExpectileMF(3, **settings, callbacks=[interrupt]).fit(V)
    np.testing.assert_array_equal(dfact.ExpectileMF(3, **settings).fit(V).row_factors_, undisturbed.row_factors_)


@pytest.mark.parametrize("solver", ["exact", "surrogate"])
def test_callbacks_receive_the_sample_before_the_first_iteration(solver: str) -> None:
    heard: list[Iteration] = []
    dfact.ExpectileMF(3, tau=0.2, max_iter=2, tol=0, solver=solver, callbacks=[heard.append]).fit(skewed(4))
    numbers = [iteration.number for iteration in heard]
    assert numbers == [0] * (len(numbers) - 2) + [1, 2]
    assert [iteration.step for iteration in heard[:2]] == [f"pass {i} over a sample of the rows" for i in (1, 2)]


def test_samples_are_equidistant_and_small_data_has_none() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        shape = (int(rng.integers(1, 1_000_000)), int(rng.integers(1, 2000)))
        layout, n_rows = Layout.of(shape), int(rng.integers(1, 100_000))
        partitions = sample_partitions(layout, n_rows)
        if not partitions:
            assert n_rows > layout.n_rows // 16 or layout.n_partitions < 32
            continue
        assert list(partitions) == sorted(set(partitions))
        assert 0 <= partitions[0] <= layout.n_partitions // 8
        assert layout.n_partitions // 2 <= partitions[-1] < layout.n_partitions
        assert len(partitions) <= layout.n_partitions / 4
        assert len(partitions) * layout.partition_rows >= 0.5 * n_rows
