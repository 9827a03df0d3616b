"""The parts of scikit-learn's interface that come from its own classes on first use."""

import io
import pickle
import sys
from copy import copy, deepcopy
from html.parser import HTMLParser
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn
import xarray as xr
import zarr
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags

import dfact
from dfact.data.memory_limit import FreeMemory
from dfact.models import scikit_learn
from dfact.models.estimator import MODELS
from dfact.models.provenance import SelectionRecord
from tests.cases import of_slice
from tests.conftest import planted_answers
from tests.data.test_frames import Stream


def test_metadata_is_routed_through_a_pipeline() -> None:
    X, weights = np.random.default_rng(0).random((40, 6)), np.r_[np.zeros(20), np.ones(20)]
    with sklearn.config_context(enable_metadata_routing=True):
        model = dfact.ICQF(2, random_state=0, max_iter=5).set_fit_request(sample_weight=True)
        assert model.get_metadata_routing().fit.requests == {"confounders": None, "sample_weight": True}
        assert model.get_metadata_routing().transform.requests == {"confounders": None}
        with pytest.raises(TypeError, match=r"Unexpected args: \{'out'\}"):
            model.set_transform_request(out=True)
        fitted = make_pipeline(model).fit(X, sample_weight=weights)[-1]
        alone = dfact.ICQF(2, random_state=0, max_iter=5).fit(X, sample_weight=weights)
    np.testing.assert_array_equal(fitted.components_, alone.components_)
    assert fitted.weighted_


def test_a_clone_keeps_its_container() -> None:
    X = np.random.default_rng(0).random((30, 5))
    out = clone(dfact.ICQF(2, random_state=0, max_iter=3).set_output(transform="pandas")).fit_transform(X)
    assert list(out.columns) == ["F1", "F2"]
    with sklearn.config_context(transform_output="pandas"):
        assert list(dfact.ICQF(2, random_state=0, max_iter=3).fit(X).transform(X)) == ["F1", "F2"]


def test_representations_and_tags_are_those_of_scikit_learn() -> None:
    model = dfact.ICQF(3, beta=0.5)
    assert repr(model) == "ICQF(beta=0.5, n_components=3)"
    assert "ICQF" in model._repr_html_()
    assert get_tags(model).input_tags.allow_nan
    assert MODELS["ICQF"] is dfact.ICQF  # the class that scikit-learn's bases are added to is not a further model


@pytest.mark.needs("questionnaires")
@pytest.mark.filterwarnings("ignore:the correlation with the rest of the scale is negative")
def test_notebooks_show_what_was_found(tmp_path: Path) -> None:
    frame = pd.DataFrame(planted_answers(120, 8, 2, 0), columns=["<b>Q1</b>", *(f"Q{j}" for j in range(2, 9))])
    model = dfact.ICQF(2, random_state=0).fit(frame)
    first = model.loadings_.iloc[:, 0]
    shown = model._repr_mimebundle_()["text/html"]
    assert f"<td>{first.abs().idxmax()} {first.abs().max():.2f}" in shown
    tensor = dfact.ElasticCP(2, random_state=0).fit(np.random.default_rng(0).random((9, 5, 4)))
    record = SelectionRecord.from_table(pd.DataFrame({"error": [2.0, 1.0]}, pd.Index([1, 2], name="n_components")), 1, "error", "min")
    selection = dfact.selection.Selection(
        pd.DataFrame({"error": [2.0, 1.0]}, pd.Index([1, 2], name="n_components")), {"n_components": 2}, model
    )
    views = [
        model,
        dfact.plan(model, frame),
        dfact.describe(frame),
        dfact.import_array(frame, tmp_path / "x.zarr"),
        record,
        selection,
        tensor,
    ]
    for view in views:
        html = view._repr_html_()
        assert "<b>Q1" not in html
        HTMLParser().feed(html)
        assert len(html) < 60_000
    for chosen in (record, selection):
        assert chosen._repr_html_().count("✓") == 1
    assert repr(record) == "<SelectionRecord of 2 candidates by error (min): n_components=2>"


