"""Hidden values are missing, whatever hides them and wherever they enter: a mask, a null, a declared code, None."""

import importlib
import importlib.util
import re
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr
from dask import delayed
from distributed import Client
from numpy.typing import NDArray

import dfact
from dfact import selection
from dfact.data.coerce import as_dataset
from dfact.data.confounders import as_frame
from dfact.data.replicate_weights import ReplicateWeights
from dfact.data.sources.array import LabelledArray
from dfact.data.sources.entrance import as_arrays, as_numbers
from dfact.data.statistics import as_float
from dfact.models.cp.core_consistency import core_consistency
from dfact.models.cp.path import checked_lambdas
from dfact.selection.cross_validation.folds import resolve_groups, resolve_strata
from tests.cases import further_unless, of_installed
from tests.data.test_frames import Stream

N, M = 40, 6
CODE = -999
"""What is below the masks: an answer, for whoever ignores them."""
SINGLE, DOUBLE = np.float32, np.float64
_rng = np.random.default_rng(5)
ANSWERS = _rng.integers(0, 3, (N, M))
HIDDEN = _rng.random((N, M)) < 0.15
PLAIN = np.where(HIDDEN, np.nan, ANSWERS)


class Interchange:
    """A frame of another library that has the interchange of data frames alone."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any:
        return self._rows.__dataframe__(nan_as_null=nan_as_null, allow_copy=allow_copy)


class Foreign:
    """An array of another library that becomes a masked one."""

    def __init__(self, values: Any) -> None:
        self._values, self.shape, self.dtype = values, values.shape, values.dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._values


class Counts(np.ma.MaskedArray):  # type: ignore[type-arg]
    """A masked array of another library, such as astropy's."""


def masked(dtype: Any, code: float = CODE, **settings: Any) -> Any:
    return np.ma.masked_array(np.where(HIDDEN, code, ANSWERS).astype(dtype), HIDDEN, **settings)


def objects(*missing: Any) -> NDArray[Any]:
    """Numbers as objects, the hidden ones replaced by the given ones in turn."""
    values = ANSWERS.astype(object)
    for number, (i, j) in enumerate(np.argwhere(HIDDEN)):
        values[i, j] = missing[number % len(missing)]
    return values


def columns(kind: Any) -> pd.DataFrame:
    return pd.DataFrame({str(j): pd.array(objects(pd.NA)[:, j], dtype=kind) for j in range(M)})


def table(kind: pa.DataType | None = None) -> pa.Table:
    arrays = [pa.array(objects(None)[:, j], kind or pa.int64()) for j in range(M)]
    return pa.table({str(j): array for j, array in enumerate(arrays)})


def memory_mapped() -> Any:
    path = Path("answers.bin")
    masked(DOUBLE).filled(CODE).tofile(path)
    return np.ma.masked_array(np.memmap(path, DOUBLE, "r", shape=(N, M)), HIDDEN)


def coded(**attributes: Any) -> Any:
    return xr.DataArray(np.where(HIDDEN, CODE, ANSWERS).astype(np.int16), dims=("row", "item"), attrs=attributes)


def stored(**attributes: Any) -> Any:
    array = zarr.create_array(zarr.storage.MemoryStore(), shape=(N, M), chunks=(N, M), dtype=np.int16, fill_value=0, attributes=attributes)
    array[:] = np.where(HIDDEN, CODE, ANSWERS)
    return array


def of_file(**attributes: Any) -> Any:
    """An open dataset of an HDF5 file, which lies in memory."""
    dataset = h5py.File(f"{next(_names)}.h5", "w", driver="core", backing_store=False).create_dataset("X", data=coded().to_numpy())
    dataset.attrs.update(attributes)
    return dataset


def polars() -> Any:
    if importlib.util.find_spec("polars") is None:
        pytest.skip("polars is not installed: pip install 'dfact[test]'")
    return importlib.import_module("polars")


def wider() -> Any:
    whole = np.ma.masked_all((2 * N, M + 3))
    whole[::2, 1 : M + 1] = masked(DOUBLE)
    return whole[::2][:, 1 : M + 1]


