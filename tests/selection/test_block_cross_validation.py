"""Block cross-validation and criteria for the number of components."""

import threading
import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from distributed import Client
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cophenet, linkage
from sklearn.base import BaseEstimator

import dfact
from dfact.data.synthetic import icqf_simulation
from dfact.engine.requests import FusedSolver, Solver, run, run_fused
from dfact.progress import Iteration
from dfact.report.selection import error_plot, selection_text
from dfact.selection.criteria import consensus, select_by_criterion
from dfact.selection.cross_validation.block_cross_validation import block_cross_validate
from dfact.selection.cross_validation.fold_fits import from_the_middle
from dfact.selection.cross_validation.folds import assign_all_folds, assign_folds, resolve_strata
from dfact.selection.result import Selection, choose, fold_errors
from dfact.selection.running import scheduler
from dfact.selection.running.results_store import resolve_random_state
from tests.conftest import planted_answers

GRID: dict[str, Any] = {"n_components": [2, 3, 4], "beta": [0.1, 0.5]}


def select(M: Any, grid: Any = None, model: Any = None, **settings: Any) -> Selection:
    """Run a quick selection."""
    defaults = {"n_blocks": (4, 4), "n_folds": 4, "random_state": 0}
    return block_cross_validate(model or dfact.ICQF(), M, GRID if grid is None else grid, **(defaults | settings))


@pytest.fixture(scope="module")
def answers() -> NDArray[np.float64]:
    return planted_answers(150, 20, 3, 0, missing=0.1)


@pytest.mark.parametrize("seed", range(2))
def test_the_planted_number_is_found(seed: int) -> None:
    selection = block_cross_validate(
        dfact.ICQF(bounds=(0, 100)), icqf_simulation(0.1, seed).M, {"n_components": [8, 9, 10, 11, 12]}, random_state=seed
    )
    assert selection.best_params == {"n_components": 10}
    assert selection.model.components_.shape == (10, 100)
    assert selection.folds is not None
    assert selection.folds.shape == (5, 10)


def test_every_block_is_in_one_fold() -> None:
    folds = assign_folds((53, 31), (5, 4), 6, np.random.default_rng(1))
    held_out = np.array([folds.held_out(fold)[folds.rows] for fold in range(6)])
    assert (held_out.sum(axis=0) == 1).all()
    sizes = np.bincount(folds.fold_of_block.ravel())
    assert set(sizes) == {3, 4}
    assert np.ptp(np.bincount(folds.rows)) <= 1
    assert np.ptp(np.bincount(folds.columns)) <= 1


def test_repeats_and_seeds_give_other_folds() -> None:
    first, second = assign_all_folds((40, 30), (4, 3), 5, 2, 7)
    (again,) = assign_all_folds((40, 30), (4, 3), 5, 1, 7)
    assert (first.rows == again.rows).all()
    assert (first.fold_of_block == again.fold_of_block).all()
    assert (first.rows != second.rows).any()
    assert resolve_random_state(None) is None
    assert resolve_random_state(3) == resolve_random_state(np.random.RandomState(3))


def test_row_blocks_have_the_same_share_of_each_level() -> None:
    rng = np.random.default_rng(2)
    labels = rng.choice(["a", "b", "c"], 400, p=[0.7, 0.2, 0.1])
    age = rng.uniform(10, 80, 400)
    age[:20] = np.nan
    strata = resolve_strata({"group": labels, "age": age}, None, 400)
    folds = assign_folds((400, 10), (10, 2), 4, rng, strata)
    counts = pd.crosstab(labels, folds.rows)
    assert (counts.max(axis=1) - counts.min(axis=1)).max() <= 1
    _, members = np.unique(strata, return_inverse=True)
    of_strata = pd.crosstab(members, folds.rows)
    assert (of_strata.max(axis=1) - of_strata.min(axis=1)).max() <= 1
    assert resolve_strata(None, None, 400) is None