def test_invalid_names_and_unfitted_models_are_refused() -> None:
    with pytest.raises(ValueError, match="Invalid parameter 'rank' for estimator ICQF"):
        dfact.ICQF().set_params(rank=3)
    with pytest.raises(NotFittedError, match="This ICQF instance is not fitted yet"):
        dfact.ICQF().transform(np.ones((3, 3)))
    with pytest.raises(AttributeError, match="'ICQF' object has no attribute 'rank_'"):
        dfact.ICQF().rank_  # noqa: B018  # the access is what is tested


def frames(X: np.ndarray) -> dict[str, object]:
    """The same table as frames of several libraries."""
    table = pd.DataFrame(X, columns=list("abcdef"))
    return {"pandas": table, "pyarrow": pa.table(table), "another library": Stream(pa.table(table))}


@pytest.mark.parametrize("kind", ["pandas", "pyarrow", "another library"])
def test_names_of_any_frame_are_kept_and_compared(kind: str) -> None:
    X = planted_answers(60, 6, 2, 0)
    model, frame = dfact.ICQF(2, random_state=0).fit(frames(X)["pandas"]), frames(X)[kind]
    assert list(dfact.ICQF(2, max_iter=3).fit(frame).column_labels_) == list("abcdef")
    np.testing.assert_array_equal(model.transform(frame), model.transform(frames(X)["pandas"]))
    backwards = pa.table(frame).select(list("fedcba"))
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform({"pandas": backwards.to_pandas(), "pyarrow": backwards, "another library": Stream(backwards)}[kind])


def test_confounders_of_any_frame_keep_their_names() -> None:
    X, ages = planted_answers(60, 6, 2, 0), pa.table({"age": np.arange(60.0), "site": ["north", "south"] * 30})
    model = dfact.ICQF(2, random_state=0, max_iter=3).fit(X, confounders=ages)
    assert model.confounder_encoding_.names == ("age", "site")


def test_ordered_categories_are_numbers_with_labels() -> None:
    X = planted_answers(60, 6, 2, 0)
    texts = ["never", "seldom", "often", "always"]
    frame = pd.DataFrame({f"Q{j}": pd.Categorical.from_codes(X[:, j].astype(int), texts, ordered=True) for j in range(6)})
    model = dfact.ICQF(2, random_state=0).fit(frame)
    numbers = pd.DataFrame(X + 1, columns=frame.columns).astype(np.float32)
    np.testing.assert_array_equal(model.components_, dfact.ICQF(2, random_state=0).fit(numbers).components_)
    assert model.codebook_["Q0"].levels == ((1, "never"), (2, "seldom"), (3, "often"), (4, "always"))
    arrow = pa.Table.from_pandas(frame)
    np.testing.assert_array_equal(model.transform(arrow), model.transform(frame))
    enum = pa.field("Q0", pa.dictionary(pa.int32(), pa.string()), metadata={b"_PL_ENUM_VALUES2": b""})  # as polars declares an Enum
    plain = arrow.replace_schema_metadata(None)
    columns = [plain["Q0"].cast(enum.type), *(plain[name] for name in plain.column_names[1:])]
    np.testing.assert_array_equal(
        model.transform(Stream(pa.table(columns, schema=pa.schema([enum, *list(plain.schema)[1:]])))), model.transform(frame)
    )
    reversed_levels = frame.assign(Q0=frame["Q0"].cat.reorder_categories(texts[::-1], ordered=True))
    with pytest.raises(dfact.DataError, match="item 'Q0' has the levels 1 always"):
        model.transform(reversed_levels)


FRAMES_REFUSED = {
    "column 'b' of X holds text": lambda frame: frame.assign(b="often"),
    "column 'b' of X holds datetime": lambda frame: frame.assign(b=pd.Timestamp("2020-01-01")),
    "column 'b' of X holds 2 categories without an order": lambda frame: frame.assign(b=pd.Categorical(["x", "y"] * 15)),
    "column 'b' of X holds complex128": lambda frame: frame.assign(b=1j),
    "2 columns of the name 'a'": lambda frame: frame.set_axis(list("aacdef"), axis=1),
    "columns of 2 levels": lambda frame: frame.set_axis(pd.MultiIndex.from_product([["s"], list("abcdef")]), axis=1),
    "xarray Dataset with the variables answers.*X\\['answers'\\]": lambda frame: xr.Dataset({"answers": (("row", "item"), frame)}),
    "Zarr group with the arrays none": lambda _: zarr.create_group({}),
}


