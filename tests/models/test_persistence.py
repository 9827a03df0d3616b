"""A loaded model equals the saved one, or is refused."""

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from dataclasses import is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.cluster import KMeans
from sklearn.exceptions import NotFittedError

import dfact
from dfact.catalogue import CATALOGUE
from dfact.models import persistence
from dfact.models.fitted_schema import Shape, UniformColumns
from dfact.models.persistence import annotate_model, saved_versions
from dfact.models.provenance import Stability
from tests.cases import exhaustive_after
from tests.conftest import CutRows, planted_answers

N, M, K = 300, 24, 3


class Interrupted(BaseException):
    """A process that is killed."""


def confounders() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame({"age": rng.uniform(18, 80, N), "site": rng.choice(["a", "b", None], N)})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> dfact.Dataset:
    path = tmp_path_factory.mktemp("data") / "answers.zarr"
    labels = {"row_labels": [f"p{i}" for i in range(N)], "column_labels": [f"item {j}" for j in range(M)]}
    levels = tuple((float(code), f"level {code}") for code in range(4))
    items = [dfact.Item(f"item {j}", f"Question {j}", levels, missing=(dfact.MissingCount("9", "refused", j),)) for j in range(M)]
    X = planted_answers(N, M, K, 0, 0.1).astype(np.float32)
    return dfact.import_array(X, path, confounders=confounders(), codebook=dfact.Codebook(tuple(items)), **labels)


@pytest.fixture(scope="module")
def model(dataset: dfact.Dataset) -> dfact.ICQF:
    return dfact.ICQF(K, bounds=(0, 3), max_iter=20).fit(dataset)


@pytest.fixture(scope="module")
def original(model: dfact.ICQF, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "fitted.model"
    dfact.save_model(model, path)
    return path


@pytest.fixture
def saved(original: Path, tmp_path: Path) -> Path:
    """A copy of the saved model, for a test to damage."""
    return Path(shutil.copytree(original, tmp_path / "fitted.model"))


def assert_same(first: Any, second: Any) -> None:
    """Compare parameters and fitted attributes, except those that are not saved."""
    assert type(first) is type(second)
    own, others = ({name: value for name, value in vars(each).items() if name != "_read_from"} for each in (first, second))
    assert set(own) == set(others)
    for name, value in own.items():
        other = others[name]
        if name in {"executor", "callbacks"}:
            continue
        if isinstance(value, (np.ndarray, zarr.Array)):
            assert type(value) is type(other), name
            assert value.shape == other.shape, name
            np.testing.assert_array_equal(np.asarray(value), np.asarray(other), err_msg=name)
        elif is_dataclass(value):
            assert_same(value, other)
        else:
            assert value == other or (value != value and other != other), name  # NaN
            assert type(value) is type(other), name


def test_round_trip_of_stored_data(model: dfact.ICQF, dataset: dfact.Dataset, saved: Path) -> None:
    loaded = dfact.load_model(saved)
    assert_same(model, loaded)
    assert loaded.get_params() == model.get_params()
    assert isinstance(loaded.factors_, zarr.Array)
    assert str(loaded.factors_.store_path).startswith(f"file://{saved}")
    np.testing.assert_array_equal(np.asarray(loaded.transform(dataset)), np.asarray(model.transform(dataset)))
    for table in ("confounder_loadings_", "confounder_effects_", "confounder_impact_"):
        pd.testing.assert_frame_equal(getattr(loaded, table), getattr(model, table))
    assert loaded.fingerprint_ == dataset.fingerprint
    assert loaded.codebook_ == dataset.codebook
    assert list(np.asarray(loaded.row_labels_))[:2] == ["p0", "p1"]


def test_round_trip_of_a_table_in_memory(tmp_path: Path) -> None:
    X = pd.DataFrame(planted_answers(N, M, K, 3), columns=[f"q{j}" for j in range(M)])
    model = dfact.ICQF(K, max_iter=5, tol=0.0).fit(X)
    dfact.save_model(model, tmp_path / "m")
    loaded = dfact.load_model(tmp_path / "m")
    assert_same(model, loaded)
    assert isinstance(loaded.factors_, np.ndarray)
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))
    with pytest.raises(ValueError, match="feature names"):
        loaded.transform(X[X.columns[::-1]])


