"""Global settings of the user, of the libraries that dfact uses, change no file and no result."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn
import zarr

import dfact
from tests.cases import installed


@contextmanager
def foreign_settings() -> Iterator[None]:
    """Settings as users make them for their own code."""
    import dask

    with ExitStack() as stack:
        stack.enter_context(zarr.config.set({"default_zarr_format": 2, "array.order": "F", "array.write_empty_chunks": False}))
        stack.enter_context(np.errstate(all="raise"))
        stack.enter_context(np.printoptions(precision=1, threshold=3))
        options = ("display.precision", 1, "display.max_rows", 3, "display.width", 20)
        stack.enter_context(pd.option_context(*options))
        stack.enter_context(sklearn.config_context(transform_output="pandas", assume_finite=True))
        stack.enter_context(dask.config.set({"array.chunk-size": "1KiB", "scheduler": "synchronous"}))
        yield


def made(folder: Path) -> tuple[dict[str, np.ndarray], str]:
    """Import a table, fit, save, load and transform; return the results and the description as text."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    X = np.clip(np.round(rng.random((80, 3)) @ rng.random((3, 8)) * 4), 0, 6)
    frame = pd.DataFrame(X, columns=[f"q{j}" for j in range(8)]).mask(rng.random(X.shape) < 0.05)
    frame.to_csv(folder / "answers.csv", index=False)
    dataset = dfact.import_table(folder / "answers.csv", folder / "answers.zarr", items="*")
    model = dfact.ICQF(2, random_state=0, max_iter=30).fit(dataset)
    dfact.save_model(model, folder / "model")
    loaded = dfact.load_model(folder / "model")
    results = {"loadings": model.components_, "transformed": np.asarray(loaded.transform(dataset))}
    results["stored"] = np.asarray(loaded.transform(dataset, out=folder / "rows.zarr"))
    results["lazy"] = np.asarray(dfact.PCA(2).fit(frame).transform(frame))
    if installed("genetics"):
        results["admixture"] = np.asarray(dfact.Admixture(2, max_iter=30).fit(np.clip(X, 0, 2)).memberships_)
    return results, dfact.describe(dataset).items.to_csv() if installed("questionnaires") else ""


@pytest.mark.filterwarnings("ignore:the correlation with the rest")
def test_foreign_settings_change_nothing(tmp_path: Path) -> None:
    expected, described = made(tmp_path / "without")
    with foreign_settings():
        found, text = made(tmp_path / "with")
    assert {name: np.array_equal(found[name], expected[name]) for name in expected} == dict.fromkeys(expected, True)
    assert text == described
    stores = [path for path in (tmp_path / "with").rglob("*") if path.name in (".zarray", ".zgroup")]
    assert stores == [], "stores of Zarr's format 2"


@pytest.mark.parametrize("version", [2, 3])
def test_stores_have_format_3(version: int, tmp_path: Path) -> None:
    with zarr.config.set({"default_zarr_format": version}):
        dfact.import_array(np.eye(4), tmp_path / "x.zarr")
        dfact.save_model(dfact.PCA(2).fit(np.random.default_rng(0).random((9, 4))), tmp_path / "model")
        assert dfact.load_model(tmp_path / "model").components_.shape == (2, 4)
    assert (tmp_path / "x.zarr" / "zarr.json").exists()
    assert not [*tmp_path.rglob(".zarray"), *tmp_path.rglob(".zgroup")]
