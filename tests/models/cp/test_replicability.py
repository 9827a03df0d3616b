"""Number of components by replicability over folds of mode 1, and the choice of the criterion."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.errors import DataError, ParameterError
from dfact.models.cp.plots import selection_plot
from dfact.models.cp.replicability import _assign, _Rule, independent_similarity
from dfact.models.cp.selection import select_components
from dfact.report.selection import selection_text
from dfact.selection import core_consistency, replicability, select_by_criterion, select_by_held_out, select_penalty
from tests.cases import exhaustive_after
from tests.conftest import REAL_DATA
from tests.models.cp.test_penalty_selection import planted

needs_tensors = pytest.mark.skipif(not (REAL_DATA / "tensors" / "amino.npz").exists(), reason="the real tensors are not there")


def elastic(**settings: Any) -> Any:
    return dfact.ElasticCP(**({"lam": 1e-8, "max_iter": 300, "n_init": 1} | settings))


@pytest.mark.further
@pytest.mark.parametrize(("rank", "missing", "noise", "seed"), [(2, 0.0, 0.5, 0), (3, 0.2, 0.5, 1), (4, 0.1, 0.3, 2)])
def test_the_score_falls_after_the_planted_number(rank: int, missing: float, noise: float, seed: int) -> None:
    Z = planted((24, 9, 8), rank, seed, missing=missing, noise=noise)
    found = replicability(elastic(n_init=3), Z, range(rank - 1, rank + 2), n_folds=4, n_starts=2, random_state=seed)
    assert found.best_params == {"n_components": rank}
    assert found.model.rank_ == rank
    score, fms = (found.table[name] for name in ("replicability", "fms"))
    assert score[rank] > 0.9
    assert score[rank + 1] < 0.7
    assert fms[rank] - fms[rank + 1] > 0.05
    assert (found.table["fms_low"] <= fms).all()
    assert found.table["explained"].is_monotonic_increasing
    assert_allclose(found.folds.median(axis=1), found.table["fms_full"])
    assert found.folds.shape == (3, 4)


@pytest.mark.further
def test_tensorlys_fits_choose_alike_and_all_executors_the_same(client: Client, tmp_path: Path) -> None:
    Z = planted((20, 7, 6), 2, 0, noise=0.4)

    def choose(model: Any, data: Any, numbers: list[int]) -> Any:
        return replicability(model, data, numbers, n_folds=3, n_starts=2, random_state=0)

    assert choose(dfact.CPALS(), Z, [1, 2, 3]).best_params == {"n_components": 2}
    expected = choose(elastic(executor="inline", max_iter=15), Z, [2]).table
    assert expected.equals(choose(elastic(executor="threads", max_iter=15), Z, [2]).table)
    stored = dfact.import_array(Z, tmp_path / "z.zarr")
    assert expected.equals(choose(elastic(executor=client, max_iter=15), stored, [2]).table)


@pytest.mark.further
@needs_tensors
def test_amino_acids_are_three() -> None:
    X = np.load(REAL_DATA / "tensors" / "amino.npz")["X"]
    found = replicability(elastic(max_iter=200), X, [2, 3, 4], n_starts=2, random_state=0)
    assert found.table.at[3, "core_consistency"] > 90
    assert found.table.at[4, "core_consistency"] < 0
    assert found.best_params == {"n_components": 3}
    assert found.folds.shape == (3, 5)  # five samples
    assert found.table.at[3, "fms_low"] > 0.99
    assert found.table.at[4, "fms_low"] < 0.8


@pytest.mark.parametrize(
    ("scores", "consistency", "best"),
    [
        ([0.99, 0.5, 0.95, 0.3], [100, 99, 98, 97], 2),
        ([0.99, 0.98, 0.2, 0.1], [100, 99, 98, 97], 1),
        ([0.5, 0.8, 0.7], [100, 99, 98], None),
        ([0.95, 0.99], [100, 99], 1),
        ([0.99, 0.98, 0.97], [100, 60, -6e8], 1),  # the third is replicable, as components that cancel each other are
        ([0.5, 0.8, 0.99], [100, 60, -6e8], None),
        ([0.99, 0.98, 0.97], [100, np.nan, np.nan], 0),
        ([0.5, 0.99], [np.nan, np.nan], None),
    ],
)
def test_the_largest_replicable_and_consistent_number_is_chosen(scores: list[float], consistency: list[float], best: int | None) -> None:
    numbers = pd.Index(range(1, 1 + len(scores)), name="n_components")
    table = pd.DataFrame({"replicability": scores, "core_consistency": consistency}, numbers)
    assert _Rule(0.9, 50.0).choose(table) == best
    assert _Rule(0.9, -np.inf).choose(table) == _Rule(0.9, 50.0).choose(table.assign(core_consistency=100.0))


def test_the_rule_is_printed_with_what_each_condition_supports() -> None:
    table = pd.DataFrame(
        {"replicability": [0.99, 0.98, 0.97], "core_consistency": [100, 60, -6e8]}, pd.Index([1, 2, 3], name="n_components")
    )
    text = _Rule(0.9, 50.0).describe(table)
    assert text.endswith(
        "replicability of at least 0.9 and whose core consistency is at least 50%. Largest: 3 by replicability, 2 by core consistency."
    )
    none = _Rule(0.999, 50.0).describe(table)
    assert none.endswith("Largest: none by replicability, 2 by core consistency. None is chosen: no number meets the rule.")
    assert "consistency" not in _Rule(0.9, -np.inf).describe(table)


def test_core_consistency_is_that_of_the_fit_to_all_rows() -> None:
    Z = planted((20, 7, 6), 2, 3, noise=0.4, missing=0.1)
    found: Any = replicability(elastic(), Z, [1, 2, 3], n_folds=3, n_starts=1, random_state=0)
    assert found.table.at[2, "core_consistency"] == core_consistency(found.model, Z)
    assert found.rule in selection_text(found)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_pure_noise_has_no_replicable_components(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Z = np.random.default_rng(seed).standard_normal((40, 7, 6))
    found: Any = replicability(elastic(max_iter=50), Z, [1, 2], n_starts=1, random_state=0)
    assert found.best_params == {"n_components": None}
    assert found.model is None
    assert found.largest_chosen is None
    assert found.table["replicability"].max() < 0.8
    assert "none" in found._repr_html_()
    text = selection_text(found)
    assert "none by replicability" in text
    assert "None is chosen" in text
    pytest.importorskip("matplotlib")
    assert len(selection_plot(found).axes[0].lines) == 3  # no line marks a choice
    dfact.import_array(Z, tmp_path / "z.zarr")
    command = ["select", "cp", str(tmp_path / "z.zarr"), "-k", "1", "--starts", "1", "--max-iter", "50", "--seed", "0"]
    assert main(command) == 0
    assert "None is chosen" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["best"] == {"n_components": None}
    assert document["model"] is None
    assert main([*command[:3], str(tmp_path / "z.model"), *command[3:]]) == 1
    assert "z.model is not written: the rule chooses none of the candidates for n_components" in capsys.readouterr().err
    assert not (tmp_path / "z.model").exists()


def test_the_similarity_is_that_of_independent_samples() -> None:
    """Halves are independent, and the delete-one jackknife's differences are scaled to those of samples."""
    rng, n, reps = np.random.default_rng(0), 16, 400
    b = np.array([1.0, 1.0, 1.0, 1.0])  # the first component of a matrix with one strong component

    def vector(Y: NDArray[Any]) -> NDArray[Any]:
        return Y.mean(axis=0)

    def similarity(x: NDArray[Any], y: NDArray[Any]) -> float:
        return float(abs(x @ y) / np.linalg.norm(x) / np.linalg.norm(y))

    left_out, samples = [], []
    for _ in range(reps):
        X, Y = (b + 0.4 * rng.standard_normal((n, 4)) for _ in range(2))
        left_out.append(similarity(vector(X[1:]), vector(np.delete(X, 1, axis=0))))
        samples.append(similarity(vector(X), vector(Y)))
    corrected = independent_similarity(np.array(left_out), n).mean()
    assert 1 - corrected == pytest.approx(1 - np.mean(samples), rel=0.25)
    assert 1 - np.mean(left_out) < 0.1 * (1 - np.mean(samples))  # which is what the raw similarity hides
    assert_allclose(independent_similarity(np.array([0.3, 1.0]), 2), [0.3, 1.0])
    assert independent_similarity(np.array([0.3, 1.0]), 10).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_halves_share_no_row_and_few_rows_are_left_out_by_fifths(seed: int) -> None:
    Z = planted((24, 7, 6), 1, seed, noise=0.4)
    found = replicability(elastic(), Z, [1], n_starts=1, random_state=seed)
    assert found.folds is not None
    assert found.folds.shape == (1, 10)  # five splits
    folds = _assign(24, 2, 1, 0, None)[0]
    assert sorted(np.bincount(folds).tolist()) == [12, 12]
    few = replicability(elastic(), Z[:9], [1], n_starts=1, random_state=seed)
    assert few.folds is not None
    assert few.folds.shape == (1, 15)  # three splits into five


