"""stack_groups: a table with grades as a tensor of grades × participants × items."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.errors import DataError, ParameterError

GRADES = np.repeat(["0", "2", "10"], [20, 9, 14])


def patients(folder: Path, seed: int = 0, **settings: Any) -> tuple[NDArray[np.float64], dfact.Dataset]:
    """Write a table of 43 patients with a grade and six measurements, some of them missing, that tell who each patient is."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(43, 6)) * [1, 10, 100, 1, 1, 1] + 5
    X[rng.random(X.shape) < 0.06] = np.nan
    X[:, 4] = np.where(np.arange(43) < 20, X[:, 4], np.nan)  # more than a fifth missing
    X[:, 5] = 3.0  # never varies
    X[:, 0] = rng.permutation(43)
    order = rng.permutation(43)
    confounders = pd.DataFrame({"grade": pd.Categorical(GRADES[order]), "age": rng.normal(size=43)})
    labels = [f"item{j}" for j in range(6)]
    return X, dfact.import_array(X, folder / "p.zarr", column_labels=labels, confounders=confounders, **settings)


@pytest.mark.filterwarnings("ignore:.* left out")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_grade_has_as_many_patients_as_the_smallest_scaled_over_all(seed: int, tmp_path: Path) -> None:
    X, dataset = patients(tmp_path, seed)
    with pytest.warns(UserWarning, match="left out: item"):
        tensor = dfact.stack_groups(dataset, tmp_path / "t.zarr", "grade", random_state=seed)
    assert tensor.shape == (3, 9, 4)
    assert list(tensor.row_labels) == ["0", "2", "10"]  # numerical order
    [items] = tensor.mode_labels
    assert items is not None
    assert list(items) == ["item0", "item1", "item2", "item3"]
    scaled = (X - np.nanmin(X, axis=0)) / np.where(np.ptp(X, axis=0) == 0, 1, np.nanmax(X, axis=0) - np.nanmin(X, axis=0))
    Z = tensor.source.read(0, 3)
    assert dataset.confounders is not None
    grades = dataset.confounders["grade"].astype(str).to_numpy()
    drawn = []
    for g, grade in enumerate(["0", "2", "10"]):
        rows = np.rint(Z[g, :, 0] * 42).astype(int)
        numbers = [int(np.flatnonzero(X[:, 0] == row)[0]) for row in rows]
        assert len(set(numbers)) == 9
        assert (grades[numbers] == grade).all()
        assert_allclose(Z[g], scaled[numbers, :4], atol=1e-12)  # missing where the table is
        drawn.append(numbers)
    assert np.isnan(Z).any()
    assert any(numbers != sorted(numbers) for numbers in drawn)
    again = dfact.stack_groups(dataset, tmp_path / "again.zarr", "grade", random_state=seed, max_missing=0.3)
    np.testing.assert_array_equal(again.source.read(0, 3), Z)


@pytest.mark.filterwarnings("ignore:.* left out")
def test_the_chunks_of_the_table_do_not_matter(tmp_path: Path, cut_rows: Any) -> None:
    _, dataset = patients(tmp_path)
    expected = dfact.stack_groups(dataset, tmp_path / "a.zarr", "grade", scale="none").source.read(0, 3)
    cut_rows(block_rows=(2, 4), chunk_entries=24, partition_entries=24)
    found = dfact.stack_groups(dataset, tmp_path / "b.zarr", "grade", scale="none").source.read(0, 3)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"by": "site"}, DataError, "no confounder 'site', expected one of grade, age; import it with --confounder site:categorical"),
        ({"by": "age"}, DataError, "confounder 'age' is continuous, expected groups"),
        ({"by": "grade", "scale": "sd"}, ParameterError, "scale is 'sd', expected 'range' or 'none'"),
        ({"by": "grade", "max_missing": 2}, ParameterError, "max_missing is 2, expected a share from 0 to 1"),
    ],
)
def test_wrong_arguments_are_refused(settings: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    _, dataset = patients(tmp_path)
    with pytest.raises(error, match=message):
        dfact.stack_groups(dataset, tmp_path / "t.zarr", **settings)
    assert not (tmp_path / "t.zarr").exists()


def test_other_data_is_refused(tmp_path: Path) -> None:
    Z = np.ones((4, 3, 2))
    tensor = dfact.import_array(Z, tmp_path / "z.zarr")
    with pytest.raises(DataError, match="expected two modes"):
        dfact.stack_groups(tensor, tmp_path / "t.zarr", "grade")
    one = dfact.import_array(np.ones((4, 3)), tmp_path / "o.zarr", confounders=pd.DataFrame({"grade": pd.Categorical(list("aaaa"))}))
    with pytest.raises(DataError, match="1 groups with participants, expected 2"):
        dfact.stack_groups(one, tmp_path / "t.zarr", "grade")


def test_a_table_of_patients_becomes_figures_of_its_grades(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The guide's commands, on a generated table of the same shape, in which one measurement rises with the grade."""
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    grades = rng.choice(5, 300, p=[0.4, 0.25, 0.15, 0.1, 0.1])
    table = pd.DataFrame(rng.random((300, 10)) * 0.2, columns=[f"m{j}" for j in range(10)]).round(3)
    table["m3"] = (table["m3"] + grades * 0.25).round(3)
    for name in ("m5", "m6"):
        table[name] = table[name].astype(object).mask(rng.random(300) < 0.15, "?")
    table.assign(grade=grades).to_csv(tmp_path / "h.csv", index=False)
    h, t, m = (str(tmp_path / name) for name in ("h.zarr", "t.zarr", "t.model"))
    command = ["import", str(tmp_path / "h.csv"), h, "--items", "m*", "--confounder", "grade:categorical", "--missing", "?", "--no-shift"]
    assert main(command) == 0
    assert main(["stack-groups", h, t, "--by", "grade", "--seed", "0"]) == 0
    tensor = dfact.open_dataset(t)
    assert tensor.shape == (5, np.bincount(grades).min(), 10)
    assert np.isnan(tensor.source.read(0, 5)).mean() == pytest.approx(0.03, abs=0.02)
    select = [
        "select",
        "cp",
        t,
        m,
        "-k",
        "3",
        "--criterion",
        "held_out",
        "--lambdas",
        "0.001,0.01,0.1,1",
        "--l1-ratio",
        "0.8",
        "--seed",
        "0",
    ]
    assert main(select) == 0
    for options in (["--mode", "1"], ["--mode", "2"], ["--mode", "3"], ["--mode", "3", "--leading", "6"]):
        figure = tmp_path / f"{'-'.join(options)}.png"
        assert main(["plot", m, str(figure), *options]) == 0
        assert figure.read_bytes().startswith(b"\x89PNG")
    assert main(["plot", m, str(tmp_path / "all.svg")]) == 0
    model: Any = dfact.load_model(m)
    grade = np.asarray(model.factors_[0])[:, : model.rank_] @ np.diag(np.asarray(model.factors_[2])[3, : model.rank_])
    rise = (grade * np.asarray(model.factors_[1])[:, : model.rank_].mean(axis=0)).sum(axis=1)
    assert (np.diff(rise) > 0).all()  # m3 in the fit rises with the grade
    assert main(["plot", m, str(tmp_path / "n.png"), "--mode", "4"]) == 1
    assert "mode is 4, expected a mode of the tensor, from 1 to 3" in capsys.readouterr().err
    assert main(["plot", m, str(tmp_path / "n.png"), "--leading", "2"]) == 2