@pytest.mark.parametrize("match", FRAMES_REFUSED)
def test_frames_that_hold_no_answers_are_refused_by_column(match: str) -> None:
    frame = pd.DataFrame(planted_answers(30, 6, 2, 0), columns=list("abcdef"))
    with pytest.raises(dfact.DataError, match=match):
        dfact.ICQF(2).fit(FRAMES_REFUSED[match](frame))


def test_rows_of_several_levels_and_wide_numbers_are_taken() -> None:
    X = planted_answers(30, 6, 2, 0)
    index = pd.MultiIndex.from_product([["north", "south"], range(15)])
    assert dfact.ICQF(2, max_iter=3).fit(pd.DataFrame(X, index)).row_labels_[1] == "north/1"
    wide, plain = (dfact.ICQF(2, random_state=0, max_iter=3).fit(X.astype(kind)) for kind in (np.longdouble, np.float64))
    np.testing.assert_array_equal(wide.components_, plain.components_)


def test_dask_frames_keep_names_and_bits() -> None:
    frame = pd.DataFrame(planted_answers(60, 6, 2, 0), columns=list("abcdef"))
    lazy = dd.from_pandas(frame, npartitions=3)
    model = dfact.ICQF(2, random_state=0, executor="inline").fit(lazy)
    expected = dfact.ICQF(2, random_state=0, executor="inline").fit(frame)
    np.testing.assert_array_equal(model.components_, expected.components_)
    assert list(model.column_labels_) == list("abcdef")
    np.testing.assert_array_equal(model.transform(lazy).compute(), expected.transform(frame))
    with pytest.raises(dfact.DataError, match="column 0 of X is 'f'"):
        model.transform(lazy[list("fedcba")])


MODELS_TO_SCORE = [
    dfact.ICQF(2, random_state=0),
    dfact.NMF(2, random_state=0),
    *of_slice("FactorAnalysis", 2),
    dfact.GradeOfMembership(2, random_state=0),
    dfact.ExpectileMF(2, random_state=0),
    dfact.ElasticCP(2, random_state=0),
    dfact.CPALS(2, random_state=0),
]


@pytest.mark.parametrize("model", MODELS_TO_SCORE, ids=lambda model: type(model).__name__)
def test_the_score_is_the_share_that_the_model_explains(model: dfact.ICQF) -> None:
    rng = np.random.default_rng(1)
    X = planted_answers(300, 12, 3, 1)
    X = X if isinstance(model, dfact.ICQF) else X + rng.random(X.shape)  # items that vary
    if isinstance(model, dfact.GradeOfMembership):
        X = (rng.random((300, 12)) < np.where(rng.random((300, 1)) < 0.5, 0.95, 0.6)).astype(float)
    if not isinstance(model, (dfact.ElasticCP, dfact.CPALS)):
        X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    fitted, new = clone(model).fit(X[:200]), X[200:]
    model_entries = np.asarray(fitted.inverse_transform(np.asarray(fitted.transform(new), float)))
    centre = 0 if fitted.traits.tensor else np.nanmean(new, axis=0)
    expected = 1 - np.nansum((new - model_entries) ** 2) / np.nansum((new - centre) ** 2)
    assert fitted.score(new) == pytest.approx(expected, rel=1e-6)
    assert fitted.score(new) < 1


