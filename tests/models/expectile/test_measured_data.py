"""Expectile factorization of linear measurements in a dataset: recovery, the same as in memory, executors, the command, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dfact
from dfact.cli.main import main
from dfact.errors import DataError, ParameterError

N, M, K = 9, 7, 2


def measured(p: int = 150, noise: float = 0.0) -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    planted = rng.standard_normal((N, K)) @ rng.standard_normal((K, M))
    A = rng.standard_normal((p, N * M))
    return planted, A, A @ planted.ravel() + noise * rng.chisquare(3, p)


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.9])
def test_noiseless_measurements_are_recovered_from_a_dataset(tau: float, tmp_path: Path) -> None:
    planted, A, b = measured()
    dataset = dfact.import_array(A, tmp_path / "a.zarr")
    model = dfact.ExpectileMF(K, tau=tau, max_iter=500, tol=1e-13).fit_measurements(dataset, b, (N, M))
    assert np.linalg.norm(model.row_factors_ @ model.components_ - planted) <= 1e-6 * np.linalg.norm(planted)
    assert (np.diff(model.objective_history_) <= 1e-10 * model.objective_history_[0]).all()


@pytest.mark.parametrize("sparse", [False, True])
def test_blocks_give_what_memory_gives_and_every_executor_the_same(sparse: bool, tmp_path: Path, cut_rows: Any) -> None:
    cut_rows(block_entries=1 << 10, block_rows=(8, 64), chunk_entries=1 << 11, partition_entries=1 << 11)
    _, A, b = measured(noise=0.3)
    A = np.where(np.random.default_rng(2).random(A.shape) < 0.3, A, 0)
    dataset = dfact.import_array(sp.csr_array(A) if sparse else A, tmp_path / "a.zarr")
    settings: dict[str, Any] = {"tau": 0.2, "ridge": 0.01, "max_iter": 200, "tol": 1e-12}
    memory = dfact.ExpectileMF(K, **settings).fit_measurements(A, b, (N, M))
    stored, threads = (
        dfact.ExpectileMF(K, executor=each, **settings).fit_measurements(dataset, b, (N, M)) for each in ("inline", "threads")
    )
    np.testing.assert_array_equal(stored.column_factors_, threads.column_factors_)
    np.testing.assert_array_equal(stored.objective_history_, threads.objective_history_)
    product = memory.row_factors_ @ memory.components_
    np.testing.assert_allclose(stored.row_factors_ @ stored.components_, product, atol=1e-7 * np.abs(product).max())
    np.testing.assert_allclose(stored.objective_history_[-1], memory.objective_history_[-1], rtol=1e-10)


def test_the_command_fits_and_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted, A, b = measured()
    matrices, values, path = tmp_path / "a.zarr", tmp_path / "b.zarr", tmp_path / "m.model"
    dfact.import_array(A, matrices)
    dfact.import_array(b[:, None], values)
    command = ["fit", "emf", str(matrices), str(path), "-k", "2", "--tau", "0.1", "--tol", "1e-13", "--measurements", str(values)]
    assert main([*command, "--shape", "9x7", "--plan"]) == 0
    assert not path.exists()
    assert main([*command, "--shape", "9x7"]) == 0
    model = dfact.load_model(path)
    np.testing.assert_allclose(model.row_factors_ @ model.components_, planted, atol=1e-5 * np.abs(planted).max())
    assert "2 components of 9 rows × 7 columns" in capsys.readouterr().out
    for wrong, message in (
        ([], "--measurements and --shape go together"),
        (["--shape", "9x8"], "has 63 columns, expected 72"),
        (["--shape", "9x7", "--tau", "0.1,0.5"], "--measurements goes with one value of --tau"),
    ):
        assert main([*command, *wrong, "--overwrite"]) in (1, 2)
        assert message in " ".join(capsys.readouterr().err.split())


def test_wrong_measurements_are_refused(tmp_path: Path) -> None:
    _, A, b = measured(40)
    dataset = dfact.import_array(A, tmp_path / "a.zarr")
    model = dfact.ExpectileMF(K)
    with pytest.raises(DataError, match=r"b has \(39,\), expected \(40,\) finite numbers"):
        model.fit_measurements(dataset, b[:-1], (N, M))
    with pytest.raises(DataError, match="b has missing or infinite numbers"):
        model.fit_measurements(dataset, np.where(np.arange(40) == 3, np.nan, b), (N, M))
    with pytest.raises(ParameterError, match="shape is 63, expected numbers of rows and of columns"):
        model.fit_measurements(dataset, b, 63)  # type: ignore[arg-type]  # what a user may pass
    A[3, 5] = np.nan
    with pytest.raises(DataError, match="has missing entries, expected complete matrices"):
        model.fit_measurements(dfact.import_array(A, tmp_path / "c.zarr"), b, (N, M))
