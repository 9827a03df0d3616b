"""``dfact fit emf``, ``select emf``, and the commands that take their models."""

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import LocalCluster

import dfact
from benchmarks.faults.fits import FORKSERVER, log_to
from dfact.cli.main import main
from dfact.cli.types import with_value
from dfact.engine.executors import LocalSession
from tests.cli.conftest import Ended


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Skewed response times, a third of them observed."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "times.zarr"
    M = rng.random((150, 2)) @ rng.random((2, 40)) + 0.1 * rng.chisquare(3, (150, 40))
    M[rng.random(M.shape) > 0.35] = np.nan
    dfact.import_array(M, path, row_labels=[f"user{i}" for i in range(150)], column_labels=[f"service{j}" for j in range(40)])
    return path


@pytest.fixture(scope="module")
def model(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "times.model"
    assert main(["fit", "emf", str(data), str(path), "-k", "2", "--tau", "0.1", "--ridge", "0.1"]) == 0
    return path


def test_fit_equals_the_library(data: Path, model: Path) -> None:
    expected = dfact.ExpectileMF(2, tau=0.1, ridge=0.1).fit(dfact.open_dataset(data))
    found = dfact.load_model(model)
    np.testing.assert_array_equal(found.components_, expected.components_)
    np.testing.assert_array_equal(found.row_factors_[:], expected.row_factors_[:])


@pytest.mark.further
def test_fit_passes_all_options_to_the_estimator(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plot = tmp_path / "m.model", tmp_path / "items.png"
    options = "-k 3 --tau 0.7 --ridge 0.2 --solver exact --init random --max-iter 7 --tol 0 --seed 4 --dtype float32 --memory-limit 9GiB"
    assert main(["fit", "emf", str(data), str(path), *options.split(), "--plot", str(plot)]) == 0
    captured = capsys.readouterr()
    expected = {"n_components": 3, "tau": 0.7, "ridge": 0.2, "solver": "exact", "init": "random", "max_iter": 7, "tol": 0.0}
    expected |= {"random_state": 4, "dtype": "float32", "memory_limit": "9GiB"}
    assert dfact.load_model(path).get_params() == dfact.ExpectileMF(**expected).get_params()  # type: ignore[arg-type]
    assert "stopped before it converged, after 7 iterations" in captured.out
    assert "fit: 7 of 7, objective" in captured.err
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_several_taus(data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fit", "emf", str(data), str(tmp_path / "t.model"), "-k", "2", "--tau", "0.1,0.9", "--ridge", "0.1"]
    assert main([*arguments, "--plot", str(tmp_path / "p.svg")]) == 0
    text = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p-0.1.svg", "p-0.9.svg", "t-0.1.model", "t-0.9.model"]
    for tau in (0.1, 0.9):
        assert f"{tmp_path}/t-{tau}.model\nmodel" in text
        assert dfact.load_model(tmp_path / f"t-{tau}.model").tau == tau
        assert f"expectiles at tau {tau}" in text
    np.testing.assert_allclose(dfact.load_model(tmp_path / "t-0.1.model").components_, dfact.load_model(model).components_, rtol=1e-6)
    assert main(arguments) == 1
    assert "t-0.1.model exists already" in capsys.readouterr().err


def test_names_with_value() -> None:
    assert with_value(Path("a/b.model"), 0.25) == Path("a/b-0.25.model")
    assert with_value(Path("b"), 0.5) == Path("b-0.5")


@pytest.mark.parametrize("tau", ["0.5", "0.1,0.5,0.9"])
def test_plan(tau: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "emf", str(data), "--tau", tau, "--plan"]) == 0
    assert "peak of a process" in capsys.readouterr().out


@pytest.mark.further
def test_select(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "best.model"
    options = "-k 1,2,6 --ridge 0.1,1 --tau 0.1 --holdout-fraction 0.2 --bins 0,0.5,1,5 --repeats 2 --seed 0 --max-iter 30"
    assert main(["select", "emf", str(data), str(path), *options.split()]) == 0
    text, said = capsys.readouterr()
    expected = dfact.selection.select_by_held_out(
        dfact.ExpectileMF(tau=0.1, max_iter=30),
        dfact.open_dataset(data),
        {"n_components": [1, 2, 6], "ridge": [0.1, 1]},
        holdout_fraction=0.2,
        bins=[0, 0.5, 1, 5],
        n_repeats=2,
        random_state=0,
    )
    found = dfact.load_model(path)
    assert {name: found.get_params()[name] for name in expected.best_params} == expected.best_params
    assert found.n_components == 2
    np.testing.assert_array_equal(found.components_, expected.model.components_)
    header, *lines = text.splitlines()[:7]
    columns = "n_components ridge loss se se_difference below below_expected deviation_below median q25 q75 n zeros"
    assert " ".join(header.split()) == f"{columns} 0 to 0.5 0.5 to 1 1 to 5"
    assert [" best (" in line for line in lines].count(True) == 1
    assert f"{expected.table['loss'].min():.6f}" in text
    assert "12 fits, iteration" in said


def test_select_for_several_taus(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each τ gets a choice and a model of its own, which say how often their order is wrong."""
    options = "-k 1,2 --ridge 0.1,1 --tau 0.1,0.9 --seed 0 --max-iter 20"
    assert main(["select", "emf", str(data), str(tmp_path / "t.model"), *options.split(), "--plot", str(tmp_path / "p.svg")]) == 0
    text = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p-0.1.svg", "p-0.9.svg", "t-0.1.model", "t-0.9.model"]
    assert [" best (" in line for line in text.splitlines()].count(True) == 2
    assert f"{tmp_path}/t-0.1.model\n  n_components" in text
    models = [dfact.load_model(tmp_path / f"t-{tau}.model") for tau in (0.1, 0.9)]
    assert [model.selection_.values[model.selection_.best][-1] for model in models] == [0.1, 0.9]
    assert models[0].crossed_ == models[1].crossed_ < 0.5
    assert f"below tau 0.9 except at {models[0].crossed_[0]:.1%} of entries" in text
    assert main(["info", str(tmp_path / "t-0.9.model")]) == 0
    assert "above tau 0.1 except at" in capsys.readouterr().out


SELECT = ["--ridge", "0.1,0.5", "--tau", "0.1", "--seed", "0", "--max-iter", "20", "--tol", "0"]


@pytest.mark.further
def test_select_resumes_from_a_checkpoint(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["select", "emf", str(data), "-k", "1,2", *SELECT, "--checkpoint", str(tmp_path / "kept")]
    assert main(arguments) == 0
    first = capsys.readouterr()
    assert main(arguments) == 0
    again = capsys.readouterr()
    assert again.out == first.out
    assert "4 fits, iteration" in first.err
    assert "4 fits, iteration" not in again.err
    assert main([*arguments, "--repeats", "2"]) == 1
    assert "belongs to another selection: repeats is 1, expected 2" in capsys.readouterr().err


def run_until_killed(job: str, passes: int, log: str) -> None:
    """Run a job in this process, which is killed before the next pass after this number of them."""
    log_to(Path(log))
    run_pass, left = LocalSession.run, itertools.count(passes, -1)

    def run(self: LocalSession, request: Any) -> Any:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return run_pass(self, request)

    LocalSession.run = run  # type: ignore[method-assign]  # for the whole process
    main(["run", job])


@pytest.mark.further
@pytest.mark.process
@pytest.mark.faults
@pytest.mark.needs("batch")
def test_selection_killed_within_a_job_resumes(
    data: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits: list[str] = []
    run = LocalSession.run

    def counted(self: LocalSession, request: Any) -> Any:
        visits.append(type(request.pass_).__name__)
        return run(self, request)

    monkeypatch.setattr(LocalSession, "run", counted)
    assert main(["select", "emf", str(data), str(tmp_path / "expected.model"), "-k", "1,2", *SELECT]) == 0
    total, last = len(visits), len(visits) - visits[::-1].index("FusedPass")
    job = tmp_path / "job.toml"
    options = "components = '1,2'\nridge = '0.1,0.5'\ntau = '0.1'\nseed = 0\nmax-iter = 20\ntol = 0"
    job.write_text(f'[[step]]\nrun = "select emf"\ndata = "{data}"\nmodel = "found.model"\n{options}\n')
    # Kill the process within the fits that share reads, and within the last fit; a checkpoint every 10 passes loses less than that.
    log = tmp_path_factory.mktemp("log") / "log"
    for number in (last - 5, 25):
        process = FORKSERVER.Process(target=run_until_killed, args=(str(job), number, str(log)))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, log.read_text()
    visits.clear()
    assert main(["run", str(job)]) == 0
    assert 0 < len(visits) < total - last
    found, expected = (dfact.load_model(tmp_path / name) for name in ("found.model", "expected.model"))
    for name in ("column_factors_", "row_factors_", "objective_history_"):
        np.testing.assert_array_equal(getattr(found, name)[:], getattr(expected, name)[:])
    assert found.selection_.best == expected.selection_.best
    np.testing.assert_array_equal(found.selection_.figures, expected.selection_.figures)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected.model", "found.model", "job.toml", "job.toml.state"]


def test_info_and_transform(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(model), "--top", "1"]) == 0
    text = capsys.readouterr().out
    for expected in ("ExpectileMF, 2 components of 150 rows × 40 columns", "tau=0.1", "F2: norm ", "  service"):
        assert expected in text
    out = tmp_path / "factors.csv"
    assert main(["transform", str(model), str(data), str(out)]) == 0
    assert f"{out}: 2 components of 150 rows" in capsys.readouterr().out
    table = pd.read_csv(out)
    assert list(table["row"][:2]) == ["user0", "user1"]
    np.testing.assert_allclose(table[["F1", "F2"]], dfact.load_model(model).row_factors_[:], rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["fit", "emf", "{data}"], 2, "Missing argument 'MODEL'"),
        (["fit", "emf", "nowhere.zarr", "new.model"], 1, "nowhere.zarr does not exist, expected a dfact dataset"),
        (["fit", "emf", "{data}", "{model}"], 1, "exists already"),
        (["fit", "emf", "{data}", "new.model", "--tau", "1.5"], 1, "tau is 1.5, expected a number between 1e-6 and 1 - 1e-6"),
        (["fit", "emf", "{data}", "new.model", "--tau", "0.1,1"], 1, "tau is 1.0, expected a number between 1e-6 and 1 - 1e-6"),
        (["fit", "emf", "{data}", "new.model", "--tau", "low"], 2, "'low' is not a list of numbers"),
        (["fit", "emf", "{data}", "new.model", "--ridge", "0"], 1, "ridge is 0.0, expected a number above 0"),
        (["fit", "emf", "{data}", "new.model", "-k", "0"], 1, "n_components is 0, expected an integer of at least 1"),
        (["fit", "emf", "{data}", "new.model", "--solver", "best"], 2, "'best' is not one of 'exact', 'surrogate'"),
        (["fit", "emf", "{data}", "new.model", "--memory-limit", "1MB"], 1, "needs at least"),
        (["fit", "emf", "{data}", "new.model", "--tau", "0.1,0.5", "--memory-limit", "1MB"], 1, "needs at least"),
        (["fit", "emf", "{data}", "new.model", "--tau", "0.1,0.5", "--plot", "p.txt"], 1, "p.txt ends in '.txt'"),
        (["select", "emf"], 2, "Missing argument 'DATA'"),
        (["select", "emf", "{data}", "{model}"], 1, "exists already"),
        (["select", "emf", "{data}", "--holdout-fraction", "1"], 1, "holdout_fraction is 1.0, expected a number between 0 and 1"),
        (["select", "emf", "{data}", "--bins", "2,1"], 1, "bins are [2.0, 1.0], expected at least two numbers"),
        (["select", "emf", "{data}", "--bins", "low"], 2, "'low' is not a list of numbers"),
        (["select", "emf", "{data}", "--error", "squared"], 2, "'squared' is not one of 'expectile', 'relative', 'absolute'"),
        (["select", "emf", "{model}"], 1, "holds a dfact model, expected a dataset"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, message: str, ended: Ended, data: Path, model: Path) -> None:
    ended([argument.format(data=data, model=model) for argument in arguments], code, message)


@pytest.mark.further
def test_on_a_cluster(cluster: LocalCluster, data: Path, model: Path, tmp_path: Path) -> None:
    where = ["--scheduler", cluster.scheduler_address]
    assert main(["fit", "emf", str(data), str(tmp_path / "c.model"), "-k", "2", "--tau", "0.1", "--ridge", "0.1", *where]) == 0
    np.testing.assert_array_equal(dfact.load_model(tmp_path / "c.model").components_, dfact.load_model(model).components_)
    assert main(["select", "emf", str(data), "-k", "1,2", "--ridge", "0.1", "--seed", "0", *where]) == 0