def test_parameters_of_every_kind_are_restored(tmp_path: Path) -> None:
    X = planted_answers(N, M, K, 4)
    start = np.random.default_rng(0).random((K, M))
    random_state = np.random.RandomState(0)  # scikit-learn's convention
    parameters = {
        "init": start,
        "dtype": np.float32,
        "random_state": random_state,
        "executor": "inline",
        "callbacks": [print],
        "memory_limit": "9GiB",
    }
    dfact.save_model(dfact.ICQF(K, **parameters, max_iter=np.int64(2), tol=float("inf")).fit(X), tmp_path / "m")
    loaded = dfact.load_model(tmp_path / "m")
    found = loaded.get_params()
    np.testing.assert_array_equal(found.pop("init"), start)
    own = {"dtype": "float32", "memory_limit": "9GiB", "max_iter": 2, "tol": float("inf"), "n_components": K}
    expected = {**dfact.ICQF().get_params(), **own}
    del expected["init"]
    assert found == expected
    loaded.fit(X)


def test_large_arrays_are_copied_by_chunks(tmp_path: Path, cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_rows(block_rows=(8, 64), chunk_entries=1 << 10, partition_entries=1 << 10)
    monkeypatch.setattr("dfact.models.persistence._LABEL_ROWS", 100)
    group = zarr.create_group(tmp_path / "g")
    numbers = np.random.default_rng(0).random((600, 3))
    labels = np.asarray([f"nr {i} é" for i in range(600)], dtype=object)
    for name, values in (("numbers", numbers), ("labels", labels)):
        digest = persistence.write_array(group, name, values)
        assert group[name].nchunks > 1
        for lazy in (False, True):
            np.testing.assert_array_equal(np.asarray(persistence.read_array(group, name, digest, lazy=lazy)), values)


def test_versions_of_the_writer_are_saved(saved: Path) -> None:
    versions = saved_versions(saved)
    assert versions["numpy"] == np.__version__
    assert versions["dfact"] == dfact.__version__


def test_an_existing_model_is_replaced_only_with_overwrite(
    model: dfact.ICQF, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(dfact.StoreError, match="exists already"):
        dfact.save_model(model, saved)
    with monkeypatch.context() as patch:
        patch.setattr(persistence, "json_digest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dfact.save_model(model, saved, overwrite=True)
    assert_same(model, dfact.load_model(saved))
    # The factors of a loaded model are read from the store that is replaced.
    dfact.save_model(dfact.load_model(saved), saved, overwrite=True)
    assert_same(model, dfact.load_model(saved))
    assert [path.name for path in tmp_path.iterdir()] == [saved.name]


def interrupted(_: Any) -> str:
    raise KeyboardInterrupt


def test_models_that_cannot_be_saved_are_refused(model: dfact.ICQF, tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        dfact.save_model(dfact.ICQF(), tmp_path / "m")
    with pytest.raises(dfact.ParameterError, match="a KMeans cannot be saved"):
        dfact.save_model(KMeans(2, n_init=1).fit(np.eye(4)), tmp_path / "m")  # type: ignore[arg-type]
    odd = dfact.ICQF(**model.get_params())
    vars(odd).update({**vars(model), "extra_": {1, 2}})
    with pytest.raises(dfact.ParameterError, match="extra_ of the model is a set"):
        dfact.save_model(odd, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def edit(change: Callable[[dict[str, Any]], None], *, valid_digest: bool = True) -> Callable[[Path], None]:
    """Return a change of the model's attributes; with ``valid_digest`` the digest is updated."""

    def apply(path: Path) -> None:
        metadata = json.loads((path / "zarr.json").read_text())
        attributes = metadata["attributes"]["dfact"]
        change(attributes)
        if valid_digest:
            attributes["digest"] = persistence.json_digest(attributes["model"])
        (path / "zarr.json").write_text(json.dumps(metadata))

    return apply


def forge_codebook(*texts: str) -> Callable[[Path], None]:
    """Replace the texts of the items, with valid digests."""

    def apply(path: Path) -> None:
        group = zarr.open_group(path)
        del group["codebook_"]
        digest = persistence.write_array(group, "codebook_", np.array(texts, dtype=object))
        edit(lambda a: a["model"]["fitted"]["codebook_"].update(digest=digest))(path)

    return apply


NAMES = [json.dumps({"name": f"item {j}"}) for j in range(M)]


def flip(name: str) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        file = path / name
        data = bytearray(file.read_bytes())
        data[len(data) * 2 // 3] ^= 0x10
        file.write_bytes(data)

    return apply


def truncate(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-7])  # type: ignore[return-value]


def widen(name: str) -> Callable[[Path], None]:
    """Let an array claim so many columns that it would take hours to look for all chunks."""

    def apply(path: Path) -> None:
        document = path / name / "zarr.json"
        metadata = json.loads(document.read_text())
        document.write_text(json.dumps(metadata | {"shape": [metadata["shape"][0], 1 << 40]}))

    return apply


def delete(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


REFUSALS = {
    "chunk of the factors changed": (flip("factors_/c/0/0"), "'factors_' of .* is damaged"),
    "chunk of the loadings changed": (flip("components_/c/0/0"), "'components_' of .* is damaged"),
    "labels changed": (flip("column_labels_/c/0"), "'column_labels_' of .* is damaged"),
    "codebook changed": (flip("codebook_/c/0"), "'codebook_' of .* is damaged"),
    "codebook gone": (edit(lambda a: a["model"]["fitted"].pop("codebook_")), "does not fit this dfact .*codebook_"),
    "codebook of other items": (forge_codebook(*NAMES[1:], NAMES[0]), "does not fit this dfact .*expected the item of column 'item 0'"),
    "codebook of fewer items": (forge_codebook(*NAMES[1:]), "does not fit this dfact"),
    "codebook with a code in place of a text": (forge_codebook('{"name": "item 0", "wording": 1}', *NAMES[1:]), "expected texts"),
    "codebook that is a text": (edit(lambda a: a["model"]["fitted"].update(codebook_="[]")), "does not fit this dfact"),
    "codebook that is a number": (edit(lambda a: a["model"]["fitted"].update(codebook_=1)), "does not fit this dfact"),
    "chunk truncated": (truncate("components_/c/0/0"), "'components_' of .* is damaged"),
    "array with more columns than chunks": (widen("components_"), "'components_' of .* is damaged.*expected whole rows"),
    "chunk of the factors gone": (delete("factors_/c/0/0"), "'factors_' of .* is damaged"),
    "chunk of the history gone": (delete("objective_history_/c/0"), "'objective_history_' of .* is damaged"),
    "row labels gone": (delete("row_labels_/c/0"), "'row_labels_' of .* is damaged"),
    "array's metadata gone": (delete("components_/zarr.json"), "'components_' of .* is damaged"),
    "metadata gone": (delete("zarr.json"), "is not a Zarr group"),
    "metadata truncated": (truncate("zarr.json"), "is not a Zarr group"),
    "array swapped": (
        lambda path: shutil.copytree(path / "lagrangian_history_", path / "objective_history_", dirs_exist_ok=True),
        "damaged",
    ),
    "newer format": (edit(lambda a: a.update(format=2)), "has format version 2, expected 1; a later version of dfact wrote it"),
    "incomplete": (edit(lambda a: a.update(complete=False)), "is incomplete"),
    "no complete marker": (edit(lambda a: a.pop("complete")), "is incomplete"),
    "parameter changed": (
        edit(lambda a: a["model"]["parameters"].update(beta=9.0), valid_digest=False),
        "attributes do not match their digest",
    ),
    "no model in it": (edit(lambda a: a.pop("model"), valid_digest=False), "attributes do not match their digest"),
    "another class": (
        edit(lambda a: a["model"].update({"class": "os.system"})),
        "holds a model of class os.system, expected one of .*ICQF",
    ),
    "another part": (edit(lambda a: a["model"]["fitted"]["problem_"].update(part="Popen")), "does not fit this dfact .*written by dfact"),
    "constant that no fit has": (
        edit(lambda a: a["model"]["fitted"]["problem_"].update(beta={"float": "-inf"})),
        "problem_ is beta of it is -inf, expected numbers from 0",
    ),
    "unknown parameter": (edit(lambda a: a["model"]["parameters"].update(gamma=1.0)), "does not fit this dfact"),
    "foreign": (edit(lambda a: a.update(kind="dataset")), "holds a dfact dataset, expected a model"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_damaged_model_is_refused(saved: Path, case: str) -> None:
    damage, message = REFUSALS[case]
    damage(saved)
    with pytest.raises(dfact.StoreError, match=message):
        dfact.load_model(saved)


def test_a_fill_value_that_its_type_cannot_hold_is_refused(saved: Path) -> None:
    document = saved / "components_" / "zarr.json"
    metadata = json.loads(document.read_text())
    document.write_text(json.dumps(metadata | {"fill_value": 1e308}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(dfact.StoreError, match=r"'components_' of .* is damaged.*overflow"):
            dfact.load_model(saved)


def test_values_of_a_selection_are_numbers_that_can_be_drawn_or_texts() -> None:
    check = UniformColumns()
    check([[2, "bic"], [1e300, "held_out"]], {})
    for values in ([[2], ["x"]], [[2], [1e308]], [[2], [float("nan")]]):
        with pytest.raises(dfact.DataError, match="either numbers from -1e300 to 1e300 or texts"):
            check(values, {})


def test_loadings_whose_squares_overflow_are_refused() -> None:
    check = Shape(("k", "m"))
    check(np.array([[1e100, -1e150]]), {})
    for largest in (1e200, np.inf, np.nan):
        with pytest.raises(dfact.DataError, match=r"expected an array of finite numbers to 1e\+150"):
            check(np.array([[1.0, -largest]]), {})


def test_paths_without_a_model_are_refused(tmp_path: Path, dataset: dfact.Dataset) -> None:
    (tmp_path / "file.model").write_text("not a model")
    (tmp_path / "empty.model").mkdir()
    zarr.create_group(tmp_path / "group.model")
    assert dataset.path is not None
    for path, message in (
        (tmp_path / "nothing.model", "does not exist"),
        (tmp_path / "file.model", "is not a Zarr group"),
        (tmp_path / "empty.model", "is not a Zarr group"),
        (tmp_path / "group.model", "is a Zarr group, expected a dfact model"),
        (dataset.path, "holds a dfact dataset, expected a model"),
    ):
        with pytest.raises(dfact.StoreError, match=message):
            dfact.load_model(path)


@pytest.mark.parametrize("bits", exhaustive_after(1, [2, 32]))
def test_any_flipped_bit_is_detected(bits: int, model: dfact.ICQF, saved: Path) -> None:
    """For any bit of any file the model is refused, or equal (the bit has no meaning, such as one of a space)."""
    rng = np.random.default_rng(7)
    for file in sorted(path for path in saved.rglob("*") if path.is_file()):
        whole = file.read_bytes()
        for position in rng.integers(0, len(whole), bits):
            data = bytearray(whole)
            data[position] ^= 1 << rng.integers(0, 8)
            file.write_bytes(data)
            with suppress(dfact.StoreError):
                assert_same(model, dfact.load_model(saved))
        file.write_bytes(whole)
    assert_same(model, dfact.load_model(saved))


@pytest.mark.process
def test_a_new_process_loads_models_by_the_names_of_their_classes(tmp_path: Path) -> None:
    """No class is imported beforehand: the name of the class in the document is enough to find it."""
    rng = np.random.default_rng(0)
    tensor, answers = rng.random((12, 5, 4)), rng.binomial(2, rng.random((60, 8))).astype(float)
    for entry in CATALOGUE:
        kind = entry.load()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = kind(2).fit(tensor if kind.traits.tensor else answers)
        dfact.save_model(model, tmp_path / entry.name)
    code = "import sys, dfact; print(*(type(dfact.load_model(path)).__name__ for path in sys.argv[1:]))"
    paths = [str(tmp_path / entry.name) for entry in CATALOGUE]
    loaded = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == [entry.name for entry in CATALOGUE]


def stability(value: float) -> Stability:
    loadings = np.full((K, M), value)
    return Stability(np.ones((2, K)), loadings, loadings, loadings, 0.95, np.ones((K, M)))


@pytest.mark.parametrize("rows", [[7, 7, 7], [None, 2, 2], [2, None, 2]])
def test_effects_that_the_model_does_not_have_are_refused(model: dfact.ICQF, saved: Path, rows: list[int | None]) -> None:
    changed = copy(model)
    mean, low, high = (None if n is None else np.zeros((n, M)) for n in rows)
    changed.stability_ = replace(stability(1.0), confounder_mean=mean, confounder_low=low, confounder_high=high)

    def store_and_load() -> None:
        annotate_model(saved, changed, "stability_")
        dfact.load_model(saved)

    with pytest.raises(dfact.DfactError, match=r"effects of confounders, expected those of the model|expected an array \(q=2"):
        store_and_load()


def test_annotations_are_added_and_replaced(model: dfact.ICQF, saved: Path) -> None:
    annotated = copy(model)
    for value in (1.0, 2.0, 3.0):
        annotated.stability_ = stability(value)
        annotate_model(saved, annotated, "stability_")
        loaded = dfact.load_model(saved)
        np.testing.assert_array_equal(loaded.stability_.mean, annotated.stability_.mean)
        np.testing.assert_array_equal(np.asarray(loaded.factors_), np.asarray(model.factors_))
    group: Any = zarr.open_group(saved, mode="r", use_consolidated=True)
    assert len(list(group.array_keys())) == len(group.metadata.consolidated_metadata.metadata)
    assert sum(name.startswith("stability_") for name in group.array_keys()) == 5  # those of the last one


@pytest.mark.parametrize("seed", range(3))
def test_an_interrupted_annotation_leaves_the_earlier_or_the_new_one(
    seed: int, model: dfact.ICQF, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotated = copy(model)
    annotated.stability_ = stability(1.0)
    annotate_model(saved, annotated, "stability_")
    annotated.stability_ = stability(2.0)
    names = ("write_array", "attributes", "_remove_arrays")
    functions = {name: getattr(persistence, name) for name in names}
    outcomes = set()
    for stop in range(seed, 30, 3):
        calls = 0

        def counted(name: str, *arguments: Any, stop: int = stop, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > stop // 2 + 1 or (calls == stop // 2 + 1 and stop % 2):
                raise Interrupted
            result = functions[name](*arguments, **more)
            if calls == stop // 2 + 1:
                raise Interrupted
            return result

        for name in names:
            monkeypatch.setattr(persistence, name, partial(counted, name))
        with suppress(Interrupted):
            annotate_model(saved, annotated, "stability_")
        for name, function in functions.items():
            monkeypatch.setattr(persistence, name, function)
        outcomes.add(float(dfact.load_model(saved).stability_.mean[0, 0]))
    assert outcomes == {1.0, 2.0}
    annotate_model(saved, annotated, "stability_")
    assert float(dfact.load_model(saved).stability_.mean[0, 0]) == 2.0