def test_the_score_chooses_in_a_grid_and_counts_stored_data(tmp_path: Path) -> None:
    X = planted_answers(120, 8, 2, 0)
    search = GridSearchCV(dfact.ICQF(random_state=0, callbacks=[dfact.Progress("fit", io.StringIO())]), {"n_components": [1, 2]}, cv=2)
    assert search.fit(X).best_params_ == {"n_components": 2}
    data = dfact.import_array(X, tmp_path / "x.zarr")
    for stored in (data, tmp_path / "x.zarr"):
        assert dfact.ICQF(2, random_state=0).fit(data).score(stored) == pytest.approx(
            dfact.ICQF(2, random_state=0).fit(X).score(X), rel=1e-6
        )
    model = dfact.ICQF(2, random_state=0).fit(data)
    assert model.score(data) == pytest.approx(model.explained_share_, abs=1e-3)
    assert np.isnan(dfact.ICQF(1).fit(X).score(np.ones((5, 8))))


def test_results_of_stored_data_become_frames_and_pickles(tmp_path: Path) -> None:
    X = planted_answers(120, 8, 2, 0)
    data = dfact.import_array(X, tmp_path / "x.zarr")
    model = dfact.ICQF(2, random_state=0).set_output(transform="pandas").fit(data)
    np.testing.assert_array_equal(pd.DataFrame(model.factors_), model.factors_[:])
    assert list(model.transform(data)) == ["F1", "F2"]
    dfact.save_model(model, tmp_path / "x.model")
    np.testing.assert_array_equal(pd.DataFrame(dfact.load_model(tmp_path / "x.model").factors_), model.factors_[:])
    expected, pickled, copied = model.factors_[:], pickle.dumps(model), deepcopy(model)
    assert copy(model).factors_ is model.factors_
    del model  # and its temporary folder
    for restored in (pickle.loads(pickled), copied):
        np.testing.assert_array_equal(restored.factors_, expected)
        assert list(restored.transform(data)) == ["F1", "F2"]


def test_factors_too_large_to_pickle_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dfact.ICQF(2, random_state=0, max_iter=3).fit(dfact.import_array(planted_answers(60, 8, 2, 0), tmp_path / "x.zarr"))
    monkeypatch.setattr(scikit_learn, "free_memory", lambda: FreeMemory(100, "the test"))
    with pytest.raises(dfact.StoreError, match=r"factors_ of the model lie in a temporary folder.*dfact\.save_model"):
        pickle.dumps(model)


def test_a_fit_that_stops_early_warns(recwarn: pytest.WarningsRecorder) -> None:
    X = planted_answers(60, 6, 2, 0)
    with pytest.warns(dfact.ConvergenceWarning, match="ICQF did not converge in 2 iterations; increase max_iter") as caught:
        dfact.ICQF(2, max_iter=2).fit(X)
    assert issubclass(caught[0].category, sklearn.exceptions.ConvergenceWarning)  # as scikit-learn is imported here
    assert caught[0].filename == __file__
    recwarn.clear()
    assert dfact.ICQF(2, random_state=0, max_iter=1000).fit(X).converged_
    assert not recwarn.list


@pytest.mark.parametrize("executor", [pd.DataFrame({"answers": [3, 1]}), "dask"])
def test_messages_do_not_print_data(executor: object) -> None:
    with pytest.raises(dfact.ParameterError, match=r"expected None, 'inline'.* address such as") as raised:
        dfact.ICQF(2, executor=executor).fit(np.ones((3, 3)))
    assert "answers" not in str(raised.value)
    with pytest.raises(dfact.ParameterError, match="the location is a DataFrame, expected a path"):
        dfact.open_dataset(pd.DataFrame({"answers": [3, 1]}))  # type: ignore[arg-type]


def test_progress_ends_with_the_fit_and_is_copied() -> None:
    stream = io.StringIO()
    progress = dfact.Progress("fit", stream)
    model = dfact.ICQF(2, random_state=0, callbacks=[progress]).fit(planted_answers(60, 6, 2, 0))
    assert stream.getvalue().splitlines()[-1].startswith(f"fit: {model.n_iter_} of 200")
    assert deepcopy(progress).stream is stream
    restored = pickle.loads(pickle.dumps(dfact.Progress("fit", every=2)))
    assert (restored.name, restored.every, restored.stream) == ("fit", 2, sys.stderr)