def undeclared_blocks() -> Any:
    """A dask array that is declared as one of plain chunks, and computes masked ones."""
    return da.from_array(np.arange(N)[:, None], chunks=(16, 1)).map_blocks(
        lambda rows: masked(DOUBLE)[rows.ravel()], dtype=DOUBLE, chunks=((16, 16, 8), (M,)), meta=np.empty((0, 0))
    )


INPUTS: dict[str, tuple[Callable[[], Any], type[np.floating]]] = {
    "masked floats": (lambda: masked(DOUBLE), DOUBLE),
    "masked single floats": (lambda: masked(SINGLE), SINGLE),
    "masked long doubles": (lambda: masked(np.longdouble), DOUBLE),
    "masked floats of the other byte order": (lambda: masked(">f8"), DOUBLE),
    "masked integers": (lambda: masked(np.int64), DOUBLE),
    "masked short integers": (lambda: masked(np.int16), SINGLE),
    "masked bytes, the fill value among the answers": (lambda: masked(np.uint8, 2, fill_value=2), SINGLE),
    "masked NaN": (lambda: masked(DOUBLE, np.nan), DOUBLE),
    "masked infinity": (lambda: masked(DOUBLE, np.inf), DOUBLE),
    "half masked, half NaN": (lambda: np.ma.masked_array(np.where(HIDDEN & (np.arange(M) < 3), np.nan, ANSWERS), HIDDEN), DOUBLE),
    "a hard mask": (lambda: masked(DOUBLE, hard_mask=True), DOUBLE),
    "a read-only masked array": (lambda: _read_only(masked(DOUBLE)), DOUBLE),
    "masked in Fortran order": (lambda: np.ma.masked_array(np.asfortranarray(masked(DOUBLE).data), np.asfortranarray(HIDDEN)), DOUBLE),
    "a view of a larger masked array": (wider, DOUBLE),
    "a subclass of masked arrays": (lambda: masked(DOUBLE).view(Counts), DOUBLE),
    "a masked memory map": (memory_mapped, DOUBLE),
    "masked objects": (lambda: masked(object), DOUBLE),
    "another library's array": (lambda: Foreign(masked(DOUBLE)), DOUBLE),
    "objects with None": (lambda: objects(None), DOUBLE),
    "objects with all sorts of missing values": (
        lambda: objects(None, pd.NA, np.nan, pd.NaT, np.ma.masked, np.ma.array(7, mask=True)),
        DOUBLE,
    ),
    "lists with None": (lambda: objects(None).tolist(), DOUBLE),
    "lists with masked elements": (lambda: objects(np.ma.masked).tolist(), DOUBLE),
    "lists with masked integers": (lambda: objects(np.ma.array(7, mask=True)).tolist(), DOUBLE),
    "a list of masked rows": (lambda: list(masked(DOUBLE)), DOUBLE),
    "a tuple of lists and masked rows": (lambda: (ANSWERS[0].tolist(), *masked(np.int64)[1:]), DOUBLE),
    "a frame of nullable integers": (lambda: columns("Int64"), DOUBLE),
    "a frame of nullable bytes": (lambda: columns("Int8"), SINGLE),
    "a frame of nullable floats": (lambda: columns("Float64"), DOUBLE),
    "a frame of Arrow's integers": (lambda: columns("int64[pyarrow]"), DOUBLE),
    "a frame of texts": (lambda: columns("Int64").astype("string"), DOUBLE),
    "a frame of objects": (lambda: pd.DataFrame(objects(None, pd.NA, np.ma.masked)), DOUBLE),
    "a frame of a masked array": (lambda: pd.DataFrame(masked(DOUBLE)), DOUBLE),
    "a table of Arrow": (table, DOUBLE),
    "a table of Arrow's bytes": (lambda: table(pa.int8()), SINGLE),
    "a table of Arrow's dictionaries": (
        lambda: pa.table({name: column.dictionary_encode() for name, column in zip(table().column_names, table().columns, strict=True)}),
        DOUBLE,
    ),
    "a stream of Arrow": (lambda: Stream(table()), DOUBLE),
    "a frame with the interchange": (lambda: Interchange(table()), DOUBLE),
    "a DataArray of a masked array": (lambda: xr.DataArray(masked(np.int16)), SINGLE),
    "a DataArray of masked blocks": (lambda: xr.DataArray(da.from_array(masked(DOUBLE), chunks=(16, 4))), DOUBLE),
    "a DataArray with _FillValue": (lambda: coded(_FillValue=np.int16(CODE)), SINGLE),
    "a lazy DataArray with missing_value": (lambda: coded(missing_value=CODE).chunk({"row": 16}), SINGLE),
    "a Zarr array with _FillValue": (lambda: stored(_FillValue=CODE), SINGLE),
    "an open dataset of h5py with _FillValue": (lambda: of_file(_FillValue=np.int16(CODE)), SINGLE),
    "a frame of polars": (lambda: polars().from_arrow(table()), DOUBLE),
    "a lazy frame of polars": (lambda: polars().from_arrow(table()).lazy(), DOUBLE),
    "an array of a file with a code": (lambda: LabelledArray(masked(np.int16).data, missing=(CODE, 1e9)), SINGLE),
    "a masked array of a file": (lambda: LabelledArray(masked(np.int16)), SINGLE),
    "masked blocks": (lambda: da.from_array(masked(DOUBLE), chunks=(16, M)), DOUBLE),
    "masked blocks of integers": (lambda: da.from_array(masked(np.int16), chunks=(16, 4)), SINGLE),
    "masked and plain blocks": (lambda: da.concatenate([da.from_array(masked(DOUBLE)[:30]), da.from_array(PLAIN[30:])]), DOUBLE),
    "masked blocks that are not declared": (undeclared_blocks, DOUBLE),
    "a Dask frame": (lambda: dd.from_pandas(columns("Int64"), npartitions=2), DOUBLE),
}