@pytest.mark.further
def test_lost_components_count_0() -> None:
    Z = planted((24, 9, 8), 2, 0, noise=0.3)
    table = replicability(elastic(lam=1e6), Z, [1, 2], n_folds=3, n_starts=1, random_state=0).table  # nothing is left
    assert (table[["replicability", "fms", "fms_low", "fms_full"]] == 0).all(axis=None)
    model = elastic(lam=5.0, l1_ratio=0.0, max_iter=1000, slice_variances=None)
    assert model.set_params(n_components=3, random_state=1).fit(Z).rank_ == 2
    table = replicability(model, Z, [3], n_folds=3, n_starts=4, random_state=0).table
    assert table.at[3, "replicability"] < 0.01
    assert table.at[3, "fms"] == pytest.approx(2 / 3, abs=0.01)


@pytest.mark.further
@pytest.mark.faults
def test_interrupted_selection_resumes(tmp_path: Path) -> None:
    Z, counted = planted((12, 5, 4), 1, 0), list[int]()

    class StopError(Exception):
        pass

    def stop(iteration: Any) -> None:
        if iteration.number == 4:
            raise StopError

    def choose(number: list[int], callback: Any, **changes: Any) -> Any:
        settings = {"n_folds": 3, "n_starts": 1, "random_state": 0, "checkpoint": tmp_path / "c"} | changes
        return replicability(elastic(), Z, number, callbacks=[callback], **settings)

    with pytest.raises(StopError):
        choose([1, 2], stop)
    resumed = choose([1, 2], lambda iteration: counted.append(iteration.number))
    assert counted == list(range(1, 9))
    assert resumed.table.equals(replicability(elastic(), Z, [1, 2], n_folds=3, n_starts=1, random_state=0).table)
    with pytest.raises(ParameterError, match="belongs to another"):
        choose([1, 2], stop, n_folds=4)


