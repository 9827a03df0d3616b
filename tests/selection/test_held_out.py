"""Choosing by single entries that are held out."""

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

import dfact
from dfact.data.sources.dense import ZarrSource
from dfact.engine.passes import Block
from dfact.progress import Iteration
from dfact.report.selection import selection_text
from dfact.selection import entry_fits
from dfact.selection.entry_fits import EntryFits, Fit
from dfact.selection.held_out_entries import select_by_held_out
from dfact.selection.hidden_entries import ErrorMeasure
from dfact.selection.masks import EntryMask
from dfact.selection.result import Selection
from dfact.selection.results_store import BatchResults

GRID: dict[str, Any] = {"n_components": [1, 2, 4], "omega": [0.1, 0.5]}


def planted(seed: int, n: int = 200, m: int = 60, k: int = 3, observed: float = 0.5, noise: float = 0.03) -> NDArray[np.float64]:
    """A matrix of rank k with χ² noise, NaN where unobserved."""
    rng = np.random.default_rng(seed)
    M = rng.random((n, k)) @ rng.random((k, m)) + noise * rng.chisquare(3, (n, m))
    return np.where(rng.random((n, m)) < observed, M, np.nan)


def compressed(X: NDArray[np.float64]) -> sp.csr_array:
    places = np.nonzero(~np.isnan(X))
    return sp.csr_array((X[places], places), shape=X.shape)


def select(X: Any, grid: Any = None, **settings: Any) -> Selection:
    model = settings.pop("model", None) or dfact.ExpectileMF(ridge=0.1, dtype="float64", max_iter=20)
    return select_by_held_out(model, X, GRID if grid is None else grid, **({"random_state": 0} | settings))


def block(matrix: Any, index: int = 0) -> Block:
    return Block(matrix, None, index, 0, np.nan)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_the_share_of_the_observed_entries_is_hidden(seed: int, holdout_fraction: float) -> None:
    X = planted(seed)
    seen, hidden = (EntryMask(holdout_fraction, seed, 0, which)(block(X)).values for which in (False, True))
    observed = ~np.isnan(X)
    assert not (~np.isnan(seen) & ~np.isnan(hidden)).any()
    np.testing.assert_array_equal(np.where(np.isnan(seen), hidden, seen), X)
    count, total = np.count_nonzero(~np.isnan(hidden)), observed.sum()
    assert abs(count - holdout_fraction * total) < 4 * np.sqrt(total * holdout_fraction * (1 - holdout_fraction))


def test_what_is_hidden_follows_from_seed_repeat_and_block() -> None:
    X = planted(0)

    def hidden(seed: int = 0, repeat: int = 0, index: int = 0) -> NDArray[np.bool_]:
        return ~np.isnan(EntryMask(0.3, seed, repeat, hidden=True)(block(X, index)).values)

    np.testing.assert_array_equal(hidden(), hidden())
    for other in (hidden(seed=1), hidden(repeat=1), hidden(index=1)):
        assert (hidden() & other).sum() < 0.5 * hidden().sum()


@pytest.mark.parametrize("hidden", [False, True])
def test_row_compressed_blocks_stay_so(hidden: bool) -> None:
    X = planted(1)
    X[3] = np.nan
    A, veil = compressed(X), EntryMask(0.2, 0, 0, hidden)
    A.data[::7] = np.nan  # stored, yet missing
    found = veil(block(A)).matrix
    assert isinstance(found, sp.csr_array)
    assert found.nnz < A.nnz
    assert found.indices.dtype == A.indices.dtype
    expected = block(A).values
    np.testing.assert_array_equal(veil(block(A)).values, veil(block(expected)).values)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [1, 2, 5, 20_001])
