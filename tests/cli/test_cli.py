"""The command line: printed text, written files and exit codes."""

import asyncio
import json
import logging
import re
import shlex
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.shell_completion import ShellComplete
from distributed import LocalCluster
from distributed.comm import CommClosedError

import dfact
from benchmarks.faults.commands import Command
from dfact.cli.main import cli, main
from dfact.cli.options import cluster as connected
from dfact.cli.options import split_list
from tests.cli.conftest import Ended
from tests.conftest import CutRows, planted_answers

N, M = 120, 12


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers 1 to 4, −9 and NA missing; an id, two confounders, a column to ignore."""
    path = tmp_path_factory.mktemp("table") / "survey.csv"
    rng = np.random.default_rng(0)
    answers = planted_answers(N, M, 3, 0, 0.05) + 1
    frame = pd.DataFrame(answers, columns=[f"Q{j}" for j in range(M)]).astype("Int64").astype(object)
    frame = frame.fillna("NA")
    frame.iloc[0, 0] = -9
    frame.insert(0, "id", [f"p{i}" for i in range(N)])
    frame["age"] = rng.integers(18, 80, N)
    frame["sex"] = rng.choice(["f", "m", "?"], N)
    frame["note"] = "text"
    frame.to_csv(path, index=False)
    return path


def import_arguments(table: Path, path: Path) -> list[str]:
    options = "--items Q* --id-column id --missing -9,NA --confounder age:continuous --confounder sex --confounder-missing ?"
    return ["import", str(table), str(path), *options.split()]


@pytest.fixture(scope="module")
def data(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "survey.zarr"
    assert main(import_arguments(table, path)) == 0
    return path


@pytest.fixture(scope="module")
def model(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "survey.model"
    assert main(["fit", "icqf", str(data), str(path), "-k", "3"]) == 0
    return path


# Progress, completion


def test_progress_is_hidden_or_a_line_for_each_iteration(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fit = ["fit", "icqf", str(data), str(tmp_path / "m.model"), "-k", "2", "--max-iter", "3", "--overwrite"]
    assert main(["--quiet", *fit]) == 0
    assert all(line.startswith("Warning: ICQF did not converge") for line in capfd.readouterr().err.splitlines())
    assert main(["-v", *fit]) == 0
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines if line.startswith("iteration")] == [f"iteration {i} of 3" for i in (1, 2, 3)]
    assert not any(line.startswith("fit: ") for line in lines)
    assert main(fit) == 0
    assert "fit: 3 of 3" in capfd.readouterr().err
    assert main(["-q", "-v", *fit]) == 2
    assert not logging.getLogger("dfact").handlers


@pytest.mark.parametrize(("arguments", "kinds"), [(["info"], {"file"}), (["fit", "icqf"], {"file"}), (["fi"], {"plain"})], ids=str)
def test_the_shell_completes_commands_and_paths(arguments: list[str], kinds: set[str]) -> None:
    complete = ShellComplete(cli, {}, "dfact", "_DFACT_COMPLETE")
    given, incomplete = (arguments, "") if kinds == {"file"} else ([], arguments[0])
    assert {item.type for item in complete.get_completions(given, incomplete)} == kinds


# Versions, errors


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert dfact.__version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "Usage: dfact"),
        (["fits"], 2, "No such command 'fits'"),
        (["info"], 2, "Missing argument 'PATH'"),
        (["info", "nowhere.zarr"], 1, "nowhere.zarr does not exist, expected a dfact dataset"),
        (["info", "{table}"], 1, "survey.csv is a file, expected a dataset; import it: dfact import"),
        (["import", "{table}", "new.zarr"], 1, "which of its 16 columns are items?"),
        (["import", "nowhere.csv", "new.zarr", "--items", "Q*"], 1, "Error: nowhere.csv does not exist"),
        (["import", "{table}", "new.zarr", "--items", "Z*"], 1, "no column matches 'Z*'"),
        (["import", "{table}", "new.zarr", "--items", "Q*", "--valid-range", "1", "x"], 2, "'x' is not a valid float"),
        (["import", "{table}", "{data}", "--items", "Q*", "--missing", "NA"], 1, "exists already"),
        (["fit", "icqf", "{data}"], 2, "Missing argument 'MODEL'"),
        (["fit", "icqf", "{data}", "{model}"], 1, "exists already"),
        (["fit", "icqf", "{data}", "new.model", "-k", "0"], 1, "Error: n_components is 0, expected an integer of at least 1"),
        (["fit", "icqf", "{data}", "new.model", "-k", "13"], 1, "n_components=13 is larger than the data allows"),
        (["fit", "icqf", "{data}", "new.model", "-k", "many"], 2, "'many' is not a valid integer"),
        (["fit", "icqf", "{data}", "new.model", "--rho", "0"], 1, "rho is 0.0, expected a number from 1e-6 to 1e6"),
        (["fit", "icqf", "{data}", "new.model", "--bounds", "0", "1"], 1, "outside bounds=(0, 1)"),
        (["fit", "icqf", "{data}", "new.model", "--memory-limit", "much"], 1, "memory_limit is 'much'"),
        (["fit", "icqf", "{data}", "new.model", "--memory-limit", "1MB"], 1, "needs at least"),
        (["fit", "icqf", "{data}", "new.model", "--scheduler", "nonsense"], 1, "no Dask scheduler answers at nonsense"),
        (["fit", "icqf", "{data}", "new.model", "--scheduler", "a:1", "--executor", "inline"], 2, "--executor applies to this machine"),
        (["fit", "icqf", "{model}", "new.model"], 1, "holds a dfact model, expected a dataset"),
        (["transform", "{data}", "{data}", "w.csv"], 1, "holds a dfact dataset, expected a model"),
        (["transform", "{model}", "{data}", "w.txt"], 1, "w.txt ends in '.txt', expected one of .csv, .parquet, .zarr"),
        (["transform", "{model}", "{data}", "{table}"], 1, "exists already"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, message: str, ended: Ended, table: Path, data: Path, model: Path) -> None:
    ended([argument.format(table=table, data=data, model=model) for argument in arguments], code, message)


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", "info", "nowhere\x1b[2J"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("Traceback (most recent call last):")
    assert "StoreError: " in error.splitlines()[-1]
    assert r"nowhere\x1b[2J" in error
    assert "\x1b" not in error


def test_warnings_are_one_line(data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(*_: Any) -> str:
        warnings.warn("row 3 has no answer", UserWarning, stacklevel=2)
        return ""

    monkeypatch.setattr("dfact.cli.info.dataset_text", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["info", str(data)]) == 0
    assert capsys.readouterr().err == "Warning: row 3 has no answer\n"


def test_list_options_split_at_commas() -> None:
    context, parameter = click.Context(cli), click.Option(["--x"])
    assert split_list(context, parameter, ("a, b", "c", "")) == ["a", "b", "c"]


# import, info


def test_import_does_what_import_table_does(table: Path, data: Path, tmp_path: Path) -> None:
    found = dfact.open_dataset(data)
    same = dfact.import_table(
        table,
        tmp_path / "same.zarr",
        items="Q*",
        id_column="id",
        missing=[-9, "NA"],
        confounders={"age": "continuous", "sex": None},
        confounder_missing="?",
    )
    assert found.shape == (N, M)
    assert found.fingerprint == same.fingerprint


def test_import_options(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    semicolons = tmp_path / "survey.data"
    semicolons.write_text(table.read_text().replace(",", ";") + "pX" + ";NA" * M + ";30;f;\n")
    path = tmp_path / "survey.zarr"
    options = ["--delimiter", ";", "--items", "Q0,Q1", "--items", "Q2", "--missing", "-9", "--missing", "NA", "--no-shift"]
    arguments = ["import", str(semicolons), str(path), *options, "--valid-range", "1", "9", "--empty-rows", "drop"]
    assert main(arguments) == 0
    dataset = dfact.open_dataset(path)
    assert list(dataset.column_labels) == ["Q0", "Q1", "Q2"]
    assert dataset.dropped_rows == 1
    assert dataset.confounders is None
    assert not dataset.offset.any()
    assert (dataset.valid_range == [1, 9]).all()
    assert "1 without any answer left out" in capsys.readouterr().out
    assert main(arguments) == 1
    assert main([*arguments, "--overwrite"]) == 0


def test_info_of_a_dataset(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(data)]) == 0
    text = capsys.readouterr().out
    dataset = dfact.open_dataset(data)
    for expected in (
        f"{N} participants × {M} items, uint8, 255 = missing",
        f"{dataset.missing_rate:.2%} of the answers, at most",
        "answers 1 to 4, stored as 0 to 3",
        "Q0, Q1, Q2, Q3, …, Q10, Q11",
        "p0, p1, p2, …",
        "age: continuous, min 1",
        "sex: categorical, f (",
        dataset.fingerprint,
        "1 chunk(s) of 2048 × 12",
    ):
        assert expected in text


def test_info_verifies(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, expected in ((data, "arrays and all attributes are those that were written"), (model, "array and attribute has its digest")):
        assert main(["info", str(path), "--verify", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["verified"].endswith(expected)
        assert main(["info", str(path), "--verify"]) == 0
        assert re.search(rf"\nverified: .*{expected}\n$", capsys.readouterr().out)
        copy = Path(shutil.copytree(path, tmp_path / path.name))
        chunk = next(each for each in sorted(copy.rglob("*")) if each.is_file() and each.name != "zarr.json")
        chunk.write_bytes(chunk.read_bytes()[:-1] + b"\0")
        assert main(["info", str(copy), "--verify"]) == 1
        assert str(chunk.relative_to(copy).parts[0]) in capsys.readouterr().err


def test_info_of_a_model(model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(model), "--top", "2"]) == 0
    text = capsys.readouterr().out
    for expected in (
        f"ICQF, 3 factors of {N} participants × {M} items, 5 confounder columns",
        "beta=0.1",
        dfact.open_dataset(data).fingerprint,
        f"numpy {np.__version__}",
        "F1: strong for",
        "items show no difference beyond 0.17 SD",
    ):
        assert expected in text


# fit


@pytest.mark.needs("questionnaires")
@pytest.mark.filterwarnings("ignore:the correlation with the rest of the scale is negative")
def test_json_documents_hold_what_the_tables_hold(data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*arguments: str) -> dict[str, Any]:
        assert main([*arguments, "--json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # NaN is not JSON
        assert (document["schema"], document["dfact"]) == (1, dfact.__version__)
        return document

    copied = shutil.copytree(model, tmp_path / "copied.model")
    fitted, dataset = dfact.load_model(model), dfact.open_dataset(data)
    found = {name: printed("info", str(path)) for name, path in (("dataset", data), ("model", model))}
    assert [document["kind"] for document in found.values()] == ["dataset", "model"]
    assert [item["item"] for item in found["dataset"]["items"]] == list(dataset.column_labels)
    assert {each["name"] for each in found["dataset"]["confounders"]} == {"age", "sex"}
    loadings = pd.DataFrame(found["model"]["loadings"]).set_index("item")
    pd.testing.assert_frame_equal(loadings, fitted.loadings_, check_dtype=False, check_index_type=False, check_column_type=False)
    assert found["model"]["figures"]["n_iter"] == fitted.n_iter_
    plan = printed("fit", "icqf", str(data), "-k", "2", "--plan")
    assert plan["kind"] == "plan"
    assert plan["fits"]
    assert plan["peak"] == plan["baseline"] + plan["working"] + plan["driver"] + plan["resident"]
    described = printed("describe", str(data))
    assert len(described["items"]) == M
    assert described["sphericity"]["df"] == M * (M - 1) / 2
    chosen = printed("select", "icqf", str(data), "-k", "1,2", "--seed", "0")
    assert chosen["best"]["n_components"] in (1, 2)
    assert [row["n_components"] for row in chosen["candidates"]] == [1, 2]
    stability = printed("stability", str(copied), str(data), "--resamples", "3", "--seed", "0")
    assert len(stability["loadings"]) == M * len(stability["components"])
    assert {type(row["low"]) for row in stability["loadings"]} <= {float, type(None)}
    even = dfact.import_array(planted_answers(2 * N, M, 2, 0), tmp_path / "even.zarr", confounders={"sex": ["f", "m"] * N})
    dfact.save_model(dfact.ICQF(2, random_state=0).fit(even.with_confounders(None)), tmp_path / "even.model")
    arguments = ["--by", "sex", "--resamples", "30", "--no-test", "--seed", "0"]
    compared = printed("compare", str(tmp_path / "even.model"), str(tmp_path / "even.zarr"), *arguments)
    assert [group["level"] for group in compared["groups"]] == ["f", "m"]
    assert compared["factors_untested"] == "not asked for"


def test_fit_passes_all_options_to_the_estimator(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.model"
    options = "--components 2 --beta 0.2 --rho 2 --max-iter 7 --tol 0 --init random --seed 3 --q-max 2.5 --w-max 0.9 --bounds 0 3.5"
    more = "--dtype float64 --memory-limit 9GiB --executor threads --no-confounders"
    assert main(["fit", "icqf", str(data), str(path), *options.split(), *more.split()]) == 0
    captured = capsys.readouterr()
    model = dfact.load_model(path)
    expected = {"n_components": 2, "beta": 0.2, "rho": 2.0, "max_iter": 7, "tol": 0.0, "init": "random", "random_state": 3, "q_max": 2.5}
    expected |= {"w_max": 0.9, "bounds": (0.0, 3.5), "dtype": "float64", "memory_limit": "9GiB"}
    assert model.get_params() == dfact.ICQF(**expected).get_params()
    assert model.confounder_encoding_ is None
    assert model.factors_.dtype == np.float64
    assert "stopped before it converged, after 7 iterations" in captured.out
    assert "F2: strong for" in captured.out
    assert "intercept" not in captured.out
    assert "fit: 7 of 7, objective" in captured.err


def test_fit_equals_the_library(data: Path, model: Path) -> None:
    expected = dfact.ICQF(3).fit(dfact.open_dataset(data))
    found = dfact.load_model(model)
    np.testing.assert_array_equal(found.components_, expected.components_)
    np.testing.assert_array_equal(found.objective_history_, expected.objective_history_)


def test_plan(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "icqf", str(data), "--plan"]) == 0
    assert "peak of a process" in capsys.readouterr().out
    assert main(["fit", "icqf", str(data), "--plan", "--memory-limit", "1MB"]) == 1
    captured = capsys.readouterr()
    assert "peak of a process" in captured.out
    assert "needs at least" in captured.err


# transform


@pytest.mark.further
@pytest.mark.parametrize("ending", ["csv", "parquet", "zarr"])
def test_transform(model: Path, data: Path, tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / f"factors.{ending}"
    assert main(["transform", str(model), str(data), str(out)]) == 0
    assert f"3 factors of {N} participants" in capsys.readouterr().out
    loaded = dfact.load_model(model)
    expected = np.asarray(loaded.factors_)
    if ending == "zarr":
        found = xr.open_zarr(out)
        assert list(found["component"].values) == list(loaded.get_feature_names_out())
        np.testing.assert_array_equal(found["factors"].values, expected)
        assert list(found["row"].values[:2]) == ["p0", "p1"]
    else:
        table = pd.read_csv(out) if ending == "csv" else pd.read_parquet(out)
        assert list(table["row"]) == [f"p{i}" for i in range(N)]
        assert list(table)[1:] == list(loaded.get_feature_names_out())
        np.testing.assert_allclose(table.iloc[:, 1:], expected, rtol=1e-6)
    assert main(["transform", str(model), str(data), str(out)]) == 1
    assert main(["transform", str(model), str(data), str(out), "--overwrite", "--memory-limit", "9GiB"]) == 0


@pytest.mark.further
def test_transform_of_other_data_is_refused(model: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = import_arguments(table, tmp_path / "other.zarr")
    out = tmp_path / "w.csv"
    for change, message in (
        (["--items", "Q1*"], "X has 3 items, the model was fitted on 12"),
        (["--items", ",".join(f"Q{j}" for j in reversed(range(M)))], "column 0 of X is 'Q11', of the fitted data 'Q0'"),
        (["--items", "Q*", "--no-shift"], "answers of 'Q0' begin at 0 in X, at 1 in the fitted data; import X with the valid_range"),
    ):
        assert main([*arguments[:3], *change, *arguments[5:], "--overwrite"]) == 0
        assert main(["transform", str(model), str(tmp_path / "other.zarr"), str(out)]) == 1
        assert message in capsys.readouterr().err
    assert not out.exists()


# A cluster, an interrupt, the demo


@pytest.mark.further
def test_on_a_cluster(
    cluster: LocalCluster,
    data: Path,
    tmp_path: Path,
    cut_rows: CutRows,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(data.parent)  # a folder that is not the working folder of the workers
    cut_rows(block_rows=(16, 32), partition_entries=1 << 9)
    for name, options in (("cluster", ["--scheduler", cluster.scheduler_address]), ("here", [])):
        model, out = str(tmp_path / f"{name}.model"), str(tmp_path / f"{name}.csv")
        assert main(["fit", "icqf", data.name, "-k", "3", "--plan", *options]) == 0
        assert main(["fit", "icqf", data.name, model, "-k", "3", *options]) == 0
        assert main(["transform", model, data.name, out, *options]) == 0
    printed = capsys.readouterr().out
    assert "4 partitions of 32 rows, blocks of 32" in printed
    assert "distributed, 2 process(es) of 1 thread(s)" in printed
    first, second = (dfact.load_model(tmp_path / f"{name}.model") for name in ("cluster", "here"))
    np.testing.assert_array_equal(first.components_, second.components_)
    assert (tmp_path / "cluster.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()


def test_a_cluster_that_is_lost(cluster: LocalCluster) -> None:
    with (
        pytest.raises(dfact.DfactError, match="the Dask scheduler is lost: the scheduler is gone"),
        connected(cluster.scheduler_address),
    ):
        raise CommClosedError("the scheduler is gone")


def test_a_connection_from_a_running_event_loop(cluster: LocalCluster) -> None:
    """The thread of a notebook runs an event loop."""

    async def cell() -> int:
        with connected(cluster.scheduler_address) as client:
            return len(client.nthreads())

    levels = {name: logging.getLogger(name).level for name in ("asyncio", "distributed.client")}
    assert asyncio.run(cell()) == 2
    assert {name: logging.getLogger(name).level for name in levels} == levels


@pytest.mark.further
@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_a_fit_without_checkpoint_at_once(number: signal.Signals, tmp_path: Path) -> None:
    data, folder = tmp_path / "a.zarr", tmp_path / "command"
    folder.mkdir()
    dfact.import_array(planted_answers(5000, 40, 4, 0).astype(np.uint8), data)
    command = Command(folder, "fit", "icqf", data, tmp_path / "a.model", "--tol", "0", "--max-iter", "1000000")
    command.says("fit: 0 of 1000000, pass 1")
    command.send(number)
    assert command.ended() == 128 + number, command.said
    *progress, last = command.said.splitlines()
    assert all(line.startswith("fit: ") for line in progress), command.said  # no results, no traceback
    assert last == "Stopped: nothing half-written was left behind."
    assert {path.name for path in tmp_path.iterdir()} == {data.name, folder.name}
    assert not [*(folder / "tmp").iterdir()]


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my demo"
    assert main(["demo", "--output", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "Don't mind being the center of attention." in printed
    assert "28 of 40 items show no difference beyond 0.17 SD; the others are measured against them" in printed
    assert "converged after" in printed
    data, model = folder / "answers.zarr", folder / "factors4.model"
    names = ["answers.csv", "answers.zarr", "factors.csv", "factors4.model", "items.csv", "new_people.csv", "survey.csv"]
    assert sorted(path.name for path in folder.iterdir()) == names
    factors = pd.read_csv(folder / "factors.csv")
    assert factors.shape == (1004, 5)
    assert printed.startswith("1004 people rated 40 statements")
    # The commands can be copied, and the one that follows works.
    monkeypatch.chdir(tmp_path)
    commands = [line for line in printed.replace("\\\n", "").splitlines() if line.startswith("  dfact ")]
    assert len(commands) == 4
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command
    assert dfact.load_model("six.model").factors_.shape == (1004, 6)
    assert dfact.open_dataset(data).fingerprint == dfact.load_model(model).fingerprint_
    assert main(["demo", "tensor", "--output", "."]) == 1
    assert "contains other files, expected an empty folder" in capsys.readouterr().err
    assert main(["demo", "ratings", "--output", "my demo"]) == 0, "another kind"


@pytest.mark.parametrize("command", ["fit icqf", "fit cp", "select icqf", "stability"])
def test_empty_checkpoint_path_is_refused(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), str(tmp_path / "a"), str(tmp_path / "b"), "--checkpoint", ""]) == 2
    assert "Invalid value for '--checkpoint': the location is '', expected a path" in capsys.readouterr().err
