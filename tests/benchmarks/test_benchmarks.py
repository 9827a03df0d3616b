"""Small runs of the benchmarks: tests check their results, not their times, which need a quiet machine."""

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

import dfact
from benchmarks import common, readme_figures
from benchmarks.admixture import import_bed, large
from benchmarks.admixture.simulation import write_dataset
from benchmarks.bounded_nmf import mm_and_admm
from benchmarks.bounded_nmf import out_of_core as icqf_out_of_core
from benchmarks.bounded_nmf import paper as icqf_paper
from benchmarks.bounded_nmf import reference as icqf_reference
from benchmarks.bounded_nmf import selection as icqf_selection
from benchmarks.bounded_nmf import speed as icqf_speed
from benchmarks.common import in_new_interpreter
from benchmarks.cp import algorithm_4 as cp_algorithm_4
from benchmarks.cp import paper as cp_paper
from benchmarks.cp import planted_ranks as cp_planted_ranks
from benchmarks.cp import replicability as cp_replicability
from benchmarks.cp import speed as cp_speed
from benchmarks.cp import starts as cp_starts
from benchmarks.cp import stochastic as cp_stochastic
from benchmarks.cp import time_to_objective as cp_time_to_objective
from benchmarks.engine import cluster_scaling, columns_between_passes, cost_model, dask_arrays, thousand, threads_and_workers, wide_columns
from benchmarks.expectile import paper as emf_paper
from benchmarks.expectile import sample_complexity
from benchmarks.expectile import speed as emf_speed
from benchmarks.factor_analysis import describe as describe_benchmark
from benchmarks.faults.fits import in_forked_process
from benchmarks.gom import simulations as gom_simulations
from benchmarks.gom import speed as gom_speed
from benchmarks.gom import tables as gom_tables
from benchmarks.inputs import statistical
from benchmarks.nmf import reference as nmf_reference
from benchmarks.nmf import speed as nmf_speed
from benchmarks.pca import speed as pca_speed
from benchmarks.versions import time_to_convergence
from dfact.data.examples import ipip_ascado
from dfact.data.synthetic import PlantedAdmixture
from dfact.engine.cluster import workers as workers_module
from dfact.models.bounded_nmf.passes import ADMMPass, MMPass
from tests.conftest import planted_answers

pytestmark = pytest.mark.further


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the processes of a benchmark their imports, in tests that compare no peak with a plan: a forked one's begins too low."""
    monkeypatch.setattr(common, "in_new_interpreter", in_forked_process)


def new_interpreter_for_fits(module: str, function: str, arguments: str) -> str:
    """Write data in a forked process, as only the peaks of fits are compared with a plan."""
    return (in_new_interpreter if function == "fit" else in_forked_process)(module, function, arguments)