def test_result_is_saved_plotted_and_reported(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    Z = planted((20, 7, 6), 2, 0, noise=0.4)
    found: Any = select_components(dfact.ElasticCP(3, n_init=1, max_iter=300), Z, n_folds=3, n_starts=1, random_state=0)
    assert found.table.equals(replicability(elastic(), Z, [1, 2, 3], n_folds=3, n_starts=1, random_state=0).table)
    figure = selection_plot(found)
    drawn = [line.get_ydata().tolist() for line in figure.axes[0].lines[:3]]
    assert drawn[:2] == [found.table[name].tolist() for name in ("fms", "replicability")]
    assert drawn[2] == (found.table["core_consistency"].clip(lower=0) / 100).tolist()
    dfact.save_model(found.model, tmp_path / "m")
    record = dfact.load_model(tmp_path / "m").selection_
    assert (record.criterion, record.rule, record.values[record.best]) == ("replicability", "largest replicable and consistent", [2])
    dfact.write_report(found.model, tmp_path / "r.html")
    assert (
        "compared by replicability; the rule “largest replicable and consistent” chose n_components = 2"
        in (tmp_path / "r.html").read_text()
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_folds": 1}, "n_folds is 1, expected an integer from 2 to 12"),
        ({"n_folds": 13}, "n_folds is 13"),
        ({"n_repeats": 0}, "n_repeats is 0"),
        ({"n_starts": 0}, "n_starts is 0"),
        ({"threshold": 2}, "threshold is 2"),
        ({"least_consistency": 101}, "least_consistency is 101, expected a number of at most 100"),
        ({"n_components": [0]}, "n_components is 0"),
        ({"model": dfact.ICQF()}, "model is a ICQF, expected an ElasticCP or CPALS"),
        ({"model": elastic(init=[np.ones((12, 1)), np.ones((5, 1)), np.ones((4, 1))])}, "given factors as init"),
    ],
)
def test_wrong_arguments_are_refused(settings: dict[str, Any], message: str) -> None:
    Z = planted((12, 5, 4), 1, 0)
    with pytest.raises(ParameterError, match=message):
        replicability(settings.pop("model", elastic()), Z, **settings)


