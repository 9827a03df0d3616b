"""Selection by the errors on held-out entries."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from distributed import Client
from numpy.typing import NDArray
from scipy import optimize

import dfact
from dfact.data.sources.base import ZarrSource
from dfact.engine.block_state import RowFactors
from dfact.engine.passes import Block
from dfact.models.expectile.held_out_entries import held_out_errors, select_by_held_out, select_each_by_held_out
from dfact.models.expectile.held_out_errors import ErrorMeasure, ExpectileErrors, ExpectileErrorsPass
from dfact.models.expectile.passes import OriginalUnits
from dfact.progress import Iteration
from dfact.report.selection import selection_text
from dfact.selection.cross_validation.entry_fits import EntryFit
from dfact.selection.cross_validation.masks import EntryMask
from dfact.selection.result import Selection, fold_errors
from dfact.selection.running import scheduler
from dfact.selection.running.results_store import ResultsStore
from tests.conftest import CutRows

GRID: dict[str, Any] = {"n_components": [1, 2, 4], "ridge": [0.1, 1.0]}


def planted(seed: int, n: int = 200, m: int = 60, k: int = 3, observed: float = 0.5, noise: float = 0.03) -> NDArray[np.float64]:
    """A matrix of rank k with χ² noise, NaN where unobserved."""
    rng = np.random.default_rng(seed)
    M = rng.random((n, k)) @ rng.random((k, m)) + noise * rng.chisquare(3, (n, m))
    return np.where(rng.random((n, m)) < observed, M, np.nan)


def compressed(X: NDArray[np.float64]) -> sp.csr_array:
    positions = np.nonzero(~np.isnan(X))
    return sp.csr_array((X[positions], positions), shape=X.shape)


def select(X: Any, grid: Any = None, **settings: Any) -> Selection:
    model = settings.pop("model", None) or dfact.ExpectileMF(ridge=0.1, dtype="float64", max_iter=20)
    return select_by_held_out(model, X, GRID if grid is None else grid, **({"random_state": 0} | settings))


def block(matrix: Any, index: int = 0) -> Block:
    return Block(matrix, None, index, 0, np.nan)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("holdout_fraction", [0.05, 0.5])
def test_fraction_of_the_observed_entries_is_held_out(seed: int, holdout_fraction: float) -> None:
    X = planted(seed)
    training, test = (EntryMask(holdout_fraction, seed, 0, held_out)(block(X)).values for held_out in (False, True))
    observed = ~np.isnan(X)
    assert not (~np.isnan(training) & ~np.isnan(test)).any()
    np.testing.assert_array_equal(np.where(np.isnan(training), test, training), X)
    count, total = np.count_nonzero(~np.isnan(test)), observed.sum()
    assert abs(count - holdout_fraction * total) < 4 * np.sqrt(total * holdout_fraction * (1 - holdout_fraction))


def test_held_out_entries_depend_on_seed_repeat_and_block() -> None:
    X = planted(0)

    def held_out(seed: int = 0, repeat: int = 0, index: int = 0) -> NDArray[np.bool_]:
        return ~np.isnan(EntryMask(0.3, seed, repeat, held_out=True)(block(X, index)).values)

    np.testing.assert_array_equal(held_out(), held_out())
    for other in (held_out(seed=1), held_out(repeat=1), held_out(index=1)):
        assert (held_out() & other).sum() < 0.5 * held_out().sum()


@pytest.mark.parametrize("held_out", [False, True])
def test_masked_csr_blocks_are_csr(held_out: bool) -> None:
    X = planted(1)
    X[3] = np.nan
    A, mask = compressed(X), EntryMask(0.2, 0, 0, held_out)
    A.data[::7] = np.nan  # explicit, but missing
    found = mask(block(A)).matrix
    assert isinstance(found, sp.csr_array)
    assert found.nnz < A.nnz
    assert found.indices.dtype == A.indices.dtype
    expected = block(A).values
    np.testing.assert_array_equal(mask(block(A)).values, mask(block(expected)).values)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [1, 2, 5, 20_001])
def test_quantiles_agree_with_numpy(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    b = rng.chisquare(3, size) + 0.01
    R = b * (1 + rng.standard_normal(size) * 10 ** rng.uniform(-3, 2))
    probabilities = (0.25, 0.5, 0.75)
    for error, unit, errors in (("relative", 1.0, np.abs(R / b - 1)), ("absolute", 7.0, np.abs(R - b))):
        measure = ErrorMeasure(error, unit=unit)
        half = size // 2  # what is counted apart adds up
        counts = measure.count(b[:half], R[:half]).accumulator()
        counts.add(measure.count(b[half:], R[half:]))
        np.testing.assert_allclose(
            measure.quantiles(counts.counts.sum(axis=0), probabilities), np.quantile(errors, probabilities), rtol=2e-3
        )


def test_errors_beyond_the_steps_count_as_zero_or_infinite() -> None:
    b = np.array([1.0, 1.0, 1.0, 0.0, 2.0])
    counts = ErrorMeasure("relative").count(b, np.array([1.0, 1 + 1e-7, 1e9, 5.0, 1e12]))
    assert ErrorMeasure("relative").quantiles(counts.counts[0], (0.0, 0.3, 0.7, 1.0)) == [0, 0, np.inf, np.inf]
    assert counts.zeros == 1
    assert np.isnan(ErrorMeasure("relative").quantiles(np.zeros_like(counts.counts[0]), (0.5,)))


def test_bins_include_their_lower_edges() -> None:
    measure = ErrorMeasure("relative", (0.0, 1.0, 2.0))
    b = np.array([-1.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    assert measure.count(b, b + 1).counts.sum(axis=1).tolist() == [1, 3, 2]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("observed", [0.2, 0.3])
def test_the_planted_number_is_found(seed: int, observed: float) -> None:
    X = planted(seed, 400, 120, observed=observed)
    selection = select(X, {"n_components": [1, 2, 3, 4, 6]}, random_state=seed, n_repeats=2)
    assert selection.best_params == {"n_components": 3}
    assert selection.model.components_.shape == (3, 120)
    assert selection.table["median"].idxmin() == 3


@pytest.mark.parametrize("seed", range(2))
def test_with_many_entries_too_many_components_cost_little(seed: int) -> None:
    median = select(planted(seed, 400, 120, observed=0.8), {"n_components": [1, 2, 3, 4, 6]}, random_state=seed, n_repeats=2).table[
        "median"
    ]
    assert median[2] > 1.2 * median[3]
    assert median[3] < 1.02 * median.min()


@pytest.mark.further
def test_each_tau_gets_its_ridge() -> None:
    X = planted(0, 120, 60, observed=0.15, noise=0.3)
    model, grid, taus = dfact.ExpectileMF(5, ridge=0.1), {"ridge": [1e-8, 0.1, 100.0]}, [0.9, 0.1]
    selections = select_each_by_held_out(model, X, grid, taus, random_state=0, n_repeats=2)
    for tau, selection in zip(taus, selections, strict=True):
        assert selection.best_params["ridge"] in (0.1, 100.0)
        assert selection.best_params == {"ridge": selection.table["loss"].idxmin()[0], "tau": tau}
        assert selection.model.get_params()["tau"] == tau
        # The others of the grid do not matter.
        alone = select_by_held_out(dfact.ExpectileMF(5, tau=tau), X, grid, random_state=0, n_repeats=2).table
        np.testing.assert_array_equal(alone.to_numpy(), selection.table.to_numpy())
    high, low = (np.asarray(selection.model.row_factors_) @ selection.model.components_ for selection in selections)
    for selection, other in zip(selections, taus[::-1], strict=True):
        assert selection.model.taus_ == [other]  # type: ignore[attr-defined]
        assert selection.model.crossed_ == pytest.approx((low > high).mean(), abs=1e-3)  # type: ignore[attr-defined]
    for refused in ([0.1, 0.1], [], 0.1):
        with pytest.raises(dfact.ParameterError, match="taus is"):
            select_each_by_held_out(model, X, grid, refused)  # type: ignore[arg-type]
    with pytest.raises(dfact.ParameterError, match="grid has 'tau', expected other parameters"):
        select_each_by_held_out(model, X, {"tau": [0.1]}, [0.5])


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(2))
def test_coverage_is_that_of_the_definition(seed: int, tau: float) -> None:
    """At the expectile of a sample the shares agree with those of the definition, and a shift moves them in its direction."""
    rng = np.random.default_rng(seed)
    b = rng.chisquare(3, 4000)
    expectile = optimize.brentq(lambda e: tau * np.maximum(b - e, 0).sum() - (1 - tau) * np.maximum(e - b, 0).sum(), 0, 30)
    pass_ = ExpectileErrorsPass(OriginalUnits(None), ErrorMeasure("relative"), tau, np.dtype(np.float64))

    def errors(prediction: float) -> ExpectileErrors:
        rows = RowFactors(np.full((1, 400), prediction))
        return pass_.step(block(b.reshape(400, 10)), rows, np.ones((10, 1)))[1]

    found = errors(expectile).coverage(tau)
    assert found["below"] == pytest.approx((b < expectile).mean(), abs=1e-3)
    assert found["below_expected"] == pytest.approx(found["below"], rel=1e-6)
    assert found["deviation_below"] == pytest.approx(tau, rel=1e-6)
    assert errors(expectile * 1.2).coverage(tau)["deviation_below"] > tau > errors(expectile * 0.8).coverage(tau)["deviation_below"]
    losses = [errors(expectile * factor).losses.sum() for factor in (0.95, 1, 1.05)]
    assert losses[1] == min(losses) == pytest.approx((np.abs(tau - (b < expectile)) * (b - expectile) ** 2).sum())
    assert np.isnan(errors(1e9).coverage(tau)["below_expected"])


@pytest.mark.further
def test_errors_are_those_of_fits_to_the_remaining_entries() -> None:
    """The selection is reproduced from a mask, a fit, its prediction and NumPy's quantiles."""
    X = planted(2)
    X[5, ::2] = 0.0
    edges = [0.0, 0.5, 1.0, 5.0]
    model = dfact.ExpectileMF(2, tau=0.3, ridge=0.1, tol=1e-12, max_iter=300, dtype="float64", solver="exact")
    selection = select(X, {"n_components": [2]}, model=model, bins=edges, holdout_fraction=0.2)
    # One block, and the seed that random_state 0 gives.
    seed = int(np.random.RandomState(0).randint(2**31))  # scikit-learn's convention
    training, test = (EntryMask(0.2, seed, 0, held_out)(block(X)).values for held_out in (False, True))
    rows, columns = np.nonzero(~np.isnan(test))
    b = test[rows, columns]
    errors = np.abs(dfact.ExpectileMF(**model.get_params()).fit(training).predict_entries(rows, columns) - b)
    row, nonzero = selection.table.iloc[0], b != 0
    assert (row["n"], row["zeros"]) == (nonzero.sum(), (~nonzero).sum())
    relative = errors[nonzero] / b[nonzero]
    np.testing.assert_allclose(row[["q25", "median", "q75"]].to_numpy(float), np.quantile(relative, [0.25, 0.5, 0.75]), rtol=2e-3)
    for low, high in pairwise(edges):
        expected = np.median(relative[(b[nonzero] >= low) & (b[nonzero] < high)])
        assert row[f"{low:g} to {high:g}"] == pytest.approx(expected, rel=2e-3)
    predicted = dfact.ExpectileMF(**model.get_params()).fit(training).predict_entries(rows, columns)
    losses = np.abs(0.3 - (b < predicted)) * (b - predicted) ** 2
    assert row["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    groups = pd.DataFrame({"loss": losses, "n": 1.0}).groupby(rows % 20).sum()
    expected_errors = fold_errors(groups["loss"].to_numpy()[None, None], groups["n"].to_numpy()[None, None])
    assert row["se"] == pytest.approx(expected_errors["se"][0], rel=1e-6)
    assert row["below"] == pytest.approx((b < predicted).mean())
    low, high = np.maximum(predicted - b, 0).sum(), np.maximum(b - predicted, 0).sum()
    assert row["deviation_below"] == pytest.approx(low / (low + high), rel=1e-6)
    absolute = select(X, {"n_components": [2]}, model=model, error="absolute", holdout_fraction=0.2).table.iloc[0]
    assert absolute["n"] == len(b)
    assert absolute["median"] == pytest.approx(np.median(errors), rel=2e-3)


@pytest.mark.parametrize("solver", ["exact", "surrogate"])
def test_held_out_entries_do_not_affect_the_fit(solver: str) -> None:
    X = planted(3)
    held_out = ~np.isnan(EntryMask(0.1, 5, 0, held_out=True)(block(X)).values)
    other = X.copy()
    other[np.nonzero(held_out)[0][7], np.nonzero(held_out)[1][7]] = 1e9
    fitted = []
    for data in (X, other):
        model = dfact.ExpectileMF(2, ridge=0.1, solver=solver, init="svd", executor="inline")
        fit, store = EntryFit(model, model.prepare(data), EntryMask(0.1, 5, 0, held_out=False)), ResultsStore(None, {"seed": 5})
        [errors] = held_out_errors([fit], ErrorMeasure("relative"), store)
        fitted.append((store.entries[0, 0][0], errors.counts))
    np.testing.assert_array_equal(fitted[0][0], fitted[1][0])
    # All errors but that of the entry itself are the same.
    assert np.abs(fitted[0][1] - fitted[1][1]).sum() == 2


@pytest.mark.further
def test_errors_of_repeats_are_pooled() -> None:
    X = planted(4)
    one, three = (select(X, n_repeats=repeats) for repeats in (1, 3))
    assert 2.7 * one.table["n"].iloc[0] < three.table["n"].iloc[0] < 3.3 * one.table["n"].iloc[0]
    assert select(X, random_state=1).table["median"].iloc[0] != one.table["median"].iloc[0]
    pd.testing.assert_frame_equal(select(X).table, one.table)


@pytest.mark.further
@pytest.mark.parametrize("sparse", [False, True])
def test_executors_and_stores_agree(sparse: bool, tmp_path: Path, client: Client, cut_rows: CutRows) -> None:
    cut_rows(partition_entries=1 << 12)
    X: Any = planted(5, 500, 40, observed=0.2 if sparse else 0.7)
    X = compressed(X) if sparse else X
    stored = dfact.import_array(X, tmp_path / "x.zarr", **({"implicit": "missing"} if sparse else {}))
    tables = [
        select(data, model=dfact.ExpectileMF(ridge=0.1, max_iter=8, executor=executor)).table
        for data, executor in ((X, "inline"), (X, "threads"), (X, client), (stored, "threads"), (stored, client))
    ]
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0], rtol=0, atol=0)


