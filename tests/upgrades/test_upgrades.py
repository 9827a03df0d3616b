"""What each version of dfact stored is read with its values, or refused with the version found, that expected, and what to do.

``stores`` holds a file for each format version, and for each change of what is stored within one; ``write.py`` adds today's.
"""

import json
import shutil
import tarfile
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import dfact
from dfact.cli.info import dataset_text
from dfact.cli.main import main
from dfact.data.statistics import as_float
from dfact.engine.checkpoint import resume_point
from dfact.errors import DataError
from dfact.jobs import record
from dfact.models.persistence import is_result_of
from dfact.psychometrics.anchor import anchor
from dfact.report.presenters.base import model_text
from dfact.storage import records
from dfact.storage.groups import ATTRIBUTE, FORMAT_VERSION, is_current
from tests.cases import exhaustive_unless
from tests.upgrades.recipes import FITS, LEVELS, RECIPES, SELECTIONS, Arrays, figures
from tests.upgrades.write import STORES

OLDEST_READ = 2
"""Format version from which on datasets and models are read."""
TO_DO = {
    ".zarr": "import it again",
    ".model": "fit it again",
    ".checkpoint": "delete it to start over, or end the computation with the version that wrote it",
    ".toml": "delete it to run all steps of the job again",
}
pytestmark = pytest.mark.filterwarnings("ignore")  # of fits of few rows


@dataclass(frozen=True)
class Stores:
    """What one version stored."""

    archive: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        with tarfile.open(self.archive) as archive:
            return dict(json.load(archive.extractfile("about.json")))  # type: ignore[arg-type]  # a file

    def unpack(self, folder: Path) -> Path:
        with tarfile.open(self.archive) as archive:
            archive.extractall(folder, filter="data")
        return folder


ALL = sorted((Stores(path) for path in STORES.iterdir()), key=lambda stores: (stores.about["format"], stores.about["date"]))
TODAY = ALL[-1]
NEWEST = {"answers.zarr", "icqf.model", "cp.model", "icqf.checkpoint", "job.toml"}
"""Stores whose newest version is read in the default run too."""


def cases(*suffixes: str, read: bool, today: bool = True) -> list[Any]:
    """Return the stores of all versions with these suffixes, of formats that are read or of earlier ones.

    The oldest of each name and the newest of some represent the others in the default run.
    """
    found = [
        (stores, name)
        for stores in ALL
        for name in stores.about["recipes"]
        if name.endswith(suffixes) and (stores.about["format"] >= OLDEST_READ) is read and (today or stores != TODAY)
    ]
    oldest, newest = {name: stores for stores, name in reversed(found)}, {name: stores for stores, name in found}
    kept = {*oldest.items(), *((name, stores) for name, stores in newest.items() if name in NEWEST)}
    cases = [pytest.param(stores, name, id=f"{stores.archive.name.split('.')[0]}-{name}") for stores, name in found]
    return exhaustive_unless(lambda case: case.values[::-1] in kept, cases)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Stores, Path]:
    return {stores: stores.unpack(tmp_path_factory.mktemp("stores")) for stores in ALL}


def expected(folder: Path, name: str) -> Arrays:
    with np.load(folder / "expected.npz") as figures:
        return {key.removeprefix(f"{name}/"): figures[key] for key in figures if key.startswith(f"{name}/")}


def assert_equal(found: Arrays, wanted: Arrays) -> None:
    assert found.keys() == wanted.keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.further