def _read_only(array: Any) -> Any:
    array.data.flags.writeable = False
    array.mask.flags.writeable = False
    return array


ESTIMATORS: dict[str, Callable[[], Any]] = of_installed(
    {
        "ICQF": lambda: dfact.ICQF(2, max_iter=2),
        "NMF": lambda: dfact.NMF(2, max_iter=2),
        "PCA": lambda: dfact.PCA(2, max_iter=2),
        "FactorAnalysis": lambda: dfact.FactorAnalysis(2),
        "ExpectileMF": lambda: dfact.ExpectileMF(2, ridge=0.1, max_iter=2),
        "GradeOfMembership": lambda: dfact.GradeOfMembership(2, random_state=0),
        "Admixture": lambda: dfact.Admixture(2, max_iter=2, random_state=0),
        "ElasticCP": lambda: dfact.ElasticCP(2, lam=0.1, max_iter=2, n_init=1, init="random", random_state=0),
        "CPALS": lambda: dfact.CPALS(2, max_iter=2, random_state=0),
    }
)
_names = count()


def parts(value: Any) -> list[NDArray[Any]]:
    """The arrays of a result, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    return [part for each in value for part in parts(each)] if isinstance(value, (list, tuple)) else [np.asarray(value)]


@cache
def fitted(name: str, dtype: Any) -> Any:
    with quietly():
        return ESTIMATORS[name]().fit(PLAIN.astype(dtype))


def updated(X: Any) -> Any:
    model = deepcopy(fitted("PCA", DOUBLE))
    return parts([model.partial_fit(X).components_, model.factors_])


def imported(X: Any) -> Any:
    dataset = dfact.import_array(X, f"{next(_names)}.zarr")
    statistics = dataset.statistics
    values = as_float(dataset.source.read(0, N), dataset.missing_code, np.dtype(DOUBLE))
    return [statistics.observed, statistics.minimum, statistics.maximum, values]


ENTRANCES: dict[str, Callable[[Any], Any]] = of_installed(
    {
        **{f"{name}.fit": (lambda X, make=make: parts(make().fit(X).components_)) for name, make in ESTIMATORS.items()},
        **{
            f"{name}.transform": (lambda X, name=name: fitted(name, DOUBLE).transform(X))
            for name in ("ICQF", "PCA", "Admixture")
            if name in ESTIMATORS
        },
        "fit_transform": lambda X: dfact.NMF(2, max_iter=2).fit_transform(X),
        "partial_fit": updated,
        "score": lambda X: fitted("NMF", DOUBLE).score(X),
        "predict": lambda X: fitted("ExpectileMF", DOUBLE).predict(X),
        "column_loadings": lambda X: fitted("NMF", DOUBLE).column_loadings(X),
        "describe": lambda X: dfact.describe(X).items.select_dtypes("number").to_numpy(),
        "import_array": imported,
        "concatenate": lambda X: [dfact.concatenate([X, X]).statistics.observed],
        "plan": lambda X: [dfact.plan(dfact.PCA(2), X).working],
        "core_consistency": lambda X: core_consistency(fitted("CPALS", DOUBLE), X),
    }
)


@contextmanager
def quietly() -> Iterator[None]:
    """Ignore warnings of fits that end early and of rows and columns without entries; those of NumPy's masks are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", ".*masked element.*")
        yield


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with dask.config.set(scheduler="synchronous"):
        yield