def test_sparse_and_dense_data_agree() -> None:
    X = planted(6, observed=0.2)
    model = dfact.ExpectileMF(ridge=0.1, tol=1e-9, dtype="float64")
    dense, sparse = (select(data, model=model).table for data in (X, compressed(X)))
    assert (dense["n"] == sparse["n"]).all()
    pd.testing.assert_frame_equal(dense, sparse, rtol=1e-3)


@pytest.mark.further
def test_configurations_share_each_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = dfact.import_array(planted(7), tmp_path / "x.zarr")
    reads: list[int] = []
    largest_batch, read = scheduler.largest_batch, ZarrSource.read

    def without_cache(*args: Any) -> Any:
        count, plan = largest_batch(*args)
        return count, replace(plan, resident_values=0)

    def counted(self: ZarrSource, start: int, stop: int) -> NDArray[Any]:
        reads.append(start)
        return read(self, start, stop)

    monkeypatch.setattr(scheduler, "largest_batch", without_cache)
    monkeypatch.setattr(ZarrSource, "read", counted)

    def count(grid: dict[str, Any], **settings: Any) -> int:
        reads.clear()
        select(stored, grid, model=dfact.ExpectileMF(2, ridge=0.1, max_iter=10, tol=0), **settings)
        return len(reads)

    one = count({"tau": [0.1]})
    assert one > 10
    assert count({"ridge": [0.1, 0.3, 1]}) == one
    assert count({"ridge": [0.1, 1]}, n_repeats=2) == one