@pytest.mark.parametrize(("stores", "name"), cases(".zarr", read=True))
def test_datasets_have_their_values(folders: dict[Stores, Path], stores: Stores, name: str) -> None:
    dataset, wanted = dfact.open_dataset(folders[stores] / name), expected(folders[stores], name)
    rows = dataset.source.read(0, dataset.shape[0])
    values = as_float(rows.toarray() if sp.issparse(rows) else rows, dataset.missing_code, np.dtype(np.float64))
    offset = dataset.offset.reshape(-1, *[1] * (len(dataset.shape) - 2))
    np.testing.assert_allclose(values + offset, wanted.pop("values"), rtol=1e-6)
    columns = {} if dataset.confounders is None else dict(dataset.confounders.items())
    columns |= {} if dataset.weights is None else {"weights": dataset.weights}
    assert {key: list(column) for key, column in columns.items()} == {key: list(column) for key, column in wanted.items()}
    items = [] if dataset.codebook is None else [*dataset.codebook]
    assert [item.name for item in items] in ([], [str(label) for label in dataset.column_labels])
    assert name != "levels.zarr" or [label for _, label in items[0].levels] == LEVELS
    assert dataset.fingerprint in dataset_text(dataset)


@pytest.mark.further
@pytest.mark.parametrize(("stores", "name"), cases(".model", read=True))
def test_models_have_their_factors(folders: dict[Stores, Path], tmp_path: Path, stores: Stores, name: str) -> None:
    model = dfact.load_model(folders[stores] / name)
    data = folders[stores] / FITS[name.removesuffix(".model")].dataset
    assert_equal(figures(model, data), expected(folders[stores], name))
    assert model_text(model)
    dfact.save_model(model, tmp_path / name)
    assert dfact.load_model(tmp_path / name).loadings_.equals(model.loadings_)


@pytest.mark.parametrize(("stores", "name"), cases("icqf.model", read=True))
def test_effects_of_confounders_are_anchored(folders: dict[Stores, Path], stores: Stores, name: str) -> None:
    """Models of every version show the identified effects; those of earlier ones have no impact."""
    model: Any = dfact.load_model(folders[stores] / name)
    loadings, effects = model.components_.T.astype(float), model.confounder_effects_
    raw = model.confounder_encoding_.differences()[1] @ model.confounder_components_
    scale = np.full(len(loadings), 4.0) if model.differences_ is None else model.differences_.item_sd
    for values, (_, anchored) in zip(raw, effects.items(), strict=True):
        np.testing.assert_allclose(anchored, anchor(values, loadings, scale).effects, atol=1e-7)
    assert np.isnan(model.confounder_impact_.to_numpy()).all() == (model.differences_ is None)
    assert stores != TODAY or model.differences_ is not None


@pytest.mark.parametrize("name", ["icqf.model", "factor_analysis.model"])
def test_models_that_kept_no_sums_do_not_grow(folders: dict[Stores, Path], name: str) -> None:
    first = next(stores for stores in ALL if stores.about["format"] >= OLDEST_READ and (folders[stores] / name).exists())
    model = dfact.load_model(folders[first] / name)
    with pytest.raises(DataError, match="kept no sums"):
        model.partial_fit(np.zeros((5, len(model.column_labels_))))
    assert dfact.load_model(folders[TODAY] / name).growth_.added_rows == 0


@pytest.mark.exhaustive
def test_the_first_models_and_data_of_a_format_are_reported_and_described(folders: dict[Stores, Path], tmp_path: Path) -> None:
    first = next(stores for stores in ALL if stores.about["format"] >= OLDEST_READ)
    for name in ("icqf", "cp"):
        dfact.write_report(folders[first] / f"{name}.model", tmp_path / f"{name}.html", folders[first] / FITS[name].dataset)
        assert "<h1" in (tmp_path / f"{name}.html").read_text()
    ours, theirs = (dfact.describe(folders[stores] / "answers.zarr") for stores in (first, TODAY))
    assert ours.items.equals(theirs.items)


@pytest.mark.further
@pytest.mark.parametrize(("stores", "name"), cases(".zarr", ".model", ".checkpoint", ".toml", read=False))
def test_earlier_formats_are_refused(folders: dict[Stores, Path], stores: Stores, name: str) -> None:
    message = use(folders[stores], name, folders[TODAY])
    assert f"has format version {stores.about['format']}, expected {FORMAT_VERSION}; {TO_DO[Path(name).suffix]}" in message