_expected: dict[Any, Any] = {}


REPRESENTATIVE = {
    "masked floats",
    "masked short integers",
    "objects with None",
    "a frame of nullable integers",
    "a table of Arrow",
    "a frame with the interchange",
    "a DataArray with _FillValue",
    "masked blocks",
}
"""Inputs of the default tests: one of each kind of array."""


@pytest.mark.parametrize("kind", further_unless(REPRESENTATIVE.__contains__, INPUTS))
def test_hidden_answers_are_missing(kind: str) -> None:
    make, dtype = INPUTS[kind]
    for entrance, call in ENTRANCES.items():
        if entrance.startswith("plan") and re.search("Zarr|DataArray|blocks|Dask", kind):
            continue  # the plan of stored data differs from that of data in memory, and lazy data are planned by shape and type alone
        with quietly():
            if (entrance, dtype) not in _expected:
                _expected[entrance, dtype] = parts(call(PLAIN.astype(dtype)))
            found = parts(call(make()))
        for one, other in zip(found, _expected[entrance, dtype], strict=True):
            np.testing.assert_array_equal(one, other, err_msg=entrance)


UNKNOWN = (3, 7)
"""Rows whose weight, confounder or label is hidden."""


def hidden_rows(values: Any, missing: Any) -> list[Any]:
    return [missing if i in UNKNOWN else value for i, value in enumerate(values)]


def masked_rows(values: Any) -> Any:
    return np.ma.masked_array(values, np.isin(np.arange(len(values)), UNKNOWN))


COLUMNS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "masked": masked_rows,
    "masked by one": lambda values: np.ma.masked_array(
        np.where(np.isin(np.arange(len(values)), UNKNOWN), values[0], values), masked_rows(values).mask
    ),
    "masked objects": lambda values: masked_rows(values.astype(object)),
    "objects with a missing value of pandas": lambda values: np.array(hidden_rows(values, pd.NA), dtype=object),
    "objects with masked elements": lambda values: np.array([*hidden_rows(values, np.ma.masked), None], dtype=object)[:-1],
    "a list with None": lambda values: hidden_rows(values.tolist(), None),
    "a list with masked elements": lambda values: hidden_rows(values.tolist(), np.ma.masked),
    "a series": lambda values: pd.Series(hidden_rows(values.tolist(), None)).convert_dtypes(),
    "a series of objects": lambda values: pd.Series(hidden_rows(values.tolist(), pd.NA), dtype=object),
    "a series of Arrow": lambda values: pd.Series(hidden_rows(values.tolist(), None)).convert_dtypes(dtype_backend="pyarrow"),
    "an array of Arrow": lambda values: pa.array(hidden_rows(values.tolist(), None)),
    "chunks of Arrow": lambda values: pa.chunked_array([hidden_rows(values.tolist(), None)[:9], hidden_rows(values.tolist(), None)[9:]]),
    "a dictionary of Arrow": lambda values: pa.array(hidden_rows(values.tolist(), None)).dictionary_encode(),
    "a series of polars": lambda values: polars().Series(hidden_rows(values.tolist(), None)),
    "a DataArray": lambda values: xr.DataArray(masked_rows(values)),
    "masked blocks": lambda values: da.from_array(masked_rows(values), chunks=16),
}
WEIGHTS = _rng.integers(1, 4, N)
TEXTS = np.array(["north", "south"])[_rng.integers(0, 2, N)]
GROUPS = np.arange(N) % 2


