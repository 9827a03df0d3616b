"""Sparse data whose implicit entries are missing equals the dense array with NaN."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from distributed import Client
from numpy.typing import NDArray

import dfact
from dfact.data.coerce import as_dataset, implicit_as_missing
from dfact.data.sources.base import ArraySource
from dfact.data.sources.sparse import CSRSource, StoredCSRSource, to_dense
from dfact.data.statistics import ColumnStatistics, as_float
from dfact.data.validation import first_outside, locate_outside
from dfact.engine.partitions import partitions
from dfact.linalg.svd import zero_filled
from tests.cases import unseal
from tests.conftest import CutRows, planted_answers

SEEDS = [0, 1]


def partly_stored(
    seed: int, shape: tuple[int, int] = (150, 9), stored: float = 0.6, dtype: Any = "float64"
) -> tuple[sp.csr_array, NDArray[Any]]:
    """Return answers of which a part is stored, including zeros, and the dense array with NaN for the others."""
    answers = planted_answers(*shape, 2, seed)
    kept = np.random.default_rng(seed).random(shape) < stored
    kept[:, 0] |= ~kept.any(axis=1)  # no row without any
    rows, columns = np.nonzero(kept)
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return sp.csr_array((answers[rows, columns].astype(dtype), columns, indptr), shape=shape), np.where(kept, answers, np.nan)


def decoded(dataset: dfact.Dataset) -> NDArray[Any]:
    return np.asarray(as_float(dataset.source.read(0, dataset.shape[0]), dataset.missing_code, np.dtype("float64")))


def assert_same_statistics(found: ColumnStatistics, expected: ColumnStatistics) -> None:
    for name in ("observed", "minimum", "maximum"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert (found.n_rows, found.n_empty_rows, found.empty_rows) == (expected.n_rows, expected.n_empty_rows, expected.empty_rows)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("implicit", [0.0, np.nan])
def test_statistics_are_those_of_the_dense_array(seed: int, implicit: float) -> None:
    X, _ = partly_stored(seed, stored=0.2)
    X.data[::5] = np.nan
    X = sp.csr_array(sp.vstack([X, sp.csr_array((20, 9))]))  # rows without any
    X = sp.csr_array(sp.hstack([X, sp.csr_array((170, 1))]))  # and a column
    found = ColumnStatistics.of_source(CSRSource(X, implicit_value=implicit))
    assert_same_statistics(found, ColumnStatistics.of_source(ArraySource(to_dense(X, implicit))))
    assert found.n_empty_rows >= 20 * np.isnan(implicit)


@pytest.mark.further
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
def test_slices_pickles_and_loads_keep_the_implicit_value(tmp_path: Path, dtype: str) -> None:
    X, expected = partly_stored(3, dtype=dtype)
    stored = dfact.import_array(X, tmp_path / "x.zarr", implicit="missing").source
    assert isinstance(stored, StoredCSRSource)
    for source in (CSRSource(X, implicit_value=np.nan), stored):
        part = pickle.loads(pickle.dumps(source.slice(slice(20, 90)))).slice(slice(10, None))
        np.testing.assert_array_equal(part.read(0, 60), expected[30:90])
        whole = partitions(part, None, None)
        for partition in (whole, whole.load()):
            (block,) = partition.blocks(np.dtype("float32"))
            assert sp.issparse(block.matrix)
            np.testing.assert_array_equal(block.values, expected[30:90])
            np.testing.assert_array_equal(zero_filled(block).toarray(), np.nan_to_num(expected[30:90]))


@pytest.mark.parametrize("seed", SEEDS)
def test_codes_are_decoded_among_implicit_entries(tmp_path: Path, seed: int) -> None:
    X, expected = partly_stored(seed, dtype="int16")
    expected[expected == 2] = np.nan
    dataset = dfact.import_array(X, tmp_path / "x.zarr", implicit="missing", missing=2, empty_rows="drop")
    np.testing.assert_array_equal(decoded(dataset), expected[~np.isnan(expected).all(axis=1)])
    assert dataset.missing_rate == pytest.approx(np.isnan(decoded(dataset)).mean())
    dataset.statistics.n_rows = dataset.shape[0]
    assert_same_statistics(dataset.statistics, ColumnStatistics.of_source(ArraySource(decoded(dataset))))
    blocks = partitions(dataset.source, dataset.missing_code, None).blocks(np.dtype("float64"))
    np.testing.assert_array_equal(np.concatenate([block.values for block in blocks]), decoded(dataset))


def test_stored_zeros_may_be_the_missing_code(tmp_path: Path) -> None:
    X, expected = partly_stored(0, dtype="int16")
    expected[expected == 0] = np.nan
    dataset = dfact.import_array(X, tmp_path / "x.zarr", implicit="missing", missing=0, empty_rows="drop")
    np.testing.assert_array_equal(decoded(dataset), expected[~np.isnan(expected).all(axis=1)])


@pytest.mark.parametrize("seed", SEEDS)
def test_import_keeps_the_implicit_value(tmp_path: Path, seed: int) -> None:
    X, expected = partly_stored(seed)
    zeros, missing = (dfact.import_array(X, tmp_path / implicit, implicit=implicit) for implicit in ("zero", "missing"))
    np.testing.assert_array_equal(decoded(zeros), np.nan_to_num(expected))
    np.testing.assert_array_equal(decoded(missing), expected)
    assert zeros.missing_rate == 0
    assert missing.missing_rate == pytest.approx(np.isnan(expected).mean())
    assert zeros.fingerprint != missing.fingerprint == dfact.open_dataset(tmp_path / "missing").fingerprint


def test_unknown_implicit_value_in_a_store_is_refused(tmp_path: Path) -> None:
    X, expected = partly_stored(0)
    before = dfact.import_array(X, tmp_path / "x.zarr")
    unseal(tmp_path / "x.zarr")
    values = zarr.open_group(tmp_path / "x.zarr", mode="r+")["values"]
    assert values.attrs["implicit"] == "zero"
    after = dfact.open_dataset(tmp_path / "x.zarr")
    np.testing.assert_array_equal(decoded(after), np.nan_to_num(expected))
    assert implicit_as_missing(implicit_as_missing(after)).fingerprint != before.fingerprint
    values.attrs["implicit"] = "ones"
    with pytest.raises(dfact.StoreError, match="the implicit entries of 'values' are 'ones', expected one of 'zero', 'missing'"):
        dfact.open_dataset(tmp_path / "x.zarr")
    del values.attrs["implicit"]
    with pytest.raises(dfact.StoreError, match="the implicit entries of 'values' are None, expected one of 'zero', 'missing'"):
        dfact.open_dataset(tmp_path / "x.zarr")


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_implicit_entries_can_be_taken_as_missing(tmp_path: Path, seed: int, stored: bool) -> None:
    X, expected = partly_stored(seed)
    given = as_dataset(dfact.import_array(X, tmp_path / "zero.zarr") if stored else X)
    dataset = implicit_as_missing(given)
    np.testing.assert_array_equal(decoded(dataset), expected)
    assert_same_statistics(dataset.statistics, ColumnStatistics.of_source(ArraySource(expected)))
    assert dataset.fingerprint == implicit_as_missing(given).fingerprint != given.fingerprint
    assert implicit_as_missing(dataset) is dataset
    np.testing.assert_array_equal(decoded(given), np.nan_to_num(expected))
    if stored:
        assert dataset.fingerprint == dfact.import_array(X, tmp_path / "missing.zarr", implicit="missing", valid_range=(0, 3)).fingerprint


def test_dense_data_stays_as_it_is() -> None:
    dataset = as_dataset(planted_answers(30, 4, 2, 0, missing=0.2))
    assert implicit_as_missing(dataset) is dataset


def test_missing_implicit_entries_are_never_outside_the_valid_range(tmp_path: Path) -> None:
    X, _ = partly_stored(0)
    X.data += 1
    assert first_outside(X, 1, 4) is not None
    assert first_outside(X, 1, 4, np.nan) is None
    X.data[5] = 7
    index, value = first_outside(X, 1, 4, np.nan) or ((), 0)
    assert (X[index], value) == (7, 7)
    dataset = dfact.import_array(X, tmp_path / "x.zarr", implicit="missing", valid_range=(1, 7))
    assert locate_outside(dataset, 1, 7) == "no entry"
    assert locate_outside(dataset, 1, 4).endswith("holds 7")
    with pytest.raises(dfact.DataError, match="holds 7, expected the valid range 1 to 4"):
        dfact.import_array(X, tmp_path / "y.zarr", implicit="missing", valid_range=(1, 4))
    with pytest.raises(dfact.DataError, match="holds 0, expected the valid range 1 to 7"):
        dfact.import_array(X, tmp_path / "y.zarr", valid_range=(1, 7))


def test_rows_and_columns_without_any_entry_are_refused(tmp_path: Path) -> None:
    X = sp.csr_array(np.array([[1.0, 0, 2], [0, 0, 0], [3, 0, 0]]))
    with pytest.raises(dfact.DataError, match="row 1 has no answer"):
        dfact.import_array(X, tmp_path / "x.zarr", implicit="missing")
    with pytest.raises(dfact.DataError, match="column '1' has no answer"):
        dfact.import_array(X, tmp_path / "x.zarr", implicit="missing", empty_rows="drop")
    dataset = dfact.import_array(X[:, [0, 2]], tmp_path / "x.zarr", implicit="missing", empty_rows="drop")
    assert (dataset.shape, dataset.dropped_rows) == ((2, 2), 1)


@pytest.mark.parametrize(
    ("X", "options", "match"),
    [
        (np.eye(3), {"implicit": "missing"}, r"implicit \(--implicit\) is 'missing' and X is dense, expected a sparse X"),
        (sp.eye_array(3), {"implicit": "nan"}, r"implicit \(--implicit\) is 'nan', expected 'zero' or 'missing'"),
        (sp.eye_array(3), {"implicit": "missing", "empty_rows": "keep"}, "empty_rows is 'keep'"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path: Path, X: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(dfact.ParameterError, match=match):
        dfact.import_array(X, tmp_path / "x.zarr", **options)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("solver", ["admm", "mm"])
@pytest.mark.parametrize("seed", SEEDS)
def test_icqf_treats_implicit_entries_as_missing(tmp_path: Path, seed: int, solver: str) -> None:
    X, expected = partly_stored(seed)
    imported = dfact.import_array(X, tmp_path / "x.zarr", implicit="missing")
    dense, *others = (
        dfact.ICQF(2, solver=solver, max_iter=15, tol=0).fit(data) for data in (expected, imported, implicit_as_missing(as_dataset(X)))
    )
    zeros = dfact.ICQF(2, solver=solver, max_iter=15, tol=0).fit(X)
    for fit in others:
        for name in ("components_", "factors_", "objective_history_"):
            np.testing.assert_allclose(getattr(fit, name), getattr(dense, name), rtol=1e-9, atol=1e-9)
    assert zeros.objective_history_[-1] > 1.1 * dense.objective_history_[-1]
    np.testing.assert_allclose(dense.transform(imported), dense.transform(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.needs("questionnaires")
@pytest.mark.further
@pytest.mark.parametrize("seed", SEEDS)
def test_other_models_treat_implicit_entries_as_missing(tmp_path: Path, seed: int) -> None:
    X, expected = partly_stored(seed, (300, 9), stored=0.9)
    X.data += 1
    expected += 1
    data = dfact.import_array(X, tmp_path / "x.zarr", implicit="missing")
    for make in (lambda: dfact.GradeOfMembership(2, random_state=0), lambda: dfact.FactorAnalysis(2), lambda: dfact.NMF(2)):
        found, dense = make().fit(data), make().fit(expected)
        np.testing.assert_allclose(found.components_, dense.components_, rtol=1e-6, atol=1e-8)


def test_memberships_of_shifted_answers(tmp_path: Path) -> None:
    X, expected = partly_stored(0, (300, 9), stored=0.9)
    shifted = dfact.import_array(X, tmp_path / "x.zarr", implicit="missing")
    shifted = replace(shifted, offset=np.ones(9))
    found, dense = (dfact.GradeOfMembership(2, random_state=0).fit(data) for data in (shifted, expected + 1))
    np.testing.assert_allclose(found.components_, dense.components_, rtol=1e-6, atol=1e-8)


@pytest.mark.further
def test_selection_treats_implicit_entries_as_missing(tmp_path: Path, client: Client, cut_rows: CutRows) -> None:
    X, expected = partly_stored(1, (400, 12))
    data = dfact.import_array(X, tmp_path / "x.zarr", implicit="missing")
    cut_rows(partition_entries=600)
    options: dict[str, Any] = {"grid": {"n_components": [1, 2]}, "n_blocks": (4, 4), "n_folds": 3, "random_state": 0}
    cases = ((expected, None, True), (data, None, True), (data, client, True), (data, None, False))
    tables = [
        dfact.selection.block_cross_validate(dfact.ICQF(executor=executor), given, in_memory=in_memory, **options).table.drop(
            columns="seconds"
        )
        for given, executor, in_memory in cases
    ]
    for table in tables[1:]:
        np.testing.assert_allclose(table.to_numpy(float), tables[0].to_numpy(float), rtol=1e-6)
    bic = [dfact.selection.select_by_criterion(dfact.ICQF(), given, [1, 2], random_state=0).table for given in (expected, data)]
    np.testing.assert_allclose(*bic, rtol=1e-6)