@pytest.mark.parametrize("name", ["answers.zarr", "icqf.model", "icqf.checkpoint", "bootstrap.checkpoint", "job.toml"])
def test_later_formats_ask_for_an_upgrade(folders: dict[Stores, Path], tmp_path: Path, name: str) -> None:
    stored = "job.toml.state" if name == "job.toml" else name
    shutil.copytree(folders[TODAY] / stored, tmp_path / stored)
    shutil.copyfile(folders[TODAY] / "job.toml", tmp_path / "job.toml")
    change(tmp_path / stored, version=FORMAT_VERSION + 1)
    found = f"has format version {FORMAT_VERSION + 1}, expected {FORMAT_VERSION}; a later version of dfact wrote it: upgrade dfact"
    assert found in use(tmp_path, name, folders[TODAY])


def change(path: Path, **attributes: Any) -> None:
    group = zarr.open_group(path, mode="r+")
    stored: Any = group.attrs[ATTRIBUTE]
    group.attrs[ATTRIBUTE] = {**stored, **attributes}


def use(folder: Path, name: str, data: Path) -> str:
    """Return the message with which a store is refused where it is used."""
    path = folder / name
    if name == "job.toml":
        output = StringIO()
        with redirect_stderr(output):
            assert main(["run", str(path)]) == 1
        return " ".join(output.getvalue().split())
    with pytest.raises(dfact.StoreError) as refusal:
        {".zarr": dfact.open_dataset, ".model": dfact.load_model, ".checkpoint": lambda path: resume(path, data)}[path.suffix](path)
    return str(refusal.value)


def resume(checkpoint: Path, data: Path) -> Any:
    """Resume a selection, which returns its figures, or a fit, which returns the model."""
    name = checkpoint.stem
    return SELECTIONS[name](data, checkpoint=checkpoint) if name in SELECTIONS else FITS[name].fit(data, checkpoint=checkpoint)


@pytest.mark.parametrize(("stores", "name"), cases(".checkpoint", ".toml", read=True, today=False))
def test_checkpoints_belong_to_the_version_that_wrote_them(folders: dict[Stores, Path], stores: Stores, name: str) -> None:
    message = use(folders[stores], name, folders[TODAY])
    found, expected = "an unreleased version of dfact", release("x") if name.endswith(".toml") else dfact.__version__
    assert f"was written by {found}, expected dfact {expected}; {TO_DO['.checkpoint']}" in message


@pytest.mark.further
@pytest.mark.parametrize("name", [name for name in RECIPES if name.endswith(".checkpoint") and name.split(".")[0] in SELECTIONS])
def test_selections_resume_with_the_same_result(folders: dict[Stores, Path], name: str) -> None:
    found, wanted = resume(folders[TODAY] / name, folders[TODAY]), expected(folders[TODAY], name)
    assert_equal(found, {figure: wanted[figure] for figure in found})  # the first stores also have ends of intervals, since replaced


@pytest.mark.further
@pytest.mark.parametrize("name", exhaustive_unless({"icqf", "gom", "expectile", "cp"}.__contains__, sorted(FITS.keys() - {"admixture"})))
def test_fits_resume_with_the_same_result_and_store_what_they_did(folders: dict[Stores, Path], tmp_path: Path, name: str) -> None:
    """A change of what is stored needs stores of its own here, or a format version of its own: write them, and keep the earlier ones.

    Admixture has a further parameter since, so that its earlier checkpoints belong to other fits.
    """
    fit, folder, checkpoint = FITS[name], folders[TODAY], folders[TODAY] / f"{name}.checkpoint"
    assert (resume_point(checkpoint) > 0) == (fit.passes > 0)
    model = resume(checkpoint, folder) if fit.passes else fit.fit(folder)
    assert_equal(figures(model, folder / fit.dataset), expected(folder, f"{name}.model"))
    dfact.save_model(model, tmp_path / "model")
    assert layout(tmp_path / "model") == layout(folder / f"{name}.model"), "the layout of models has changed"