def test_short_memory_runs_fewer_fits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    X, largest_batch = planted(8), scheduler.largest_batch
    expected = select(X)

    def four(source: Any, dtype: Any, fits: Any, workers: Any) -> Any:
        counts.append(len(fits))
        return largest_batch(source, dtype, fits[:4], workers)

    monkeypatch.setattr(scheduler, "largest_batch", four)
    pd.testing.assert_frame_equal(select(X).table, expected.table)
    assert counts == [1, 6, 2]


def test_as_many_components_as_rows_or_columns() -> None:
    X = planted(9, 30, 12)
    assert len(select(X, {"n_components": [3, 12]}).table) == 2
    assert len(select(planted(9, 8, 40, observed=0.9), {"n_components": [8]}).table) == 1


@pytest.mark.parametrize("init", ["random", np.random.default_rng(0).random((2, 60))])
def test_starts_of_the_model_are_used(init: Any) -> None:
    model = dfact.ExpectileMF(2, ridge=0.1, init=init, random_state=0)
    assert select(planted(10), {"ridge": [0.1, 0.2]}, model=model).table["median"].max() < 1


def test_progress_and_text() -> None:
    reported: list[Iteration] = []
    selection = select(planted(11), bins=[0, 0.5, 2], callbacks=[reported.append])
    assert reported[-1].limit == 6 * 20
    assert 6 < reported[-1].number <= reported[-1].limit
    assert reported[-1].step.startswith("6 fits, iteration ")
    text = selection_text(selection)
    assert text.count("best") == 1
    assert text.splitlines()[0].split("  ")[-1] == "0.5 to 2"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"holdout_fraction": 0.0}, "holdout_fraction is 0.0, expected a number between 0 and 1"),
        ({"holdout_fraction": 1.0}, "holdout_fraction is 1.0"),
        ({"holdout_fraction": "half"}, "holdout_fraction is 'half'"),
        ({"error": "squared"}, "error is 'squared', expected one of 'expectile', 'relative', 'absolute'"),
        ({"grid": {"tau": [0.5, 0.1]}}, "grid has 2 values of tau, expected one: tau is the target"),
        ({"bins": [0, 1, 1]}, r"bins are \[0, 1, 1\], expected at least two numbers, each larger"),
        ({"bins": [3]}, "bins are"),
        ({"n_repeats": 0}, "n_repeats is 0, expected an integer from 1 to 1000"),
        ({"n_repeats": 2**31}, "n_repeats is 2147483648, expected"),
        ({"grid": {"beta": [0.1]}}, "grid has 'beta', which is not a parameter of ExpectileMF"),
        ({"grid": {}}, "grid is empty"),
        ({"grid": {"tau": [1.0]}}, "tau is 1.0, expected a number between 1e-6 and 1 - 1e-6"),
        ({"grid": {"dtype": ["float32"]}}, "grid has 'dtype', expected parameters that may differ between fits; set it in the model"),
        ({"model": dfact.ICQF()}, "model is a ICQF, expected an ExpectileMF"),
    ],
)
def test_wrong_parameters_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(dfact.ParameterError, match=message):
        select(planted(12, 20, 10), **settings)


def test_too_few_held_out_entries_are_an_error() -> None:
    with pytest.raises(
        dfact.DataError, match=r"no held-out .* expectile error: holdout_fraction is 1e-06 of \d+ entries, expected a larger"
    ):
        select(planted(13, 20, 10), holdout_fraction=1e-6)
    with pytest.raises(dfact.DataError, match="no held-out entry has a relative error"):
        select(np.zeros((20, 10)), error="relative")