def test_quantiles_are_numpys(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    b = rng.chisquare(3, size) + 0.01
    R = b * (1 + rng.standard_normal(size) * 10 ** rng.uniform(-3, 2))
    shares = (0.25, 0.5, 0.75)
    for error, unit, errors in (("relative", 1.0, np.abs(R / b - 1)), ("absolute", 7.0, np.abs(R - b))):
        measure = ErrorMeasure(error, unit=unit)
        half = size // 2  # what is counted apart adds up
        counts = measure.count(b[:half], R[:half]).accumulator()
        counts.add(measure.count(b[half:], R[half:]))
        np.testing.assert_allclose(measure.quantiles(counts.counts.sum(axis=0), shares), np.quantile(errors, shares), rtol=2e-3)


def test_errors_beyond_the_grid() -> None:
    b = np.array([1.0, 1.0, 1.0, 0.0, 2.0])
    counts = ErrorMeasure("relative").count(b, np.array([1.0, 1 + 1e-7, 1e9, 5.0, 1e12]))
    assert ErrorMeasure("relative").quantiles(counts.counts[0], (0.0, 0.3, 0.7, 1.0)) == [0, 0, np.inf, np.inf]
    assert counts.zeros == 1
    assert np.isnan(ErrorMeasure("relative").quantiles(np.zeros_like(counts.counts[0]), (0.5,)))


def test_bins_hold_their_lower_edges() -> None:
    measure = ErrorMeasure("relative", (0.0, 1.0, 2.0))
    b = np.array([-1.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    assert measure.count(b, b + 1).counts.sum(axis=1).tolist() == [1, 3, 2]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("observed", [0.2, 0.3])
def test_the_planted_number_is_found(seed: int, observed: float) -> None:
    X = planted(seed, 400, 120, observed=observed)
    selection = select(X, {"n_components": [1, 2, 3, 4, 6]}, random_state=seed, repeats=2)
    assert selection.best_params == {"n_components": 3}
    assert selection.model.components_.shape == (3, 120)
    assert selection.table["median"].idxmin() == 3


@pytest.mark.parametrize("seed", range(4))
def test_with_many_entries_too_many_components_cost_little(seed: int) -> None:
    median = select(planted(seed, 400, 120, observed=0.8), {"n_components": [1, 2, 3, 4, 6]}, random_state=seed, repeats=2).table["median"]
    assert median[2] > 1.2 * median[3]
    assert median[3] < 1.02 * median.min()


def test_ridge_and_omega_are_chosen() -> None:
    X = planted(0, 120, 60, observed=0.15, noise=0.3)
    selection = select(X, {"ridge": [1e-8, 0.1, 100.0], "omega": [0.1, 0.9]}, model=dfact.ExpectileMF(5))
    assert selection.best_params == {"ridge": 0.1, "omega": 0.1}
    assert selection.model.get_params()["ridge"] == 0.1
    assert list(selection.table.index.names) == ["ridge", "omega"]


def test_errors_are_those_of_fits_to_what_is_left() -> None:
    """The whole, put together anew: the veil, a fit, its prediction, NumPy's quantiles."""
    X = planted(2)
    X[5, ::2] = 0.0
    edges = [0.0, 0.5, 1.0, 5.0]
    model = dfact.ExpectileMF(2, omega=0.3, ridge=0.1, tol=1e-12, max_iter=300, dtype="float64", solver="exact")
    selection = select(X, {"n_components": [2]}, model=model, bins=edges, holdout_fraction=0.2)
    # One block, and the seed that random_state 0 gives.
    seed = int(np.random.RandomState(0).randint(2**31))  # scikit-learn's convention
    seen, held = (EntryMask(0.2, seed, 0, hidden)(block(X)).values for hidden in (False, True))
    rows, columns = np.nonzero(~np.isnan(held))
    b = held[rows, columns]
    errors = np.abs(dfact.ExpectileMF(**model.get_params()).fit(seen).predict(rows, columns) - b)
    row, kept = selection.table.iloc[0], b != 0
    assert (row["n"], row["zeros"]) == (kept.sum(), (~kept).sum())
    relative = errors[kept] / b[kept]
    np.testing.assert_allclose(row[["q25", "median", "q75"]].to_numpy(float), np.quantile(relative, [0.25, 0.5, 0.75]), rtol=2e-3)
    for low, high in pairwise(edges):
        expected = np.median(relative[(b[kept] >= low) & (b[kept] < high)])
        assert row[f"{low:g} to {high:g}"] == pytest.approx(expected, rel=2e-3)
    absolute = select(X, {"n_components": [2]}, model=model, error="absolute", holdout_fraction=0.2).table.iloc[0]
    assert absolute["n"] == len(b)
    assert absolute["median"] == pytest.approx(np.median(errors), rel=2e-3)


@pytest.mark.parametrize("solver", ["exact", "surrogate"])
def test_nothing_leaks(solver: str) -> None:
    X = planted(3)
    hidden = ~np.isnan(EntryMask(0.1, 5, 0, hidden=True)(block(X)).values)
    other = X.copy()
    other[np.nonzero(hidden)[0][7], np.nonzero(hidden)[1][7]] = 1e9
    fitted = []
    for data in (X, other):
        model = dfact.ExpectileMF(2, ridge=0.1, solver=solver)
        dataset = model._observed(data, reset=True)
        fits = EntryFits(dataset, ErrorMeasure("relative"), 0.1, BatchResults(None, {"seed": 5}, 10), np.dtype("float64"), "inline", None)
        fit = Fit(dfact.ExpectileMF(2, ridge=0.1, solver=solver, init="svd"), 0)
        start = fits._starts([fit])[0]
        (counts,) = fits.counts([fit])
        fitted.append((start, counts.counts))
    np.testing.assert_array_equal(fitted[0][0], fitted[1][0])
    # All errors but that of the entry itself are the same.
    assert np.abs(fitted[0][1] - fitted[1][1]).sum() == 2


def test_several_repeats_are_taken_together() -> None:
    X = planted(4)
    one, three = (select(X, repeats=repeats) for repeats in (1, 3))
    assert 2.7 * one.table["n"].iloc[0] < three.table["n"].iloc[0] < 3.3 * one.table["n"].iloc[0]
    assert select(X, random_state=1).table["median"].iloc[0] != one.table["median"].iloc[0]
    pd.testing.assert_frame_equal(select(X).table, one.table)


@pytest.mark.parametrize("sparse", [False, True])
def test_wherever_it_runs_and_lies(sparse: bool, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfact.data.layout._PARTITION_ENTRIES", 1 << 12)
    X: Any = planted(5, 500, 40, observed=0.2 if sparse else 0.7)
    X = compressed(X) if sparse else X
    stored = dfact.import_array(X, tmp_path / "x.zarr", **({"absent": "missing"} if sparse else {}))
    tables = [
        select(data, model=dfact.ExpectileMF(ridge=0.1, max_iter=8, executor=executor)).table
        for data, executor in ((X, "inline"), (X, "threads"), (X, client), (stored, "threads"), (stored, client))
    ]
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0], rtol=0, atol=0)


def test_sparse_and_dense_alike() -> None:
    X = planted(6, observed=0.2)
    model = dfact.ExpectileMF(ridge=0.1, tol=1e-9, dtype="float64")
    dense, sparse = (select(data, model=model).table for data in (X, compressed(X)))
    assert (dense["n"] == sparse["n"]).all()
    pd.testing.assert_frame_equal(dense, sparse, rtol=1e-3)


def test_configurations_share_each_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = dfact.import_array(planted(7), tmp_path / "x.zarr")
    reads: list[int] = []
    largest_batch, read = entry_fits.largest_batch, ZarrSource.read

    def none_kept(*args: Any) -> Any:
        count, plan = largest_batch(*args)
        return count, replace(plan, resident_values=0)

    def counted(self: ZarrSource, start: int, stop: int) -> NDArray[Any]:
        reads.append(start)
        return read(self, start, stop)

    monkeypatch.setattr(entry_fits, "largest_batch", none_kept)
    monkeypatch.setattr(ZarrSource, "read", counted)

    def count(grid: dict[str, Any], **settings: Any) -> int:
        reads.clear()
        select(stored, grid, model=dfact.ExpectileMF(2, ridge=0.1, max_iter=10, tol=0), **settings)
        return len(reads)

    one = count({"omega": [0.1]})
    assert one > 10
    assert count({"omega": [0.1, 0.5, 0.9], "ridge": [0.1, 1]}) == one
    assert count({"omega": [0.1, 0.5]}, repeats=2) == one


def test_few_fits_at_once_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    X, largest_batch = planted(8), entry_fits.largest_batch
    whole = select(X)

    def four(source: Any, dtype: Any, fits: Any, workers: Any) -> Any:
        counts.append(len(fits))
        return largest_batch(source, dtype, fits[:4], workers)

    monkeypatch.setattr(entry_fits, "largest_batch", four)
    pd.testing.assert_frame_equal(select(X).table, whole.table)
    assert counts == [1, 6, 2]


def test_as_many_components_as_rows_or_columns() -> None:
    X = planted(9, 30, 12)
    assert len(select(X, {"n_components": [3, 12]}).table) == 2
    assert len(select(planted(9, 8, 40, observed=0.9), {"n_components": [8]}).table) == 1


@pytest.mark.parametrize("init", ["random", np.random.default_rng(0).random((2, 60))])
def test_starts_of_the_models_own(init: Any) -> None:
    model = dfact.ExpectileMF(2, ridge=0.1, init=init, random_state=0)
    assert select(planted(10), {"omega": [0.2, 0.5]}, model=model).table["median"].max() < 1


def test_progress_and_text() -> None:
    told: list[Iteration] = []
    selection = select(planted(11), bins=[0, 0.5, 2], callbacks=[told.append])
    assert told[-1].limit == 6 * 20
    assert 6 < told[-1].number <= told[-1].limit
    assert told[-1].step.startswith("6 fits, iteration ")
    text = selection_text(selection)
    assert text.count("best") == 1
    assert text.splitlines()[0].split("  ")[-1] == "0.5 to 2"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 0.0}, "share is 0.0, expected a number between 0 and 1"),
        ({"share": 1.0}, "share is 1.0"),
        ({"share": "half"}, "share is 'half'"),
        ({"error": "squared"}, "error is 'squared', expected one of 'relative', 'absolute'"),
        ({"bins": [0, 1, 1]}, r"bins are \[0, 1, 1\], expected at least two numbers, each larger"),
        ({"bins": [3]}, "bins are"),
        ({"repeats": 0}, "repeats is 0, expected an integer of at least 1"),
        ({"grid": {"beta": [0.1]}}, "grid has 'beta', which is no parameter of ExpectileMF"),
        ({"grid": {}}, "grid is empty"),
        ({"grid": {"omega": [0.5, 1.0]}}, "omega is 1.0, expected a number between 0 and 1"),
        ({"grid": {"dtype": ["float32"]}}, "grid has 'dtype', which all fits share; set it in the model"),
        ({"model": dfact.ICQF()}, "model is a ICQF, expected an ExpectileMF"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(dfact.ParameterError, match=message):
        select(planted(12, 20, 10), **settings)


def test_nothing_to_tell() -> None:
    with pytest.raises(dfact.DataError, match=r"no entry is hidden that has a relative error: a share of 1e-06 of \d+ entries"):
        select(planted(13, 20, 10), holdout_fraction=1e-6)
    with pytest.raises(dfact.DataError, match="no entry is hidden that has a relative error"):
        select(np.zeros((20, 10)))