@pytest.mark.further
@pytest.mark.parametrize("name", [name for name in RECIPES if name.endswith(".zarr")])
def test_datasets_store_what_they_did(folders: dict[Stores, Path], tmp_path: Path, name: str) -> None:
    RECIPES[name](tmp_path)
    assert layout(tmp_path / name) == layout(folders[TODAY] / name), "the layout of datasets has changed"


def layout(path: Path) -> dict[str, Any]:
    """Return the arrays of a store with their types and dimensions, and the names of all attributes."""
    found = {}
    for file in path.rglob("zarr.json"):
        metadata = json.loads(file.read_text())
        kind = [metadata.get("data_type"), len(metadata.get("shape", []))]
        found[str(file.parent.relative_to(path))] = [kind, names(metadata["attributes"])]
    return found


def names(value: Any) -> Any:
    return {key: names(inner) for key, inner in value.items()} if isinstance(value, dict) else None


def test_an_interrupted_job_is_finished(folders: dict[Stores, Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = folders[TODAY]
    written = (folder / "two.model" / "zarr.json").stat().st_mtime_ns
    assert main(["run", str(folder / "job.toml")]) == 0, capsys.readouterr().err
    assert (folder / "two.model" / "zarr.json").stat().st_mtime_ns == written, "the first step was done"
    loadings = dfact.load_model(folder / "three.model").loadings_.to_numpy()
    assert_equal({"loadings": loadings}, expected(folder, "job.toml"))


def release(patch: str) -> str:
    """Return the version of this dfact with another third number."""
    return ".".join([*dfact.__version__.split(".")[:2], patch])


def as_version(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this dfact state another version where jobs and checkpoints are read and written."""
    for module in (record, records):
        monkeypatch.setattr(module, "version", lambda _: number)


@pytest.mark.further
def test_steps_of_another_patch_version_stay_done_and_an_interrupted_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Stores(TODAY.archive).unpack(tmp_path)
    model = (folder / "two.model" / "zarr.json").read_bytes()
    as_version(release("99"), monkeypatch)
    assert main(["run", str(folder / "job.toml")]) == 1
    error = capsys.readouterr().err
    assert f"already done, by dfact {dfact.__version__}" in error
    assert (folder / "two.model" / "zarr.json").read_bytes() == model
    [checkpoint] = folder.glob("job.toml.state.*")
    assert f"the checkpoint {checkpoint} was written by dfact {dfact.__version__}, expected dfact {release('99')}; delete it" in error
    # Without its checkpoint the step starts over, and is the only one that runs.
    shutil.rmtree(checkpoint)
    assert main(["run", str(folder / "job.toml")]) == 0
    error = capsys.readouterr().err
    assert error.count("finished in") == 1
    # All is done in part by each: nothing runs again under either version, nor under a third.
    for patch in ("0", "98"):
        as_version(release(patch), monkeypatch)
        assert main(["run", str(folder / "job.toml")]) == 0
        assert "finished in" not in capsys.readouterr().err


def test_a_job_of_another_minor_version_is_refused(
    folders: dict[Stores, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_version("97.1.0", monkeypatch)
    assert main(["run", str(folders[TODAY] / "job.toml")]) == 1
    error = capsys.readouterr().err
    assert f"was written by dfact {dfact.__version__}, expected dfact 97.1.x; {TO_DO['.checkpoint']}" in " ".join(error.split())


def test_a_fit_may_replace_a_model_of_an_earlier_format(folders: dict[Stores, Path]) -> None:
    assert is_current(folders[TODAY] / "icqf.model", "model")
    assert not is_result_of(folders[ALL[0]] / "icqf.model", {})


def test_every_format_has_its_stores() -> None:
    missing = {*range(1, FORMAT_VERSION + 1)} - {stores.about["format"] for stores in ALL}
    assert not missing, "write those of today: python -m tests.upgrades.write"
    assert TODAY.about["recipes"] == [*RECIPES]
