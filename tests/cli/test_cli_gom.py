"""``dfact fit gom``, ``select gom``, and the commands that take their models."""

import sys
import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
from distributed import LocalCluster

import dfact
from dfact.cli.main import cli, main
from dfact.cli.types import Counts
from dfact.data.examples import ipip_ascado
from dfact.engine.executors import LocalSession
from tests.cli.conftest import Ended
from tests.conftest import planted_answers


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example data, imported as in the README."""
    path = tmp_path_factory.mktemp("data") / "ipip.zarr"
    assert main(["import", str(ipip_ascado()), str(path), "--items", "AS*,SC*,AD*,DO*", "--missing", "0", "--empty-rows", "drop"]) == 0
    return path


@pytest.fixture(scope="module")
def model(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "ipip.model"
    assert main(["fit", "gom", str(data), str(path), "-k", "2", "--seed", "0"]) == 0
    return path


@pytest.mark.parametrize("command", ["fit", "select"])
def test_choices_match_the_class(command: str) -> None:
    gom = cli.commands[command].commands["gom"]  # type: ignore[attr-defined]
    choices = {option.name: option.type.choices for option in gom.params if isinstance(option.type, click.Choice)}
    assert (tuple(choices["method"]), tuple(choices["vertex_hunting"])) == (("crsc", "srsc", "ssc", "srm"), ("kmeans", "svm-cone"))


@pytest.mark.parametrize(
    ("value", "found"),
    [("2-5", [2, 3, 4, 5]), ("2,3,5", [2, 3, 5]), ("7", [7]), ("8, 2 - 3,2", [8, 2, 3])],
)
def test_numbers_and_ranges(value: str, found: list[int]) -> None:
    assert Counts().convert(value, None, None) == found


@pytest.mark.further
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["fit", "gom", "{data}"], 2, "Missing argument 'MODEL'"),
        (["fit", "gom", "nowhere.zarr", "new.model"], 1, "nowhere.zarr does not exist, expected a dfact dataset"),
        (["fit", "gom", "{data}", "{model}"], 1, "exists already"),
        (["fit", "gom", "{data}", "new.model", "-k", "0"], 1, "Error: n_components is 0, expected an integer of at least 1"),
        (["fit", "gom", "{data}", "new.model", "-k", "41"], 1, "n_components=41 is larger than the data allows"),
        (["fit", "gom", "{data}", "new.model", "--method", "best"], 2, "'best' is not one of 'crsc', 'srsc', 'ssc', 'srm'"),
        (["fit", "gom", "{data}", "new.model", "--vertex-hunting", "best"], 2, "'best' is not one of 'kmeans', 'svm-cone'"),
        (["fit", "gom", "{data}", "new.model", "--tau", "-1"], 1, "tau is -1.0, expected a number of at least 0"),
        (["fit", "gom", "{data}", "new.model", "--max-response", "3"], 1, "expected 0 to 3"),
        (["fit", "gom", "{data}", "new.model", "--memory-limit", "1MB"], 1, "needs at least"),
        (["fit", "gom", "{data}", "new.model", "--scheduler", "a:1", "--executor", "inline"], 2, "--executor applies to this machine"),
        (["fit", "gom", "{data}", "new.model", "--plot", "items.txt"], 1, "items.txt ends in '.txt', expected one of .png, .pdf, .svg"),
        (["fit", "gom", "{data}", "new.model", "--plot", "{data}/zarr.json"], 1, "zarr.json ends in '.json'"),
        (["select", "gom"], 2, "Missing argument 'DATA'"),
        (["select", "gom", "{data}", "--components", "few"], 2, "'few' is not a number or a range, expected such as 2-10 or 2,3,5"),
        (["select", "gom", "{data}", "--components", "5-2"], 2, "'5-2' is an empty range"),
        (["select", "gom", "{data}", "--components", "2-41"], 1, "n_components=41 is larger than the data allows"),
        (["select", "gom", "{data}", "{model}"], 1, "exists already"),
        (["select", "gom", "{model}"], 1, "holds a dfact model, expected a dataset"),
        (["transform", "{data}", "{data}", "w.csv"], 1, "holds a dfact dataset, expected a model"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, message: str, ended: Ended, data: Path, model: Path) -> None:
    ended([argument.format(data=data, model=model) for argument in arguments], code, message)


@pytest.mark.further
def test_select_reproduces_the_figures_of_the_paper(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "best.model"
    assert main(["select", "gom", str(data), str(path), "--components", "2-10", "--criterion", "modularity", "--seed", "0"]) == 0
    captured = capsys.readouterr()
    assert "             2  0.006695    best (max)\n             3  " in captured.out
    assert captured.out.count("best") == 1
    assert "select: 5 of 5, memberships" in captured.err
    found = dfact.load_model(path)
    assert found.n_components == 2
    figures = [round(value, 4) for value in (found.modularity_, found.highly_pure_share_, found.highly_mixed_share_)]
    assert figures == [0.0067, 0.6036, 0.2112]


@pytest.mark.further
def test_select_resumes_from_a_checkpoint(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    passes: list[str] = []
    run = LocalSession.run

    def counted(self: LocalSession, request: Any) -> Any:
        passes.append(type(request.pass_).__name__)
        return run(self, request)

    monkeypatch.setattr(LocalSession, "run", counted)
    # Without a seed, the store keeps the one that was drawn.
    arguments = ["select", "gom", str(data), "--criterion", "modularity", "--components", "2-10", "--checkpoint", str(tmp_path / "kept")]
    assert main(arguments) == 0
    first, done = capsys.readouterr().out, len(passes)
    assert main(arguments) == 0
    assert capsys.readouterr().out == first
    assert 0 < done <= len(passes) < done + 10  # passes after the last version
    assert main([*arguments[:-3], "2-9", *arguments[-2:]]) == 1
    assert "belongs to another fit: n_components is [2, 3" in capsys.readouterr().err


def test_plot_without_matplotlib_is_refused_before_the_work(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["fit", "gom", str(data), str(tmp_path / "m.model"), "--plot", str(tmp_path / "m.png")]) == 1
    assert capsys.readouterr().err == "Error: plots need Matplotlib, which is not installed; install it: pip install 'dfact[plot]'\n"
    assert not list(tmp_path.iterdir())


def test_failed_plot_leaves_the_model(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise dfact.StoreError("the disk is full")

    monkeypatch.setattr("dfact.report.plots.save_figure", fail)
    assert main(["fit", "gom", str(data), str(tmp_path / "m.model"), "-k", "2", "--plot", str(tmp_path / "m.png")]) == 1
    assert dfact.load_model(tmp_path / "m.model").memberships_.shape == (1004, 2)


def test_select_without_a_model(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        arguments = ["select", "gom", str(data), "-k", "4,2", "--criterion", "modularity", "--method", "ssc", "--executor", "inline"]
        assert main([*arguments, "--dtype", "float64"]) == 0
    text, said = capsys.readouterr()
    assert "Warning: only the subject that defines the class has a membership of 0.9" in said
    assert "4  0.002086" in text.splitlines()[1]
    assert text.splitlines()[1].endswith("best (max)")
    assert "GradeOfMembership, 4 classes of 1004 subjects × 40 items" in text
    assert "method ssc; modularity 0.002086" in text
    assert not list(tmp_path.iterdir())


@pytest.mark.further
def test_fit_passes_all_options_to_the_estimator(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plot = tmp_path / "m.model", tmp_path / "items.png"
    options = "-k 3 --method crsc --vertex-hunting svm-cone --tau 2000 --max-response 6 --seed 3"
    options += " --dtype float64 --memory-limit 9GiB --executor threads"
    assert main(["fit", "gom", str(data), str(path), *options.split(), "--plot", str(plot)]) == 0
    captured = capsys.readouterr()
    found = dfact.load_model(path)
    expected = {"n_components": 3, "method": "crsc", "vertex_hunting": "svm-cone", "tau": 2000.0, "max_response": 6.0, "random_state": 3}
    expected |= {"dtype": "float64", "memory_limit": "9GiB"}
    assert found.get_params() == dfact.GradeOfMembership(**expected).get_params()  # type: ignore[arg-type]
    assert "responses 0 to 6" in captured.out
    assert "fit: 5 of 5, memberships" in captured.err
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert main(["fit", "gom", str(data), str(tmp_path / "n.model"), "--plot", str(plot)]) == 1
    assert "items.png exists already" in capsys.readouterr().err
    assert not (tmp_path / "n.model").exists()


def test_fit_equals_the_library(data: Path, model: Path) -> None:
    expected = dfact.GradeOfMembership(2, random_state=0).fit(dfact.open_dataset(data))
    found = dfact.load_model(model)
    np.testing.assert_array_equal(found.components_, expected.components_)
    np.testing.assert_array_equal(found.memberships_[:], expected.memberships_[:])


def test_plan(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gom", str(data), "--plan"]) == 0
    assert "peak of a process" in capsys.readouterr().out


def test_info(model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(model), "--top", "1"]) == 0
    text = capsys.readouterr().out
    names = list(dfact.load_model(model).get_feature_names_out())
    for expected in (
        "GradeOfMembership, 2 classes of 1004 subjects × 40 items, responses 0 to 5",
        "method='crsc'",
        dfact.open_dataset(data).fingerprint,
        f"{names[0]}: 51.0% of the memberships",
        "identified by subject 596",
        "SC6  1.71  -1.95",
    ):
        assert expected in text


def test_transform(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "memberships.csv"
    assert main(["transform", str(model), str(data), str(out)]) == 0
    assert f"{out}: memberships of 1004 subjects in 2 classes" in capsys.readouterr().out
    loaded = dfact.load_model(model)
    table = pd.read_csv(out)
    np.testing.assert_allclose(table[list(loaded.get_feature_names_out())], loaded.memberships_[:], atol=1e-6)
    np.testing.assert_allclose(table.drop(columns="row").sum(axis=1), 1, atol=1e-5)


@pytest.mark.further
def test_icqf_plots_its_loadings(tmp_path: Path) -> None:
    dfact.import_array(planted_answers(60, 8, 3, 0).astype(np.uint8), tmp_path / "a.zarr")
    assert main(["fit", "icqf", str(tmp_path / "a.zarr"), str(tmp_path / "a.model"), "-k", "2", "--plot", str(tmp_path / "a.svg")]) == 0
    assert "loading" in (tmp_path / "a.svg").read_text()


@pytest.mark.further
def test_on_a_cluster(
    cluster: LocalCluster, data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(data.parent)  # a folder that is not the working folder of the workers
    path = tmp_path / "cluster.model"
    arguments = ["select", "gom", data.name, str(path), "-k", "2,3", "--criterion", "modularity", "--seed", "0"]
    arguments += ["--scheduler", cluster.scheduler_address]
    assert main(arguments) == 0
    assert "2  0.006695    best" in capsys.readouterr().out
    np.testing.assert_array_equal(dfact.load_model(path).components_, dfact.load_model(model).components_)