def replicates(weights: Any) -> Any:
    """Two columns of weights, as the kind of their input has them."""
    if isinstance(weights, np.ma.MaskedArray):
        return np.ma.stack([weights, weights], axis=1)
    if isinstance(weights, list):
        return [[weight, weight] for weight in weights]
    return pd.DataFrame({"a": pd.Series(np.asarray(as_numbers("weights", weights))), "b": 1.0})


REFUSALS: dict[str, tuple[Callable[[Any], Any], str]] = of_installed(
    {
        "ICQF.fit": (lambda w: dfact.ICQF(2).fit(PLAIN, sample_weight=w), "sample_weight of row 3 is missing"),
        "NMF.fit": (lambda w: dfact.NMF(2).fit(PLAIN, sample_weight=w), "sample_weight of row 3 is missing"),
        "FactorAnalysis.fit": (lambda w: dfact.FactorAnalysis(2).fit(PLAIN, sample_weight=w), "sample_weight of row 3 is missing"),
        "fit_transform": (lambda w: dfact.NMF(2).fit_transform(PLAIN, sample_weight=w), "sample_weight of row 3 is missing"),
        "partial_fit": (lambda w: dfact.ICQF(2).partial_fit(PLAIN, sample_weight=w), "sample_weight of row 3 is missing"),
        "describe": (lambda w: dfact.describe(PLAIN, sample_weight=w), "sample_weight of row 3 is missing"),
        "import_array": (lambda w: dfact.import_array(PLAIN, "d.zarr", weights=w), "sample_weight of row 3 is missing"),
        "column_loadings": (lambda w: fitted("NMF", DOUBLE).column_loadings(PLAIN, sample_weight=w), "sample_weight of row 3 is missing"),
        "block_cross_validate": (
            lambda w: selection.block_cross_validate(dfact.ICQF(), PLAIN, {"n_components": [1, 2]}, sample_weight=w),
            "sample_weight of row 3 is missing",
        ),
        "replicate weights": (
            lambda w: ReplicateWeights.of(replicates(w), N, method="jk1"),
            "of row 3 is missing",
        ),
        "slice_variances": (
            lambda w: dfact.ElasticCP(2, slice_variances=[w, np.ones(M)]).fit(PLAIN),
            "slice_variances holds numbers that are not finite numbers above 0",
        ),
        "row labels": (lambda w: dfact.import_array(PLAIN, "d.zarr", row_labels=w), "row_labels is missing at position 3"),
        "labels of a mode": (
            lambda w: dfact.import_array(np.ones((2, 3, N)), "d.zarr", mode_labels=[w]),
            "mode_labels of mode 3 is missing at position 3",
        ),
        "groups": (lambda w: resolve_groups(w, N), "groups is missing at position 3"),
        "lambdas": (checked_lambdas, "expected increasing numbers of at least 0"),
    }
)


@pytest.mark.parametrize("kind", COLUMNS)
def test_hidden_weights_and_labels_are_refused(kind: str) -> None:
    for entrance, (call, words) in REFUSALS.items():
        with quietly(), pytest.raises(dfact.DfactError, match=words):
            call(COLUMNS[kind](WEIGHTS if entrance != "row labels" else TEXTS))


def of_table(confounders: Any) -> Any:
    values = as_frame(confounders, N).iloc[:, 0]
    return [values.cat.codes, values.cat.categories] if isinstance(values.dtype, pd.CategoricalDtype) else values


def of_import(confounders: Any) -> Any:
    return dfact.import_array(PLAIN, f"{next(_names)}.zarr", confounders=confounders).confounders.iloc[:, 0]


