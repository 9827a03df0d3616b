"""``dfact import-array``, ``fit cp``, ``select cp``, and the commands that take tensors and their models."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import LocalCluster

import dfact
from benchmarks.faults.fits import FORKSERVER, log_to
from dfact.cli.main import main
from dfact.engine.checkpoint import CheckpointedSession, resume_point
from dfact.imports.readers.arrays.numpy_files import read_array_file
from tests.cli.conftest import Ended


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two components in 40 samples × 12 × 9, a tenth missing, with labels."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("file") / "spectra.npz"
    Z = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 2)) for size in (40, 12, 9))) + 0.2 * rng.standard_normal((40, 12, 9))
    Z[rng.random(Z.shape) < 0.1] = -99
    np.savez(path, X=Z, samples=[f"s{i}" for i in range(40)], bands=[f"band{j}" for j in range(12)])
    return path


@pytest.fixture(scope="module")
def data(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "spectra.zarr"
    labels = ["--row-labels", "samples", "--column-labels", "bands"]
    assert main(["import-array", str(file), str(path), "--key", "X", "--missing", "-99", *labels]) == 0
    return path


@pytest.fixture(scope="module")
def model(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "spectra.model"
    assert main(["fit", "cp", str(data), str(path), "-k", "2", "--seed", "0"]) == 0
    return path


def test_import(file: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X = np.load(file)["X"]
    dataset = dfact.open_dataset(data)
    np.testing.assert_array_equal(dataset.source.read(0, 40), np.where(X == -99, np.nan, X))
    assert list(dataset.row_labels[:2]) == ["s0", "s1"]
    assert list(dataset.column_labels[:2]) == ["band0", "band1"]
    np.save(tmp_path / "plain.npy", X)
    assert main(["import-array", str(tmp_path / "plain.npy"), str(tmp_path / "plain.zarr"), "--missing", "-99"]) == 0
    assert "40 rows × 12 × 9 columns" in capsys.readouterr().out
    np.savez(tmp_path / "one.npz", whatever=X)
    np.testing.assert_array_equal(read_array_file(tmp_path / "one.npz"), X)


@pytest.mark.further
def test_fit_equals_the_library(data: Path, model: Path) -> None:
    expected = dfact.ElasticCP(2, random_state=0).fit(dfact.open_dataset(data))
    for A, B in zip(dfact.load_model(model).factors_, expected.factors_, strict=True):
        np.testing.assert_array_equal(A[:], B[:])


@pytest.mark.further
def test_fit_passes_all_options_to_the_estimator(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plot = tmp_path / "m.model", tmp_path / "modes.png"
    options = "-k 3 --lam 2 --l1-ratio 0.5 --nonnegative --slice-variances none --init svd --missing exact --max-iter 4 --tol 0 --seed 1"
    assert main(["fit", "cp", str(data), str(path), *options.split(), "--plot", str(plot)]) == 0
    found = dfact.load_model(path).get_params()
    expected: dict[str, Any] = {"n_components": 3, "lam": 2.0, "l1_ratio": 0.5, "nonnegative": True, "slice_variances": None, "init": "svd"}
    expected |= {"missing": "exact", "max_iter": 4, "tol": 0.0, "random_state": 1, "solver": "bcd"}
    assert {name: found[name] for name in expected} == expected
    assert "stopped before it converged, after 4 iterations" in capsys.readouterr().out
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.further
def test_select(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plot = tmp_path / "best.model", tmp_path / "path.svg"
    options = ["-k", "4", "--criterion", "held_out", "--lambdas", "1,10,100,1000", "--seed", "0", "--plot", str(plot)]
    assert main(["select", "cp", str(data), str(path), *options]) == 0
    text, said = capsys.readouterr()
    model = dfact.ElasticCP(4, random_state=0)
    expected = dfact.selection.select_penalty(model, dfact.open_dataset(data), lambdas=[1, 10, 100, 1000], random_state=0)
    found = dfact.load_model(path)
    assert found.rank_ == 2
    np.testing.assert_array_equal(found.components_, expected.model.components_)
    header, *lines = text.splitlines()[: len(expected.table) + 1]
    assert " ".join(header.split()) == "lam rank zeros relative_error held_out"
    assert [" best (" in line for line in lines].count(True) == 1
    assert "rank 2" in said
    assert plot.read_text().startswith("<?xml")
    for criterion in ("bic", "split_half"):
        assert main(["select", "cp", str(data), "-k", "3", "--lambdas", "10,100", "--criterion", criterion, "--seed", "0"]) == 0
        assert criterion in capsys.readouterr().out


@pytest.mark.further
def test_select_saves_finished_work(data: Path, tmp_path: Path) -> None:
    options = ["--criterion", "held_out", "--lambdas", "1,100", "--seed", "0", "-k", "3", "--checkpoint", str(tmp_path / "kept.zarr")]
    for name in ("first", "again"):
        assert main(["select", "cp", str(data), str(tmp_path / f"{name}.model"), *options]) == 0
    assert {path.name for path in (tmp_path / "kept.zarr").iterdir()} == {"zarr.json", "all", "training"}
    first, again = (dfact.load_model(tmp_path / f"{name}.model").components_ for name in ("first", "again"))
    np.testing.assert_array_equal(first, again)


def run_until_saved(job: str, log: str) -> None:
    """Run a job in this process, which ends after the first checkpoint version of the path on the training entries."""
    log_to(Path(log))
    save = CheckpointedSession._save

    def saved(session: CheckpointedSession) -> None:
        save(session)
        if "training" in str(session._path):
            os._exit(9)

    CheckpointedSession._save = saved  # type: ignore[method-assign]  # for the whole process
    main(["run", job])


@pytest.mark.further
@pytest.mark.process
@pytest.mark.needs("batch")
def test_job_killed_within_select_resumes(data: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    job = tmp_path / "job.toml"
    settings = 'model = "m.model"\ncriterion = "held_out"\ncomponents = 3\nlambdas = [1, 100]\nseed = 0\n'
    job.write_text(f'[[step]]\nrun = "select cp"\ndata = "{data}"\n{settings}')
    log = tmp_path_factory.mktemp("log") / "log"
    process = FORKSERVER.Process(target=run_until_saved, args=(str(job), str(log)))
    process.start()
    process.join()
    assert process.exitcode == 9, log.read_text()
    [kept] = tmp_path.glob("job.toml.state.*")
    assert resume_point(kept / "all") > 0
    assert resume_point(kept / "training") > 0
    assert main(["run", str(job)]) == 0
    assert not kept.exists()
    model = dfact.ElasticCP(3, random_state=0)
    expected = dfact.selection.select_penalty(model, dfact.open_dataset(data), lambdas=[1, 100], random_state=0)
    np.testing.assert_array_equal(dfact.load_model(tmp_path / "m.model").components_, expected.model.components_)


@pytest.mark.further
def test_the_baseline_is_fitted(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorly")
    assert main(["fit", "cpals", str(data), str(tmp_path / "als.model"), "-k", "2", "--seed", "1"]) == 0
    expected = dfact.CPALS(2, random_state=1).fit(dfact.open_dataset(data))
    np.testing.assert_array_equal(dfact.load_model(tmp_path / "als.model").components_, expected.components_)


def test_labels_of_all_modes_come_from_arrays_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = {"items": ["a", "b"], "visits": ["intake", "discharge", "later"], "raters": ["self", "other"]}
    np.savez(tmp_path / "t.npz", X=np.random.default_rng(0).random((5, 2, 3, 2)), **labels)
    command = ["import-array", str(tmp_path / "t.npz"), str(tmp_path / "t.zarr"), "--object", "X", "--column-labels", "items"]
    assert main([*command, "--mode-labels", "visits,raters"]) == 0
    dataset = dfact.open_dataset(tmp_path / "t.zarr")
    assert [list(names) for names in (dataset.column_labels, *dataset.mode_labels)] == list(labels.values())
    assert main([*command, "--mode-labels", "raters,visits", "--overwrite"]) == 1
    assert "3" in capsys.readouterr().err


def test_info_and_transform(data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(data)]) == 0
    text = capsys.readouterr().out
    for expected in ("40 rows × 12 × 9 columns, float64", "band0, band1", "s0, s1"):
        assert expected in text
    assert main(["info", str(model), "--top", "2"]) == 0
    text = capsys.readouterr().out
    for expected in ("ElasticCP, 2 of 2 components left, of a tensor 40×12×9", "F2: weight ", "  mode 2: band"):
        assert expected in text
    out = tmp_path / "weights.csv"
    assert main(["transform", str(model), str(data), str(out)]) == 0
    assert f"{out}: weights of 40 slices in 2 components" in capsys.readouterr().out
    table = pd.read_csv(out)
    assert list(table["row"][:2]) == ["s0", "s1"]
    found, expected = table[["F1", "F2"]].to_numpy(), dfact.load_model(model).factors_[0][:]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["import-array", "nowhere.npz", "new.zarr"], 1, "nowhere.npz does not exist"),
        (
            ["import-array", "{file}", "new.zarr"],
            1,
            "holds 3 arrays (X 40×12×9, samples 40, bands 12), expected one; choose one with object (--object)",
        ),
        (["import-array", "{file}", "new.zarr", "--key", "Y"], 1, "has no array 'Y', expected one of X 40×12×9, samples 40, bands 12"),
        (["import-array", "{file}", "new.zarr", "--key", "samples"], 1, "expected at least one row and one column"),
        (["import-array", "{file}", "new.zarr", "--key", "X", "--missing", "none"], 2, "'none' is not a list of numbers"),
        (["import-array", "{file}", "{data}", "--key", "X"], 1, "exists already"),
        (["fit", "cp", "{data}"], 2, "Missing argument 'MODEL'"),
        (["fit", "cp", "{data}", "new.model", "-k", "0"], 1, "n_components is 0"),
        (["fit", "cp", "{data}", "new.model", "--lam", "-1"], 1, "lam is -1.0"),
        (["fit", "cp", "{data}", "new.model", "--solver", "best"], 2, "'best' is not one of 'bcd', 'stochastic'"),
        (["fit", "cp", "{data}", "{model}"], 1, "exists already"),
        (
            ["select", "cp", "{data}", "--criterion", "bic", "--holdout-fraction", "0"],
            1,
            "holdout_fraction is 0.0, expected a number between 0 and 1",
        ),
        (["select", "cp", "{data}", "--criterion", "aic"], 2, "'aic' is not one of 'replicability', 'held_out', 'bic'"),
        (["select", "cp", "{data}", "--lambdas", "low"], 2, "'low' is not a list of numbers"),
        (["select", "cp", "{data}", "--plot", "p.txt"], 1, "p.txt ends in '.txt'"),
        (["select", "cp", "{data}", "{model}"], 1, "exists already"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, message: str, ended: Ended, file: Path, data: Path, model: Path) -> None:
    ended([argument.format(file=file, data=data, model=model) for argument in arguments], code, message)


def test_python_objects_and_other_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("1,2,3")
    (tmp_path / "empty.npz").write_bytes(b"")
    for name in ("objects.npy", "text.npy", "empty.npz"):
        with pytest.raises(dfact.DataError, match=f"cannot read an array from .*{name}"):
            read_array_file(tmp_path / name)
    np.savez_compressed(tmp_path / "torn.npz", np.random.default_rng(0).standard_normal((50, 50)))
    torn = bytearray((tmp_path / "torn.npz").read_bytes())
    for start in (200, 5000):  # in the header and in the values
        torn[start : start + 60] = bytes(60)
        (tmp_path / "torn.npz").write_bytes(torn)
        with pytest.raises(dfact.DataError, match="cannot read an array from"):
            read_array_file(tmp_path / "torn.npz")
    np.save(tmp_path / "plain.npy", np.ones((2, 2)))
    with pytest.raises(dfact.ParameterError, match="holds one array without a name"):
        read_array_file(tmp_path / "plain.npy", "X")


@pytest.mark.further
def test_on_a_cluster(cluster: LocalCluster, data: Path, model: Path, tmp_path: Path) -> None:
    where = ["--scheduler", cluster.scheduler_address]
    assert main(["fit", "cp", str(data), str(tmp_path / "c.model"), "-k", "2", "--seed", "0", *where]) == 0
    np.testing.assert_array_equal(dfact.load_model(tmp_path / "c.model").components_, dfact.load_model(model).components_)