def test_two_rows_are_too_few() -> None:
    with pytest.raises(DataError, match="2 rows in mode 1"):
        replicability(elastic(), np.ones((2, 5, 4)))


def test_functions_for_matrices_name_those_for_tensors() -> None:
    Z: NDArray[Any] = planted((12, 5, 4), 1, 0)
    with pytest.raises(ParameterError, match=r"ElasticCP of tensors.*select_penalty"):
        select_by_criterion(dfact.ElasticCP(), Z)
    with pytest.raises(ParameterError, match="for tensors use select_penalty or replicability"):
        select_by_held_out(dfact.ElasticCP(), Z, {})
    with pytest.raises(ParameterError, match=r"nonnegative is .*True or False, for all modes"):
        dfact.ElasticCP(2, nonnegative=[True, False, False]).fit(Z)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"no path, expected no lambdas.*criterion='held_out'"):
        select_components(dfact.ElasticCP(2), Z, "replicability", [1.0])


# The ℓ1 ratio along the path.
@pytest.mark.parametrize("criterion", exhaustive_after(1, ["bic", "held_out", "split_half"]))
def test_joint_choice_is_the_best_of_the_paths_of_all_ratios(criterion: str, tmp_path: Path) -> None:
    Z, lambdas = planted((24, 9, 8), 2, 0, noise=0.5), [1.0, 10.0, 30.0, 60.0]
    model = dfact.ElasticCP(3, n_init=1, random_state=0)
    joint = select_penalty(model, Z, criterion, lambdas, l1_ratios=[0.0, 0.5], random_state=0, checkpoint=tmp_path / "c")
    for ratio in (0.0, 0.5):
        alone = select_penalty(dfact.ElasticCP(3, n_init=1, random_state=0, l1_ratio=ratio), Z, criterion, lambdas, random_state=0)
        assert joint.table.loc[ratio].equals(alone.table)
    assert joint.model.rank_ == 2
    chosen: Any = joint.model
    assert joint.best_params == {"l1_ratio": chosen.l1_ratio, "lam": joint.best_params["lam"]}
    row = joint.table.loc[tuple(joint.best_params.values())]
    assert row["rank"] == 2
    if criterion != "split_half":
        assert row[criterion] == joint.table[criterion].min()
    again = select_penalty(model, Z, criterion, lambdas, l1_ratios=[0.0, 0.5], random_state=0, checkpoint=tmp_path / "c")
    assert again.table.equals(joint.table)
    with pytest.raises(ParameterError, match="l1_ratios are"):
        select_penalty(model, Z, criterion, lambdas, l1_ratios=[0.2, 1.5])


def test_skipped_ranks_are_named() -> None:
    Z = planted((15, 6, 5), 2, 0, noise=0.5)
    found = select_penalty(dfact.ElasticCP(4, random_state=0), Z, "bic", [1e-3, 1e4], random_state=0)
    assert found.skipped_ranks == sorted(set(range(1, found.table["rank"].max())) - set(found.table["rank"]))
    assert found.skipped_ranks
    assert f"No step of the path has a rank of {', '.join(map(str, found.skipped_ranks))}: not scored" in selection_text(found)