def icqf(confounders: Any) -> Any:
    model = dfact.ICQF(2, max_iter=2).fit(PLAIN, confounders=confounders)
    return [model.components_, model.confounder_components_, model.transform(PLAIN, confounders=confounders)]


def supervised(populations: Any) -> Any:
    model = dfact.Admixture(2, max_iter=2, supervised=True).fit(PLAIN, populations=populations)
    return [model.row_populations_ == "", model.memberships_]


OPTIONAL: dict[str, tuple[Callable[[Any], Any], tuple[NDArray[Any], ...]]] = of_installed(
    {
        "confounders of ICQF": (icqf, (_rng.normal(40, 9, N), TEXTS)),
        "confounders of import_array": (of_import, (_rng.integers(18, 90, N),)),
        "a confounder": (of_table, (WEIGHTS, TEXTS, GROUPS == 1)),
        "a confounder with a name": (lambda values: of_table({"site": values}), (WEIGHTS, TEXTS, GROUPS == 1)),
        "strata": (lambda labels: resolve_strata(labels, None, N), (GROUPS, TEXTS)),
        "Admixture, supervised": (supervised, (TEXTS,)),
    }
)
CASES = {f"{name}: {values.dtype}": (call, values) for name, (call, several) in OPTIONAL.items() for values in several}


@pytest.mark.parametrize("kind", COLUMNS)
def test_hidden_confounders_and_populations_are_missing(kind: str) -> None:
    for case, (call, values) in CASES.items():
        if kind == "a DataArray" and values.dtype == bool:
            continue  # xarray makes numbers of masked truth values
        with quietly():
            if case not in _expected:
                _expected[case] = parts(call(np.array(hidden_rows(values.tolist(), np.nan), dtype=object)))
            found = parts(call(COLUMNS[kind](values)))
        for one, other in zip(found, _expected[case], strict=True):
            np.testing.assert_array_equal(one, other, err_msg=case)


@pytest.mark.parametrize("mask", [np.ma.nomask, np.zeros((N, M), bool)])
@pytest.mark.parametrize("dtype", [np.int8, np.int64, SINGLE, DOUBLE])
def test_a_mask_that_hides_nothing_costs_nothing(dtype: Any, mask: Any) -> None:
    data = ANSWERS.astype(dtype)
    found = as_arrays(np.ma.masked_array(data, mask))
    assert (type(found), found.dtype) == (np.ndarray, dtype)
    assert np.shares_memory(found, data)


def test_plain_arrays_are_not_copied() -> None:
    for X in (PLAIN, PLAIN[::2, ::-1], np.asfortranarray(PLAIN), ANSWERS.astype(np.uint8)):
        assert as_arrays(X) is X
    frame = pd.DataFrame(PLAIN)
    assert as_arrays(frame) is frame