@pytest.mark.parametrize("values", [[0.1], [3, 1], [5, 1, 4, 2, 3], [1, 2, 3, 4]])
def test_order_from_the_middle_has_each_value_once(values: list[float]) -> None:
    order = [values[i] for i in from_the_middle(values)]
    assert sorted(order) == sorted(values)
    assert order[0] == sorted(values)[(len(values) - 1) // 2]


def table(errors: Any, se_difference: Any = 0.5, k: Any = (2, 3, 4, 5), beta: Any = (0.1, 0.2)) -> pd.DataFrame:
    index = pd.MultiIndex.from_product([k, beta], names=["n_components", "beta"])
    return pd.DataFrame({"error": np.ravel(errors).astype(float), "se_difference": se_difference}, index=index)


def test_rules() -> None:
    errors = table([[9, 9.1], [5, 5.1], [4.6, 4.5], [4.4, 4.45]])
    assert choose(errors, "min") == {"n_components": 5, "beta": 0.1}
    # Errors up to 4.9 are within one standard error of the difference: four components, and the larger of the two β.
    assert choose(errors, "1se") == {"n_components": 4, "beta": 0.2}
    assert choose(errors, "knee") == {"n_components": 3, "beta": 0.1}
    assert choose(table(errors["error"], np.nan), "1se") == {"n_components": 5, "beta": 0.1}
    # The standard error belongs to each difference: three components differ from the lowest error by less than theirs.
    assert choose(table(errors["error"], [0.5, 0.5, 0.7, 0.5, 0, 0, 0, 0]), "1se") == {"n_components": 3, "beta": 0.1}
    straight = table([[4, 9], [3, 9], [2, 9], [1, 9]])
    assert choose(straight, "knee") == {"n_components": 5, "beta": 0.1}
    assert choose(straight.xs(2), "knee") == {"beta": 0.1}
    assert choose(straight.xs(2), "1se") == {"beta": 0.1}
    rising = table([[1, 9], [2, 9], [3, 9], [4, 9]])
    assert choose(rising, "knee") == {"n_components": 2, "beta": 0.1}


@pytest.mark.parametrize("seed", range(3))
def test_standard_errors_of_folds(seed: int) -> None:
    """They belong to means of the folds, paired for differences; the same folds again change nothing, folds of unequal size count."""
    rng = np.random.default_rng(seed)
    counts = np.full((3, 2, 6), 50.0)
    difficulty = rng.normal(0, 20, (2, 6))
    totals = 100 + np.arange(3)[:, None, None] * 30 + difficulty + rng.normal(0, 1, counts.shape)
    found, errors = fold_errors(totals, counts), totals / counts
    assert_allclose(found["error"], errors.mean(axis=(1, 2)))
    assert_allclose(found["se"] ** 2, (errors.std(axis=2, ddof=1) ** 2 / 6).mean(axis=1))
    paired = errors - errors[0]
    assert_allclose(found["se_difference"] ** 2, (paired.std(axis=2, ddof=1) ** 2 / 6).mean(axis=1))
    assert (found["se_difference"] < 0.2 * found["se"]).all()
    for name, values in fold_errors(np.tile(totals, (1, 5, 1)), np.tile(counts, (1, 5, 1))).items():
        assert_allclose(values, found[name])
    # A ratio of sums: the error of errors that are constant has no standard error, whatever the sizes.
    unequal = rng.integers(0, 40, counts.shape).astype(float) + (np.arange(6) < 3)
    assert_allclose(fold_errors(unequal * 0.3, unequal)["se"], 0, atol=1e-12)
    assert np.isnan(fold_errors(totals[..., :1], counts[..., :1])["se_difference"]).all()


def test_table_has_the_standard_errors_of_its_folds(answers: NDArray[np.float64]) -> None:
    selection = select(answers, {"n_components": [2, 3]}, dfact.ICQF(max_iter=5), n_repeats=2, rule="1se")
    assert selection.folds is not None
    paired = selection.folds - selection.folds.loc[selection.table["error"].idxmin()]
    variance = (paired.T.groupby(level="repeat").var() / 4).T.mean(axis=1)
    assert_allclose(selection.table["se_difference"], np.sqrt(variance), rtol=0.2, atol=1e-12)  # folds differ in their numbers of answers
    record = selection.model.selection_  # type: ignore[attr-defined]
    assert_allclose(record.table["se_difference"], selection.table["se_difference"])


@pytest.fixture
def memory_and_shared(answers: NDArray[np.float64], tmp_path: Path) -> tuple[Selection, Selection]:
    data = dfact.import_array(answers, tmp_path / "data.zarr")
    confounders = pd.DataFrame({"age": np.random.default_rng(0).uniform(18, 80, len(answers)), "sex": ["f", "m", "f"] * 50})
    settings = {"confounders": confounders, "n_repeats": 2}
    model = dfact.ICQF(dtype="float64")
    return select(data, None, model, in_memory=True, **settings), select(data, None, model, in_memory=False, **settings)


@pytest.mark.further
def test_fits_in_memory_and_on_shared_reads_agree(memory_and_shared: tuple[Selection, Selection]) -> None:
    loaded, shared = memory_and_shared
    assert loaded.folds is not None
    assert shared.folds is not None
    assert loaded.folds.shape == (6, 8)
    np.testing.assert_allclose(loaded.folds, shared.folds, rtol=1e-9)
    assert (loaded.table["passes"] == shared.table["passes"]).all()
    assert loaded.best_params == shared.best_params
    assert loaded.model.confounder_components_.shape == (5, 20)


def test_short_memory_runs_fewer_fits_at_once(answers: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = select(answers, in_memory=False)
    largest_batch = scheduler.largest_batch
    counts: list[int] = []

    def three(source: Any, dtype: Any, fits: Any, workers: Any) -> Any:
        counts.append(len(fits))
        return largest_batch(source, dtype, fits[:3], workers)

    monkeypatch.setattr(scheduler, "largest_batch", three)
    pd.testing.assert_series_equal(select(answers, in_memory=False).table["error"], expected.table["error"], rtol=1e-12)
    assert counts == [4, 1, 1], "two batches of folds, and the fit with the best parameters"


@pytest.mark.further
def test_executors_agree_and_seeds_differ(answers: NDArray[np.float64], client: Client) -> None:
    def scores(**parameters: Any) -> Any:
        return select(answers, None, dfact.ICQF(**parameters)).folds

    inline = scores(executor="inline")
    pd.testing.assert_frame_equal(inline, scores(executor="threads"), rtol=0, atol=0)
    pd.testing.assert_frame_equal(inline, scores(executor=client), rtol=0, atol=0)
    other = select(answers, random_state=1).folds
    assert other is not None
    assert not np.allclose(inline, other)


@pytest.mark.further
def test_shared_reads_on_a_cluster(answers: NDArray[np.float64], tmp_path: Path, client: Client) -> None:
    data = dfact.import_array(answers, tmp_path / "data.zarr")
    grid = {"n_components": [2, 3]}
    on_cluster = select(data, grid, dfact.ICQF(executor=client), in_memory=False)
    inline = select(data, grid, dfact.ICQF(executor="inline"), in_memory=False)
    pd.testing.assert_frame_equal(on_cluster.folds, inline.folds, rtol=0, atol=0)


def test_errors_agree_with_cold_starts(answers: NDArray[np.float64]) -> None:
    """The errors of a fold equal the errors of ``fit`` on the masked data, up to the stopping tolerance."""
    selection = select(answers, {"n_components": [3]}, dfact.ICQF(tol=1e-7, max_iter=2000))
    (folds,) = assign_all_folds((150, 20), (4, 4), 4, 1, resolve_random_state(0) or 0)
    assert selection.folds is not None
    for fold in range(4):
        held_out = folds.held_out(fold)[folds.rows]
        model = dfact.ICQF(3, tol=1e-7, max_iter=2000, bounds=(0, 3)).fit(np.where(held_out, np.nan, answers))
        errors = (model.inverse_transform(model.factors_) - answers)[held_out]
        assert selection.folds.loc[3, (0, fold)] == pytest.approx(np.nanmean(errors**2), rel=1e-2)


def test_columns_and_rows_without_answers_are_modelled_as_zero(answers: NDArray[np.float64]) -> None:
    """With one block of rows a fold holds out complete columns, whose loadings are 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns = select(answers, {"n_components": [2, 3]}, n_blocks=(1, 4))
        rows = select(answers, {"n_components": [2, 3]}, n_blocks=(4, 1))
    everything = np.nanmean(answers**2)
    np.testing.assert_allclose(columns.table["error"], everything, rtol=1e-6)
    np.testing.assert_allclose(rows.table["error"], everything, rtol=1e-6)


def test_restarts_lower_the_objective(answers: NDArray[np.float64]) -> None:
    plain, restarted = (select(answers, {"n_components": [4]}, n_restarts=restarts) for restarts in (0, 3))
    assert restarted.table["passes"].sum() > plain.table["passes"].sum()
    assert restarted.model.objective_history_[-1] <= plain.model.objective_history_[-1]


class Means(BaseEstimator):  # type: ignore[misc]
    """An estimator of another package: column means to a power."""

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    def fit(self, X: NDArray[np.float64]) -> "Means":
        self.means_ = np.nanmean(X, axis=0) ** self.power
        self.factors_ = np.ones((len(X), 1))
        return self

    def inverse_transform(self, W: NDArray[np.float64]) -> NDArray[np.float64]:
        return W * self.means_


def test_other_estimators(answers: NDArray[np.float64]) -> None:
    selection = select(answers, {"power": [0.5, 1.0, 2.0]}, Means())
    assert selection.best_params == {"power": 1.0}
    (folds,) = assign_all_folds((150, 20), (4, 4), 4, 1, resolve_random_state(0) or 0)
    held_out = folds.held_out(1)[folds.rows]
    means = np.nanmean(np.where(held_out, np.nan, answers), axis=0)
    assert selection.folds is not None
    assert selection.folds.loc[1.0, (0, 1)] == pytest.approx(np.nanmean((answers - means)[held_out] ** 2))
    select(answers, {"power": [1.0]}, Means(), n_blocks=(1, 4))


class Overlapping(Means):
    """Fits of two folds at once, of which the second warns after the first has ended."""

    both = threading.Barrier(2)
    first_is_done = threading.Event()

    def fit(self, X: NDArray[np.float64]) -> "Means":
        if self.both.wait(100) == 1:
            assert self.first_is_done.wait(100)
            warnings.warn("row 7 has no observed entry", UserWarning, stacklevel=1)
        return super().fit(X)


def test_warnings_about_held_out_rows_are_ignored_in_every_thread(answers: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfact.selection.cross_validation.block_cross_validation.best_fit", lambda *_: Means().fit(answers))
    with dask.config.set(num_workers=2):
        select(answers, {"power": [1.0]}, Overlapping(), n_folds=2, callbacks=[lambda _: Overlapping.first_is_done.set()])


def test_nmf() -> None:
    M = icqf_simulation(0.1, 0).M
    selection = block_cross_validate(dfact.NMF(), M, {"n_components": [8, 10, 12]}, random_state=0)
    assert selection.best_params == {"n_components": 10}


def test_any_kind_of_data(answers: NDArray[np.float64]) -> None:
    grid = {"n_components": [2]}
    frame = pd.DataFrame(answers, columns=[f"Q{j}" for j in range(20)])
    expected = select(answers, grid)
    named = select(frame, grid)
    pd.testing.assert_frame_equal(named.folds, expected.folds)
    assert list(named.model.feature_names_in_) == list(frame.columns)
    filled = np.nan_to_num(answers)
    pd.testing.assert_frame_equal(select(sp.csr_array(filled), grid).folds, select(filled, grid).folds, rtol=1e-6)
    confounders = {"sex": ["f", "m", "f"] * 50}
    assert select(answers, grid, dfact.NMF(), confounders=confounders).best_params == {"n_components": 2}


def test_grid_over_other_parameters(answers: NDArray[np.float64]) -> None:
    selection = select(answers, {"w_max": [0.2, 1.0], "n_components": [2, 3]})
    assert list(selection.table.index) == [(0.2, 2), (0.2, 3), (1.0, 2), (1.0, 3)]
    alone = select(answers, {"n_components": [2, 3]}, dfact.ICQF(w_max=0.2))
    np.testing.assert_allclose(selection.table.loc[0.2, "error"], alone.table["error"])


class Interrupt:
    """Raises at the n-th call."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, iteration: Iteration) -> None:
        self.left -= 1
        if self.left <= 0:
            raise KeyboardInterrupt


class WorkLeft:
    """The remaining work instead of the remaining time, which depends on a clock."""

    def __init__(self, total: float) -> None:
        self._total = total

    def text(self, done: float) -> str:
        return f"{self._total - done:g} left"


def test_remaining_work_is_reported(answers: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is counted in components: a fit with more of them takes longer."""
    monkeypatch.setattr("dfact.selection.cross_validation.block_cross_validation.TimeLeft", WorkLeft)
    steps: list[str] = []
    select(answers, {"n_components": [2, 3]}, n_folds=5, callbacks=[lambda iteration: steps.append(iteration.step)])
    left = [float(step.split(", ")[-1].removesuffix(" left")) for step in steps]
    assert sorted(-np.diff(left, prepend=25)) == [2] * 5 + [3] * 5
    assert left[-1] == 0


@pytest.mark.further
@pytest.mark.parametrize("in_memory", [True, False])
def test_resumed_selection_equals_an_uninterrupted_one(answers: NDArray[np.float64], tmp_path: Path, in_memory: bool) -> None:
    expected = select(answers, in_memory=in_memory)
    with pytest.raises(KeyboardInterrupt):
        select(answers, in_memory=in_memory, checkpoint=tmp_path / "results", callbacks=[Interrupt(4)])
    finished = {folder.name for folder in (tmp_path / "results").glob("result-*")}
    assert 4 <= len(finished) < 12
    seen: list[Iteration] = []
    resumed = select(answers, in_memory=in_memory, checkpoint=tmp_path / "results", callbacks=[seen.append])
    assert len(seen) == 12 - len(finished)
    assert (seen[-1].number, seen[-1].limit) == (24, 24)
    pd.testing.assert_frame_equal(resumed.folds, expected.folds, rtol=1e-12)
    assert select(answers, in_memory=in_memory, checkpoint=tmp_path / "results").folds.equals(resumed.folds)  # type: ignore[union-attr]


def test_checkpoint_of_another_selection_is_refused(answers: NDArray[np.float64], tmp_path: Path) -> None:
    path, grid = tmp_path / "results", {"n_components": [2]}
    select(answers, grid, checkpoint=path)
    for change in ({"random_state": 1}, {"n_folds": 5}, {"grid": {"n_components": [3]}}, {"model": dfact.ICQF(w_max=2.0)}):
        with pytest.raises(dfact.ParameterError, match="belongs to another selection"):
            select(answers, **({"grid": grid, "checkpoint": path} | change))
    with pytest.raises(dfact.ParameterError, match="belongs to another selection: data is"):
        select(answers[:-1], grid, checkpoint=path)
    [chunk] = (path / "result-0-0-0").glob("*/0")
    chunk.write_bytes(b"torn")
    with pytest.raises(dfact.StoreError, match=r"result-0-0-0 is missing or damaged .*; delete the checkpoint"):
        select(answers, grid, checkpoint=path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(dfact.StoreError, match="other is not a Zarr group, expected a dfact checkpoint of a selection"):
        select(answers, grid, checkpoint=tmp_path / "other")


def test_resume_without_a_seed_uses_the_recorded_one(answers: NDArray[np.float64], tmp_path: Path) -> None:
    first, second = (select(answers, {"n_components": [2]}, random_state=None, checkpoint=tmp_path / "results") for _ in range(2))
    pd.testing.assert_frame_equal(first.folds, second.folds)


def test_without_a_random_state_the_seed_is_numpys(answers: NDArray[np.float64]) -> None:
    """scikit-learn's convention: None stands for NumPy's global generator."""

    def selected(seed: int) -> pd.DataFrame:
        np.random.seed(seed)  # noqa: NPY002
        return select(answers, {"n_components": [2]}, random_state=None).table.drop(columns="seconds", errors="ignore")

    pd.testing.assert_frame_equal(selected(1), selected(1))
    assert not selected(1).equals(selected(2))


def test_first_error_of_fused_fits_is_raised() -> None:
    def wait() -> Solver[None]:
        yield from run(None, None)  # type: ignore[arg-type]

    def fail() -> Solver[None]:
        yield from ()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_fused([FusedSolver(solver) for solver in (wait(), fail(), wait())], None, np.dtype("float64"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": {}}, "grid is empty"),
        ({"grid": {"n_components": []}}, "no values for 'n_components'"),
        ({"grid": {"k": [2]}}, "grid has 'k', which is not a parameter of ICQF"),
        ({"grid": {"n_components": [0]}}, "n_components is 0 in the grid"),
        ({"grid": {"beta": [-1]}}, "beta is -1 in the grid"),
        ({"n_folds": 17}, "n_folds is 17, expected from 2 to the number of blocks, 16"),
        ({"n_blocks": (4, 21)}, r"n_blocks is \(4, 21\)"),
        ({"rule": "best"}, "rule is 'best'"),
        ({"n_repeats": 0}, "n_repeats is 0, expected an integer from 1 to 1000"),
        ({"n_repeats": 2**31}, "n_repeats is 2147483648, expected"),  # the folds of so many would fill the memory
        ({"n_restarts": 2**63}, "n_restarts is 9223372036854775808, expected"),
        ({"model": dfact.ICQF}, "model is the class ICQF"),
        ({"model": BaseEstimator()}, "a BaseEstimator without fit, inverse_transform"),
        (
            {"grid": {"n_components": [16]}, "n_blocks": (1, 4)},
            "n_components is 16 in the grid, expected at most 15, the rows or columns without a fold",
        ),
        ({"model": dfact.ICQF(w_max=-1)}, "w_max is -1"),
        ({"model": Means(), "grid": {"power": [1.0]}, "n_restarts": 2}, "n_restarts is 2, expected 0: a Means"),
    ],
)
def test_errors(answers: NDArray[np.float64], change: dict[str, Any], message: str) -> None:
    with pytest.raises(dfact.ParameterError, match=message):
        select(answers, **change)


def test_estimators_without_factors_are_refused(answers: NDArray[np.float64]) -> None:
    with pytest.raises(dfact.ParameterError, match="a fitted GradeOfMembership has no factors_, expected an estimator that sets it"):
        select(answers + 1, {"n_components": [2]}, dfact.GradeOfMembership())


@pytest.mark.parametrize(
    ("columns", "best", "largest"),
    [
        ({"n_components": [2, 3, 4]}, {"n_components": 4}, 4),
        ({"n_components": [2, 3, 4]}, {"n_components": 3}, None),
        ({"n_components": [4]}, {"n_components": 4}, None),
        ({"beta": [0.1, 0.2]}, {"beta": 0.2}, None),
    ],
)
def test_the_text_says_if_the_largest_number_was_chosen(columns: dict[str, list[Any]], best: dict[str, Any], largest: int | None) -> None:
    candidates = pd.DataFrame(columns | {"error": 1.0}).set_index(list(columns))
    selection = dfact.selection.Selection(candidates, best, dfact.ICQF())
    assert selection.largest_chosen == largest
    assert ("The choice, 4, is the largest" in selection_text(selection)) == (largest == 4)


def test_text_and_plot(answers: NDArray[np.float64]) -> None:
    selection = select(answers, {"n_components": [2, 3], "beta": [0.1, 0.5]})
    lines = selection_text(selection).splitlines()
    assert lines[0].split() == ["n_components", "beta", "error", "se", "se_difference", "passes"]
    assert [" best (" in line for line in lines].count(True) == 1
    axes = error_plot(selection).axes[0]
    assert sorted(text.get_text() for text in axes.get_legend().get_texts()) == ["beta = 0.1", "beta = 0.5", "chosen"]
    assert error_plot(select(answers, {"n_components": [2, 3]})).axes[0].get_xlabel() == "number of components"
    with pytest.raises(dfact.ParameterError, match="expected the errors of numbers of components"):
        error_plot(select(answers, {"beta": [0.1]}))


@pytest.mark.parametrize("criterion", ["bic1", "dispersion"])
def test_criteria_find_the_planted_number(criterion: str) -> None:
    model, M = dfact.ICQF(bounds=(0, 100)), icqf_simulation(0.1, 0).M
    selection = select_by_criterion(model, M, [8, 10, 12], criterion, random_state=0)
    assert selection.best_params == {"n_components": 10}
    assert list(selection.table) == [criterion]


def test_bic1_counts_missing_entries_like_observed_ones(answers: NDArray[np.float64]) -> None:
    confounders = {"sex": ["f", "m", "f"] * 50}
    selection = select_by_criterion(dfact.ICQF(), answers, [3], confounders=confounders, n_restarts=1)
    fit = selection.model
    C = fit.confounder_encoding_.encode(pd.DataFrame(confounders))
    R = fit.factors_ @ fit.components_ + C @ fit.confounder_components_
    expected = np.log(np.nanmean((answers - R) ** 2) * 3000) + 3 * 170 / 3000 * np.log(3000 / 170)
    assert selection.table.loc[3, "bic1"] == pytest.approx(expected, rel=1e-5)


class Clusters:
    """A fit whose rows have these largest factors; −1 for rows without factors."""

    def __init__(self, *members: int) -> None:
        self.factors_ = np.array([[member == column for column in range(3)] for member in members], float)


def test_consensus_of_restarts() -> None:
    fits = [Clusters(0, 0, 1, -1), Clusters(1, 2, 0, 0)]
    C = np.eye(4)
    C[0, 1] = C[1, 0] = C[2, 3] = C[3, 2] = 0.5
    np.testing.assert_array_equal(consensus(fits), C)


def test_cophenetic_correlation(answers: NDArray[np.float64]) -> None:
    selection = select_by_criterion(dfact.ICQF(), answers, [2, 3], "ccc", n_restarts=3, random_state=4)
    seeds = np.random.SeedSequence(resolve_random_state(4)).generate_state(3) % 2**31
    fits = [dfact.ICQF(3, init="random", random_state=int(seed)).fit(answers) for seed in seeds]
    distances = (1 - consensus(fits))[np.triu_indices(150, 1)]
    assert selection.table.loc[3, "ccc"] == pytest.approx(cophenet(linkage(distances, "average"), distances)[0])


def test_criterion_errors(answers: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dfact.ParameterError, match="criterion is 'aic'"):
        select_by_criterion(dfact.ICQF(), answers, [2], "aic")
    with pytest.raises(dfact.ParameterError, match="n_restarts is 1, expected an integer from 2 to 1000"):
        select_by_criterion(dfact.ICQF(), answers, [2], "ccc", n_restarts=1)
    monkeypatch.setattr("dfact.selection.criteria._MAX_ROWS", 100)
    with pytest.raises(dfact.DataError, match="X has 150 rows, expected at most 100 for 'ccc'"):
        select_by_criterion(dfact.ICQF(), answers, [2], "ccc")