def load(folder: Path, name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return result


@pytest.mark.needs("questionnaires")
@pytest.mark.exhaustive
def test_descriptions_stay_within_their_limit(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["describe", "--rows", "3000", "--columns", "40", "--limit", "2GiB", "--variants", "1"])
    assert describe_benchmark.main() == 0
    assert 0 < load(results, "describe")["rows"][0]["kmo"] < 1


@pytest.mark.exhaustive
@pytest.mark.usefixtures("forked")
def test_out_of_core_writes_the_same_answers_in_every_form(tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--rows", "3000", "--columns", "30", "--components", "3", "--limits", "2GiB", "--tables", "--folder", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["icqf_out_of_core", *arguments])
    icqf_out_of_core.main()
    fit = load(results, "icqf_out_of_core")
    assert fit["rows"][0]["objective"] > 0
    assert {threshold["threshold"]: threshold["held"] for threshold in load(results, "import_tables")["thresholds"]}[
        "both files give the same dataset"
    ]


def test_pass_is_compared_with_its_products(results: Path) -> None:
    assert len(icqf_speed.limit(3000, 60, 3)) == 4
    rows = load(results, "icqf_limit")["rows"]
    assert [(row["what"], row["threads"]) for row in rows] == [(w, t) for t in (1, 2) for w in ("products", "memory", "disk")]
    assert all(row["ns_per_entry"] > 0 for row in rows)


@pytest.mark.exhaustive
def test_time_to_convergence_uses_the_fewest_iterations_that_reach_the_target(tmp_path: Path) -> None:
    requested: list[int] = []

    def objective(iterations: int) -> float:
        requested.append(iterations)
        return 100 / iterations

    assert time_to_convergence.least_iterations(objective, 100 / 23, 300) == 24
    assert time_to_convergence.least_iterations(objective, 100 / 7, 300) == 7
    assert time_to_convergence.least_iterations(objective, 0, 50) == 50
    assert len(requested) < 25
    case = time_to_convergence.CASES["icqf planted 100000x500"]
    data = case.make(tmp_path, 0)
    found, seconds = time_to_convergence.fit(Path(__file__).parents[2], case, data, 4, warm=data)
    objectives = dfact.ICQF(**case.parameters, max_iter=4, tol=0).fit(dfact.open_dataset(data)).objective_history_
    assert found == pytest.approx(objectives[-1], rel=1e-6)
    assert objectives[-1] < objectives[0]
    assert seconds > 0


def test_columns_between_passes_are_timed_beside_a_pass() -> None:
    rows = columns_between_passes.shares(100, [50])
    assert [row["model"].partition("(")[0] for row in rows] == ["ICQF", "ExpectileMF", "ElasticCP"]
    assert all(row["between_ms"] > 0 and row["share, 16 workers"] == pytest.approx(16 * row["share, 1 workers"]) for row in rows)


@pytest.mark.exhaustive
def test_loadings_between_passes_are_the_same_on_two_processes() -> None:
    rows, thresholds = columns_between_passes.loadings(100, [300])
    assert rows[0]["items"] == 300
    assert thresholds[0][1]


def test_reference_results_on_the_simulation(results: Path) -> None:
    assert all(held for _, held in icqf_reference.simulation(1))
    assert len(load(results, "icqf_simulation")["rows"]) == 6


@pytest.mark.further
@pytest.mark.skipif(not (common.REAL_DATA / "kims.csv").exists(), reason="the real questionnaires are missing")
def test_gom_tables_of_the_smallest_questionnaire(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gom_tables, "PAPER", {"kims": gom_tables.PAPER["kims"]})
    assert all(held for _, held in gom_tables.table_4(4) + gom_tables.table_5(1))
    assert len(load(results, "gom_table_4")["rows"]) == 8


@pytest.mark.usefixtures("results")
def test_gom_fits_sparse_and_dense_ratings_alike() -> None:
    assert all(held for _, held in gom_tables.ratings(200, 300, 1))


@pytest.mark.exhaustive
def test_gom_simulations(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gom_simulations, "TAUS", (0.2, 7))
    monkeypatch.setattr(gom_simulations, "RHOS", (0.2, 1))
    monkeypatch.setattr(gom_simulations, "CANDIDATES", (2, 3, 4))
    thresholds = gom_simulations.noiseless() + gom_simulations.experiment_1(1) + gom_simulations.experiment_2(1)
    assert all(held for _, held in thresholds + gom_simulations.experiment_3(1, (400, 800)))
    gom_simulations.experiment_4(2)
    assert len(load(results, "gom_experiment_2")["rows"]) == 10
    assert len(load(results, "gom_experiment_4")["rows"]) == 5


@pytest.mark.exhaustive
def test_gom_speed(results: Path, tmp_path: Path) -> None:
    gom_speed.simulation(200, 1)
    gom_speed.singular_vectors(tmp_path, 3000, 40, 3, 1)
    rows = load(results, "gom_speed_svd")["rows"]
    assert max(row["sine_right"] for row in rows if row["what"].startswith("dfact")) < 1e-4
    path = gom_speed.make(tmp_path, 3000, 20, 3, 4)
    assert gom_speed.fit(str(path), "crsc, kmeans", [2, 3, 4])["K"] == 3


@pytest.mark.exhaustive
def test_icqf_selection(results: Path) -> None:
    assert all(held for _, held in icqf_selection.table_1(1, range(9, 12)))
    M = planted_answers(300, 40, 3, 0, missing=0.05).astype("float32")
    _, (_, same) = icqf_selection.speed(M, [2, 3, 4], [0.1], 4)
    assert same
    assert load(results, "icqf_selection_speed")["rows"][-1]["passes"] > 0


@pytest.mark.usefixtures("results")
def test_missed_threshold_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    thresholds = [("as fast as light", False), ("right", True)]
    common.report("example", [{"a": 1}], thresholds)
    assert "MISSED:  as fast as light" in capsys.readouterr().out
    assert common.exit_code(thresholds) == 1


@pytest.mark.further
@pytest.mark.parametrize("loss", ["frobenius", "kullback-leibler"])
def test_nmf_is_compared_with_scikit_learn(loss: str) -> None:
    for X in (nmf_speed.dense_counts(300, 20, 3), nmf_speed.sparse_counts(300, 100, 3, 0.1)):
        row = nmf_speed.race("small", X, 3, loss)
        assert row["s_to_it"] > 0
        assert row["relative_objective"] < 0.05
        row = nmf_reference.compare("small", X, 3, loss, 2, 200)
        assert row["excess"] <= row["excess_default"]
        assert row["excess"] < 0.01


@pytest.mark.further
def test_principal_components_are_compared_with_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pca_speed, "call_in_new_process", lambda _, function, *arguments: getattr(pca_speed, function)(*arguments))
    monkeypatch.setattr(pca_speed.spectrum, "_TOLERANCE", dict(pca_speed.spectrum._TOLERANCE))
    pca_speed.make(tmp_path / "planted.zarr", 3000, 40, 3)
    ours, peer = pca_speed.measure(tmp_path / "planted.zarr", 3, 2, None)
    assert (ours["program"], peer["program"]) == ("dfact", "scikit-learn")
    assert ours["error"] < 1e-4
    assert peer["error"] < 0.05
    assert ours["planned_GiB"] > 0
    pca_speed.make(tmp_path / "missing.zarr", 3000, 40, 3, missing=0.1)
    assert len(pca_speed.fit_dfact(str(tmp_path / "missing.zarr"), 3, 1, None)["values"]) == 3


def test_mm_is_compared_with_plain_nmf() -> None:
    row = mm_and_admm.race("planted", mm_and_admm.planted(2000, 60, 4), 4, 1)
    assert row["objective"] <= 1.01 * row["sklearn_objective"]
    assert row["passes_to_it"] < 2000
    assert row["s_to_it"] > 0


def test_recorded_state_is_that_of_the_passes() -> None:
    M = mm_and_admm.planted(3000, 40, 4)
    _, _, admm_state = mm_and_admm.fitted(ADMMPass, M, 4, float(M.max()), solver="admm", max_iter=5)
    assert admm_state == M.nbytes
    _, _, state = mm_and_admm.fitted(MMPass, M, 4, float(M.max()), max_iter=5)
    assert state < admm_state / 20
    assert mm_and_admm.reached(np.array([3.0, 2.0, 1.0]), 2.0) == 2
    assert mm_and_admm.reached(np.array([3.0, 2.0]), 1.0) == 3


@pytest.mark.exhaustive
def test_stability_and_auc_of_the_packaged_questionnaire(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icqf_paper, "SHARES", (0.4,))
    table = pd.read_csv(ipip_ascado())
    gender, *scales = icqf_paper.tasks("ipip_ascado", table, slice(0, 40), 4, None)
    assert [task.label[:2] for task in scales] == ["AS", "SC", "AD", "DO"]
    assert all(task.M.shape[1] == 30 and 0.4 < task.y.mean() <= 0.5 for task in scales)
    icqf_paper.stability({"ipip_ascado": (gender.M, 4)}, 1)
    assert all(0.3 < row[method] <= 1 for row in load(results, "icqf_paper_stability")["rows"] for method in icqf_paper.MODELS)
    icqf_paper.replication({"halves": (gender.M[:500], gender.M[500:], 4)})
    rows = load(results, "icqf_paper_replication")["rows"]
    assert [row["method"] for row in rows] == list(icqf_paper.MODELS)
    assert all(0.6 < row["r"] <= 1 and 0.9 < row["retained"] < 1 for row in rows)
    icqf_paper.auc(scales[:1], 1)
    rows = load(results, "icqf_paper_auc")["rows"]
    assert all(0.7 < row[method] < 1 for row in rows for method in (*icqf_paper.MODELS, "answers"))


def test_loadings_are_matched_greedily() -> None:
    loadings = np.random.default_rng(0).random((3, 20))
    np.testing.assert_allclose(icqf_paper.matched(loadings, 2 * loadings[[2, 0, 1]], False), 1)
    np.testing.assert_allclose(icqf_paper.matched(loadings, -loadings[:2], True), 1)
    assert icqf_paper.matched(loadings, np.vstack([loadings[:1], np.zeros((1, 20))]), False).tolist() == pytest.approx([1, 0])


@pytest.mark.further
def test_table_1_of_icqf_and_its_baselines(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icqf_paper, "NOISES", (0.1,))
    monkeypatch.setattr(icqf_paper, "TABLE_1_THRESHOLDS", (0.2,))
    assert all(held for _, held in icqf_paper.table_1(1, range(9, 12)))
    assert {row["method"] for row in load(results, "icqf_paper_table_1")["rows"]} == set(icqf_paper.TABLE_1)


@pytest.mark.further
def test_elastic_cp_speed(results: Path, tmp_path: Path) -> None:
    cp_speed.sweeps((30, 20, 10), 3, 1)
    names = [row["what"] for row in load(results, "elastic_cp_sweeps")["rows"]]
    assert names[:3] == ["masked, dfact", "masked, dfact exact", "full, dfact"]
    assert all(held for text, held in cp_speed.path(20, 4, 1) if "takes" not in text)
    target = str(cp_speed.make(tmp_path, (20_000, 30, 5), 3))
    row = cp_speed.out_of_core(target, 3, 5, True)
    assert row["shape"] == "20000×30×5"
    assert row["ns an entry"] > 0


@pytest.mark.exhaustive
def test_tables_of_the_elastic_net_parafac_paper(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cp_paper, "ALPHAS", (0.8,))
    monkeypatch.setattr(cp_paper, "NAMES", {"bcd": ("SPML", "SPMS")})
    cp_paper.table_1(2)
    assert [row["ranks"][0] + row["ranks"][-1] for row in load(results, "elastic_cp_table_1")["rows"]] == ["30", "30"]
    thresholds = cp_paper.table_2(1, 15, 3) + cp_paper.table_3(1, 20, 3)
    assert all(held for text, held in thresholds if "takes" not in text)
    rows = load(results, "elastic_cp_table_3")["rows"]
    assert [row["method"] for row in rows] == ["LRTI", "SPML(0)", "SPMS(0)", "SPML(0.8)", "SPMS(0.8)"]
    assert rows[4]["true zeros"] > 0.5
    assert rows[4]["false zeros"] == 0
    cp_paper.table_2(1, 10, 2, init="svd")
    halves = load(results, "elastic_cp_table_2")["rows"], load(results, "elastic_cp_table_2_svd")["rows"]
    assert [row["method"] for row in halves[0]] == [row["method"] for row in halves[1]]
    assert halves[1][-1]["paper score"] == 0.909


@pytest.mark.further
def test_the_printed_algorithm_4_beside_the_solver() -> None:
    rows = cp_algorithm_4.compare(16, 0, [0.1])
    assert [row["iteration"] for row in rows] == [1, 2, 4, 8, 16]
    assert rows[-1]["dfact"] < rows[0]["dfact"]
    assert rows[-1]["printed, step 0.1"] < rows[0]["printed, step 0.1"]
    Z, start = cp_algorithm_4.plant(0)
    model = dfact.ElasticCP(3, lam=2.0, l1_ratio=0.3, slice_variances=[np.ones(n) for n in Z.shape], init=start, max_iter=300).fit(Z)
    assert cp_algorithm_4.objective(Z, [np.asarray(A) for A in model.factors_]) == pytest.approx(model.objective_history_[-1], rel=1e-6)


@pytest.mark.exhaustive
def test_replicability_of_a_planted_tensor() -> None:
    rng = np.random.default_rng(0)
    Z = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 2)) for size in (12, 7, 6)))
    table = cp_replicability.curve(Z + 0.1 * rng.standard_normal(Z.shape), cp_replicability.MODELS["elastic"](), 1, 3)
    assert [row["chosen"] for row in table.values()] == [0, 1, 0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", cp_planted_ranks.KINDS)
def test_planted_ranks_are_found(kind: str) -> None:
    Z = cp_planted_ranks.plant(2, 0.1, kind, 0, (15, 8, 7))
    assert np.isnan(Z).any() == (kind == "missing")
    found = cp_planted_ranks.choices(Z, 3, 3, 1, 0)
    assert found["both"] == found["replicability"] == 2


@pytest.mark.further
@pytest.mark.filterwarnings("ignore:components .* cancel each other")  # of the least squares that the benchmark compares with
def test_images_are_clustered_by_their_factors(results: Path) -> None:
    images, labels = cp_paper.balls(4, 12, 12)
    assert images.shape == (48, 12, 12)
    assert 0 == images.min() < images.max() <= 1
    assert cp_paper.accuracy(np.eye(4)[labels], labels, 0) == 1
    cp_paper.table_4({"balls": (images, labels)}, 1, (5,), (0, 0.05), tsne=True, folder=results)
    assert len(list(results.glob("balls-5-*.png"))) >= 3
    assert all(0.25 <= row["t-SNE"] <= 1 for row in load(results, "elastic_cp_table_4")["rows"] if row["method"] != "pixels")
    rows = load(results, "elastic_cp_table_4")["rows"]
    assert [row["method"] for row in rows if row["method"] != "CP-ALS"] == ["pixels", "LRTI", "SPMS(0.8)", "SPMS(0.8)"]
    assert all(0.25 <= row["accuracy"] <= 1 for row in rows)


@pytest.mark.exhaustive
def test_elastic_cp_stochastic(results: Path, tmp_path: Path) -> None:
    shapes, folder = [(20_000, 30, 5)], tmp_path / "pictures"
    with patch.object(readme_figures, "PICTURES", folder):
        thresholds = cp_stochastic.disk(tmp_path, shapes, [0.5], 3, picture=True)
    assert (folder / "stochastic.png").stat().st_size > 0
    waits = cp_stochastic.Waits((20_000, 30, 5), 0.002, 0.02, 4, 2)
    thresholds += cp_stochastic.workers([waits], (1, 8), 2) + cp_stochastic.table_3(30, 3, range(1, 2), (0.8,))
    missed = ("its time", "of the time", "efficiency", "faster on all", "a path takes")  # by a busy machine
    missed += ("of its bytes",)  # by small data, where descent takes few passes
    assert all(held for text, held in thresholds if not any(words in text for words in missed))
    assert len(load(results, "elastic_cp_stochastic_disk")["rows"]) == 2


@pytest.mark.exhaustive
def test_starts_of_elastic_cp(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["starts", "--before", str(ROOT), "--tensors", "4", "--first", "2"])
    assert cp_starts.main() == 0
    assert (results / "elastic_cp_starts.json").exists()


@pytest.mark.exhaustive
def test_time_to_an_objective_of_elastic_cp(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["time_to_objective", "--before", str(ROOT), "--data", "1", "--shrink", "8"])
    cp_time_to_objective.main()
    rows = load(results, "elastic_cp_time_to_objective")["rows"]
    assert [row["solver"] for row in rows] == ["before", "bcd", "stochastic"]
    assert all(row["times the data read"] < 50 for row in rows)


@pytest.mark.exhaustive
def test_wide_columns_stay_within_the_plan(tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["wide_columns", "--rows", "600", "--columns", "50000", "--folder", str(tmp_path)])
    assert wide_columns.main() == 0
    rows = load(results, "wide_columns")["rows"]
    assert rows[0]["sums_on_disk_GB"] > rows[1]["sums_on_disk_GB"]
    assert {row["solver"] for row in rows} == {"tiled", "whole", "vectors"}


@pytest.mark.exhaustive
def test_dask_array_is_not_loaded_by_the_driver() -> None:
    row = dask_arrays.fit(40_000)
    assert row["transform lazy"]
    assert row["same bits"]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("forked")
@pytest.mark.filterwarnings("ignore:.*no observed entry")  # where there are few entries
def test_speed_of_expectile_factorization(tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [
        "--rows",
        "5000",
        "--columns",
        "40",
        "--entries",
        "200000",
        "--repeats",
        "1",
        "--limits",
        "2GiB",
        "1GiB",
        "--folder",
        str(tmp_path),
    ]
    monkeypatch.setattr("sys.argv", ["emf_speed", *arguments])
    monkeypatch.setattr(emf_speed, "SWEEPS", 2)
    monkeypatch.setattr(emf_speed, "SHAPE", (300, 300))
    emf_speed.main()
    assert len(load(results, "emf_growth")["rows"]) == 4
    assert len(load(results, "emf_out_of_core")["rows"]) == 2
    assert load(results, "emf_out_of_core")["thresholds"][-1]["held"]


@pytest.mark.further
def test_the_sample_complexity_of_the_expectile_paper(tmp_path: Path) -> None:
    rows = sample_complexity.curves(2, (6, 8), (1,), (0.2, 0.5))
    assert all(held for _, held in sample_complexity.thresholds_of(rows))
    sample_complexity.draw(rows, tmp_path)
    assert (tmp_path / "emf_sample_complexity.png").exists()


@pytest.mark.further
def test_skewed_noise_of_the_expectile_paper(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emf_paper, "COMPONENTS", 3)
    thresholds, curves = emf_paper.skewed(2, 200)
    assert all(held for text, held in thresholds if "the lower" in text)
    assert [row["tau"] for row in load(results, "emf_paper_skewed")["rows"]] == [0.1, 0.5, 0.9] * 2
    emf_paper.draw_skewed(curves, tmp_path)
    assert (tmp_path / "emf_paper_skewed.png").exists()


@pytest.mark.exhaustive
def test_response_times_of_the_expectile_paper(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emf_paper, "RATES", (0.3,))
    rng = np.random.default_rng(0)
    V = np.clip(rng.random((60, 2)) @ rng.random((2, 90)) * rng.lognormal(0, 1, (60, 90)), 0.01, 19)
    monkeypatch.setattr(emf_paper, "CHOSEN_OMEGAS", (0.1, 0.9))
    thresholds, table, distributions = emf_paper.latency(V, 2, {"n_components": [1, 2], "ridge": [1, 4]})
    assert all(held for text, held in thresholds if "best" in text)
    assert len(load(results, "emf_paper_latency")["rows"]) == len(emf_paper.TAUS) + 2
    assert table["all: median"].between(0, 5).all()
    rows = load(results, "emf_paper_distributions")["rows"]
    medians = {(row["bin"], row["k, ridge"], row["tau"]): row["50%"] for row in rows}
    for row in table.to_dict("records"):
        for name in ("all", "0-0.3 s"):
            assert medians[name, row["k, ridge"], row["tau"]] == pytest.approx(row[f"{name}: median"])
    assert all((np.diff(errors) >= 0).all() for errors in distributions.values())
    shares = [row["best at"] for row in rows if (row["bin"], row["k, ridge"]) == ("all", "chosen")]
    assert sum(shares) == pytest.approx(1, abs=0.02)  # one of two τ is the best at each quantile
    emf_paper.draw_distributions(distributions, tmp_path)
    assert (tmp_path / "emf_paper_distributions_chosen.png").exists()
    emf_paper.draw_latency(table, tmp_path)
    assert (tmp_path / "emf_paper_latency.png").exists()


@pytest.mark.exhaustive
def test_threads_beside_workers(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["threads_and_workers", "--rows", "4000", "--columns", "200", "--rounds", "1"])
    threads_and_workers.main()
    table = load(results, "threads_and_workers")
    assert [row["values"] for row in table["rows"]] == 3 * ["disk"] + 3 * ["memory"]
    same = [threshold["held"] for threshold in table["thresholds"] if "bit-identical" in threshold["threshold"]]
    assert same == 6 * [True]  # the others depend on the load of this machine


@pytest.mark.exhaustive
def test_cost_of_passes_on_a_cluster(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["cluster_scale", "--small"])
    with pytest.raises(SystemExit):  # the exit code depends on the load of this machine
        cluster_scaling.main()
    assert len(load(results, "cluster_messages")["rows"]) == 2
    assert [row["workers"] for row in load(results, "cluster_outlook")["rows"]][-1] == 1024
    assert len(load(results, "cluster_scaling")["rows"]) == 3
    assert load(results, "cluster_stragglers")["rows"][0]["of ideal"] > 0
    assert load(results, "cluster_recovery")["thresholds"][-1]["held"]
    assert all(threshold["held"] for threshold in load(results, "cluster_joining")["thresholds"][:2])  # the others depend on load too


@pytest.mark.exhaustive
def test_a_thousand_workers_on_a_small_scale(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thousand, "_SHAPE", (10**6, 100))
    monkeypatch.setattr(thousand, "_IDLE_SECONDS", 0.1)
    monkeypatch.setattr(workers_module, "_JOIN_TIMEOUT", 300.0)  # a worker that joins late would be a false cause
    monkeypatch.setattr("sys.argv", ["thousand", "--workers", "6", "--passes", "2", "--minutes", "0.01"])
    with pytest.raises(SystemExit):  # the exit code depends on the load of this machine
        thousand.main()
    for part in ("thousand_passes", "thousand_adaptive"):
        kept = [threshold for threshold in load(results, part)["thresholds"] if " takes " not in threshold["threshold"]]
        assert len(kept) >= 3
        assert all(threshold["held"] for threshold in kept)


def test_calls_through_a_tree_of_workers_are_counted() -> None:
    assert cost_model.counted(1, 100) == (100, 1, [])
    assert cost_model.counted(4, 16) == (4, 1, 3 * [(4, 1, [])])
    chain = cost_model.counted(4, 4, cost_model.chain)  # of the partitions 1 to 3 there are two sums, 1 and 2 + 3
    assert chain == (1, 1, [(1, 2, [(1, 1, [(1, 1, [])])])])


def test_costs_are_recovered_from_measurements() -> None:
    costs = cost_model.Costs(0.004, 0.002, 2e-9)
    blank = [cost_model.Measurement(w, size, 1.0) for w in (1, 2, 4, 8, 16) for size in (8_000, 160_000)]
    measured = [dataclasses.replace(m, seconds=costs.seconds(m)) for m in blank]
    np.testing.assert_allclose(dataclasses.astuple(cost_model.Costs.of(measured)), dataclasses.astuple(costs), rtol=1e-6)


def test_speed_up_without_messages_follows_the_partitions() -> None:
    fit = cost_model.Fit(500_000, 1_000)
    free, nothing = cost_model.Costs(0, 0, 0), cost_model.Caller(0, -1 / 1.25e9, -1 / 1.25e9)
    assert fit.speed_up(free, nothing, 64) == pytest.approx(489 / 8, rel=0.1)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("forked")
def test_statistical_files_of_all_formats_hold_the_same(tmp_path: Path, results: Path) -> None:
    pytest.importorskip("pyreadstat")
    thresholds = statistical.measure(300, 7, tmp_path)
    assert dict(thresholds)["the same answers from all formats"]
    assert len(load(results, "inputs_statistical")["rows"]) == 5


@pytest.mark.exhaustive
@pytest.mark.usefixtures("forked")
def test_imports_of_genotypes_within_any_limit_give_the_same(tmp_path: Path, results: Path) -> None:
    thresholds = import_bed.measure(101, 700, ["1GiB", "14KB"], tmp_path)
    assert dict(thresholds)["the same dataset within every limit"]
    assert [row["chunk"] for row in load(results, "import_bed")["rows"]] == ["128 × 700", "128 × 256"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["wide", "large"])
def test_admixture_fits_stay_within_the_plan(name: str, tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["admixture", "--persons", "1000", "--variants", "3000", "-k", "3", *["--wide"] * (name == "wide")])
    monkeypatch.setattr(common, "in_new_interpreter", new_interpreter_for_fits)
    large.main()
    rows = load(results, f"admixture_{name}")["rows"]
    assert len(rows) == (3 if name == "wide" else 1)
    assert all(row["rmse"] < 0.05 and row["peak_MiB"] <= row["planned_MiB"] for row in rows)


def test_planted_genotypes_are_written_in_bounded_memory(tmp_path: Path) -> None:
    planted = PlantedAdmixture(250, 40, 3, seed=2)
    G = np.concatenate(list(planted.blocks()))
    assert np.array_equal(np.concatenate(list(planted.blocks())), G)
    dataset = write_dataset(planted, tmp_path / "a.zarr")
    assert np.array_equal(dataset.source.read(0, 250), G)
    assert np.array_equal(planted.Q[:50].argmax(axis=1), np.arange(50) % 3)
    np.testing.assert_allclose(planted.Q.sum(axis=1), 1)
    assert abs(G.mean() - 2 * (planted.Q @ planted.P).mean()) < 0.05