def test_hidden_entries_are_filled_in_one_copy() -> None:
    X = np.ma.masked_array(np.ones((1000, 1000)), np.eye(1000, dtype=bool))
    tracemalloc.start()
    as_arrays(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2 * X.data.nbytes


def test_the_given_array_stays_as_it_is() -> None:
    X = masked(DOUBLE)
    before = X.data.copy()
    dfact.PCA(2, max_iter=2).fit(X)
    np.testing.assert_array_equal(X.data, before)
    np.testing.assert_array_equal(X.mask, HIDDEN)


@pytest.mark.parametrize("hidden", [np.ma.masked_all((N, M)), np.full((N, M), np.nan), pd.DataFrame(np.full((N, M), None))])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_data_without_any_observed_entry_is_refused(name: str, hidden: Any) -> None:
    with quietly(), pytest.raises(dfact.DataError, match=r"X \(40×6\) has no observed entry, expected at least one"):
        ESTIMATORS[name]().fit(hidden)


def test_hidden_rows_and_columns_are_treated_as_missing_ones() -> None:
    X = np.ma.masked_array(np.full((N, M), 1.0), False)
    X[:] = ANSWERS
    X[4] = np.ma.masked
    with pytest.warns(UserWarning, match="row 4 has no observed entry"):
        dfact.ICQF(2, max_iter=2).fit(X)
    X[:, 2] = np.ma.masked
    with pytest.raises(dfact.DataError, match="column '2' has no observed entry"):
        dfact.ICQF(2, max_iter=2).fit(X)


STRUCTURED = np.zeros(N, [("a", DOUBLE), ("b", DOUBLE)])


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize(
    ("X", "words"),
    [
        (STRUCTURED, "structured array with the fields a, b"),
        (STRUCTURED.view(np.recarray), "structured array with the fields a, b"),
        (np.ma.masked_array(STRUCTURED, [(True, False)] * N), "structured array with the fields a, b"),
        (np.ma.masked, "has shape"),
        (np.ma.masked_array(1.0, True), "has shape"),
        (masked_rows(WEIGHTS), "has shape"),
        (np.ma.masked_array([["a", "b"], ["c", "d"]], [[True, False], [False, False]]), "expected numbers"),
        ([["a", None], ["b", "c"]], "expected numbers"),
        ([[1, 2], [3]], "rows of the same length"),
        ([*np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], True), [1.0]], "rows of the same length"),
        (masked(complex), "Complex data not supported"),
        (np.ma.masked_array(np.zeros((N, M), "M8[s]"), HIDDEN), "expected numbers"),
    ],
)
def test_masked_arrays_of_other_things_are_refused(X: Any, words: str) -> None:
    with quietly(), pytest.raises(dfact.DataError, match=words):
        as_dataset(X)
    with quietly(), pytest.raises(ValueError):  # noqa: PT011  # of scikit-learn, for some
        dfact.ICQF(2).fit(X)


def test_blocks_that_hide_entries_and_are_declared_as_plain_integers_are_refused() -> None:
    X = da.from_array(ANSWERS, chunks=(16, M)).map_blocks(
        lambda block: np.ma.masked_equal(block, 1), dtype=np.int64, meta=np.empty((0, 0), np.int64)
    )
    for call in (dfact.NMF(2).fit, dfact.PCA(2).fit, lambda X: fitted("PCA", DOUBLE).transform(X).compute()):
        with pytest.raises(dfact.DataError, match="hides entries, and X is declared as an array of int64"):
            call(X)


def test_masked_blocks_stay_lazy() -> None:
    computed = []

    def block(rows: Any) -> Any:
        computed.append(len(rows))
        return masked(DOUBLE)[rows.ravel()]

    X = da.from_array(np.arange(N)[:, None], chunks=(16, 1)).map_blocks(
        block, dtype=DOUBLE, chunks=((16, 16, 8), (M,)), meta=np.ma.empty((0, 0))
    )
    computed.clear()
    lazy = fitted("ICQF", DOUBLE).transform(X)
    assert not computed
    np.testing.assert_array_equal(lazy[20:].compute(), fitted("ICQF", DOUBLE).transform(PLAIN)[20:])
    assert computed
    assert max(computed) <= 16
    dfact.import_array(X, "lazy.zarr")


@pytest.mark.further
@pytest.mark.parametrize(("stored_type", "dtype", "declared"), [(DOUBLE, DOUBLE, True), (np.int16, SINGLE, True), (DOUBLE, DOUBLE, False)])
def test_masked_blocks_on_a_cluster(stored_type: Any, dtype: Any, declared: bool, client: Client) -> None:
    X = masked(stored_type)
    meta = (np.ma.empty if declared else np.empty)((0, 0), stored_type)
    blocks = [da.from_delayed(delayed(part), part.shape, meta=meta) for part in (X[:16], X[16:32], X[32:])]
    lazy = da.concatenate(blocks)
    model, expected = dfact.ICQF(2, max_iter=2, executor=client), fitted("ICQF", dtype)
    with quietly(), dask.config.set(scheduler=None):
        np.testing.assert_array_equal(model.fit(lazy).components_, expected.components_)
        np.testing.assert_array_equal(model.transform(lazy).compute(), expected.transform(PLAIN.astype(dtype)))


def test_masked_entries_of_a_sparse_matrix_are_missing() -> None:
    X = sp.csr_array(np.where(HIDDEN, CODE, ANSWERS).astype(DOUBLE))
    hidden, plain = X.data == CODE, X.copy()
    plain.data[hidden] = np.nan
    X.data = np.ma.masked_array(X.data, hidden)
    for make in (ESTIMATORS["ICQF"], ESTIMATORS["NMF"], ESTIMATORS["ExpectileMF"]):
        with quietly():
            np.testing.assert_array_equal(make().fit(X).components_, make().fit(plain).components_)
    assert isinstance(X.data, np.ma.MaskedArray)


def test_a_declared_code_that_the_type_cannot_hold_hides_nothing() -> None:
    X = xr.DataArray(np.array([[25, 1], [2, 3]], np.uint8), attrs={"_FillValue": -999.0, "missing_value": 231.5})  # -999 wraps to 25
    np.testing.assert_array_equal(as_arrays(X).data, X.data, strict=True)


def test_open_datasets_of_h5py_are_labels_and_weights(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["weights"], file["X"] = WEIGHTS, ANSWERS
        file.create_dataset("labels", data=[f"p{i}" for i in range(N)], dtype=h5py.string_dtype())
        dataset = dfact.import_array(file["X"], tmp_path / "d.zarr", weights=file["weights"], row_labels=file["labels"])
    assert dataset.weights is not None
    np.testing.assert_array_equal(dataset.weights, WEIGHTS)
    assert list(dataset.row_labels)[:2] == ["p0", "p1"]


def test_a_code_of_a_zarr_array_becomes_that_of_the_dataset() -> None:
    dataset = dfact.import_array(stored(_FillValue=CODE), "coded.zarr")
    assert (dataset.dtype, dataset.missing_code) == (np.int16, CODE)
    assert dataset.statistics.observed.sum() == (~HIDDEN).sum()


def test_labels_of_masked_integers_are_those_of_integers() -> None:
    labels = np.ma.masked_array(np.arange(N), False)
    for given in (labels, pa.array(np.arange(N)), pd.Series(np.arange(N), dtype="Int64"), np.arange(N)):
        assert list(dfact.import_array(PLAIN, f"{next(_names)}.zarr", row_labels=given).row_labels[:2]) == ["0", "1"]


@pytest.mark.parametrize("name", ["init", "factors", "q_max", "bounds", "A", "columns"])
def test_hidden_values_of_parameters_are_not_taken_as_values(name: str) -> None:
    items = np.ma.masked_array(np.ones(M), np.arange(M) == 0)
    loadings = np.ma.stack([items, items])
    if name == "factors":
        assert np.isnan(fitted("NMF", DOUBLE).inverse_transform(loadings[:, :2])[0]).all()
        return
    calls: dict[str, Callable[[], Any]] = {
        "init": lambda: dfact.ICQF(2, init=loadings).fit(PLAIN),
        "q_max": lambda: dfact.ICQF(2, q_max=items).fit(PLAIN),
        "bounds": lambda: dfact.ICQF(2, bounds=(0, 2 * items)).fit(PLAIN),
        "A": lambda: dfact.ExpectileMF(1, ridge=0.1).fit_measurements(np.ma.masked_all((4, 2, 3)), np.ones(4), (2, 3)),
        "columns": lambda: fitted("ExpectileMF", DOUBLE).predict_entries([0, 1], np.ma.masked_array([0, 1], [False, True])),
    }
    with pytest.raises((dfact.DataError, dfact.ParameterError), match=f"{name}|A or b"):
        calls[name]()


@pytest.mark.needs("questionnaires")
def test_hidden_rows_of_groups_belong_to_none() -> None:
    rng = np.random.default_rng(0)
    X = np.clip(np.rint(2 + rng.normal(size=(240, 1)) + rng.normal(size=(240, 6))), 0, 4)
    by = np.where(np.arange(240) < 20, "none", np.array(["a", "b"])[np.arange(240) % 2])
    model = dfact.FactorAnalysis(1).fit(X)
    with quietly():
        plain, found = (
            selection.compare_groups(model, X, labels, n_resamples=30, test=False, random_state=0)
            for labels in (np.where(by == "none", None, by.astype(object)), np.ma.masked_equal(by, "none"))
        )
    np.testing.assert_array_equal(plain.congruence, found.congruence)
