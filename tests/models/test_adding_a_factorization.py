"""Example of a new factorization, as the documentation describes it: a kernel, a pass, an estimator, its commands; all else is inherited.

Poisson factorization (Lee & Seung 2001, the multiplicative updates for the divergence) of counts, NaN where missing.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from numpy.typing import NDArray
from sklearn.base import clone

import dfact
from dfact.catalogue import Entry
from dfact.cli.model_commands import ModelSpec, SelectSpec, fit_command, select_command
from dfact.cli.options import component_numbers
from dfact.engine.block_state import RowFactors
from dfact.engine.memory_plan import Footprint
from dfact.engine.passes import Block, PartialSums, Pass
from dfact.engine.requests import Solver, run, state_rows
from dfact.kernels.jit import kernel
from dfact.models.estimator import Factorization
from dfact.models.fit_task import FitTask
from dfact.models.traits import ModelTraits
from dfact.parameters import COUNT, NOT_NEGATIVE
from dfact.progress import Reporter, relative_change
from dfact.report.presenters.base import items_plot, model_text
from dfact.report.write import write_report
from tests.suites.estimator import EstimatorSuite


# 1. The kernel: the loop over entries.
@kernel
def ratios(V: NDArray[np.floating], R: NDArray[np.floating], seen: NDArray[np.floating]) -> float:
    """Set R (n, m) ← V/R and seen (n, m) ← 1 where V is not NaN, else 0; return Σ R − V log R over those entries."""
    divergence = 0.0
    for i in range(V.shape[0]):
        for j in range(V.shape[1]):
            v, r = V[i, j], R[i, j]
            seen[i, j] = v == v
            R[i, j] = v / r if v == v else 0
            divergence += r - v * np.log(r) if v == v else 0
    return divergence


# 2. The pass: the step of a block of rows, and its partial sums.
@dataclass
class Sums(PartialSums):
    numerator: NDArray[Any]
    denominator: NDArray[Any]
    divergence: NDArray[Any]


@dataclass(frozen=True)
class PoissonPass(Pass[RowFactors, NDArray[Any], Sums]):
    """Update of W, with the sums for the update of H. State: W as (k, rows)."""

    k: int
    seed: int
    dtype: np.dtype[Any]
    state_type = RowFactors

    def start(self, block: Block) -> RowFactors:
        generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(block.index,)))
        return RowFactors(generator.uniform(0.5, 1.5, (self.k, block.values.shape[0])).astype(self.dtype))

    def step(self, block: Block, state: RowFactors, broadcast: NDArray[Any]) -> tuple[RowFactors, Sums]:
        W, H, V = state.factors, broadcast, block.values
        R, seen = W.T @ H, np.empty_like(V)
        divergence = ratios(V, R, seen)
        W = W * (H @ R.T) / np.maximum(H @ seen.T, np.finfo(self.dtype).tiny)
        R = W.T @ H
        ratios(V, R, seen)
        return RowFactors(W), Sums(W @ R, W @ seen, np.asarray(divergence))


# 3. The estimator: parameters, the loop, and its memory footprint.
class PoissonMF(Factorization):
    """Minimizer of Σ (WH − V log WH) over the observed entries, W, H ≥ 0."""

    traits = ModelTraits(nonnegative=True)

    def __init__(
        self,
        n_components: Annotated[int, COUNT] = 3,
        *,
        max_iter: Annotated[int, COUNT] = 200,
        tol: Annotated[float, NOT_NEGATIVE] = 1e-5,
        random_state: int = 0,
        executor: Any = None,
        memory_limit: Any = None,
        callbacks: Any = (),
        dtype: Any = None,
    ) -> None:
        self.n_components, self.max_iter, self.tol, self.random_state = n_components, max_iter, tol, random_state
        self.executor, self.memory_limit, self.callbacks, self.dtype = executor, memory_limit, callbacks, dtype

    def _prepare(self, X: Any) -> FitTask[None]:
        return self._task(self._dataset(X, None, reset=True))

    def _solve(self, task: FitTask[None]) -> Solver[None]:
        m, dtype, report, history = task.dataset.shape[1], task.dtype, Reporter(self.callbacks, self.max_iter), []
        H = np.random.default_rng(self.random_state).uniform(0.5, 1.5, (self.n_components, m)).astype(dtype)
        for _ in range(self.max_iter):
            sums = yield from run(PoissonPass(self.n_components, self.random_state, dtype), H)
            history.append(float(sums.divergence))
            report.iteration(history)
            H = (H * sums.numerator / np.maximum(sums.denominator, np.finfo(dtype).tiny)).astype(dtype)
            if abs(relative_change(history)) < self.tol:
                break
        self.components_, self.factors_ = H, task.gather((yield from state_rows("factors")), self.n_components)
        self.n_iter_, self.objective_history_ = len(history), np.asarray(history)

    def inverse_transform(self, W: Any) -> NDArray[Any]:
        return np.asarray(W @ self.components_)

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        size, m, k = dtype.itemsize, shape[1], self.n_components
        return Footprint(state_per_row=size * k, work_per_row=2 * size * m, broadcast=8 * 3 * k * m, result_per_row=size * k)


# 4. Its commands: their help, and the function that selects. Options follow from the source of the estimator.
CROSS_VALIDATION = "dfact.selection.cross_validation.block_cross_validation:block_cross_validate"
SELECT = SelectSpec(CROSS_VALIDATION, "Number of factors of counts.", [component_numbers()], grid=["n_components"])
SPEC = ModelSpec(Entry("PoissonMF", __name__, "poisson"), "Poisson factorization of counts.", select=SELECT, checkpoint=False)


# 5. Its tests: mathematics first, then the functions that every factorization inherits.
def counts(seed: int, n: int = 400, m: int = 30, k: int = 3) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    V = rng.poisson(rng.gamma(1, 1, (n, k)) @ rng.gamma(1, 3, (k, m))).astype(float)
    V[rng.random(V.shape) < 0.1] = np.nan
    return V


@pytest.mark.further
@pytest.mark.parametrize("seed", range(2))
def test_the_objective_falls_to_a_fixed_point(seed: int) -> None:
    V = counts(seed)
    model = PoissonMF(tol=1e-9, max_iter=3000, random_state=seed).fit(V)
    assert (np.diff(model.objective_history_) <= 1e-12 * np.abs(model.objective_history_[:-1])).all()
    W, H = model.factors_, model.components_
    gradient = np.nan_to_num(1 - V / (W @ H)).T @ W  # 0 where H is above 0, else at least 0
    assert np.abs(gradient.T * H).max() <= 1e-2 * np.nansum(V) / 30


@pytest.mark.further
class TestEstimator(EstimatorSuite):
    model = PoissonMF
    parameters: ClassVar = {"n_components": 3, "max_iter": 3, "tol": 0}
    sizes: ClassVar = {"block_entries": 1 << 11, "chunk_entries": 1 << 13, "partition_entries": 1 << 14}
    transforms = False

    def data(self) -> NDArray[np.float64]:
        return np.vstack([counts(0)] * 4).astype(np.float32)


def test_a_new_model_inherits_the_shared_functions(tmp_path: Path) -> None:
    V, seen = counts(1), []
    model = clone(PoissonMF(2, max_iter=5, tol=0)).set_params(callbacks=[seen.append]).fit(V)
    assert [iteration.number for iteration in seen] == [1, 2, 3, 4, 5]
    assert model.loadings_.shape == (30, 2)
    assert list(model.get_feature_names_out()) == ["F1", "F2"]
    dfact.save_model(model, tmp_path / "m")
    np.testing.assert_array_equal(dfact.load_model(tmp_path / "m").components_, model.components_)
    assert "PoissonMF, 2 factors of 400 participants" in model_text(model)
    assert "F2" in model_text(model)
    assert items_plot(model).axes
    sparse = sp.csr_array(np.nan_to_num(V))
    np.testing.assert_allclose(
        PoissonMF(2, max_iter=5, tol=0).fit(sparse).components_, PoissonMF(2, max_iter=5, tol=0).fit(sparse.toarray()).components_
    )
    with pytest.raises(dfact.MemoryPlanError):
        PoissonMF(memory_limit="1MiB").fit(V)
    with pytest.raises(dfact.ParameterError, match="n_components is 0, expected an integer of at least 1"):
        PoissonMF(0).fit(V)
    V[5] = np.nan
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        PoissonMF(max_iter=1).fit(V)
    assert any("row 5 has no observed entry" in str(warning.message) for warning in caught)


@pytest.mark.further
def test_a_new_model_has_commands_a_report_and_a_bootstrap(tmp_path: Path) -> None:
    dfact.import_array(counts(0), tmp_path / "counts.zarr")
    data, fitted, chosen = (str(tmp_path / name) for name in ("counts.zarr", "fitted.model", "chosen.model"))
    result = CliRunner().invoke(fit_command(SPEC), [data, fitted, "-k", "3", "--max-iter", "20", "--plot", f"{fitted}.svg"])
    assert result.exit_code == 0, result.output
    assert "PoissonMF, 3 factors of 400 participants" in result.output
    assert Path(f"{fitted}.svg").read_text().startswith("<?xml")
    model = dfact.load_model(fitted)
    np.testing.assert_array_equal(model.components_, PoissonMF(3, max_iter=20).fit(data).components_)
    result = CliRunner().invoke(select_command(SPEC, SELECT), [data, chosen, "-k", "1,3", "--max-iter", "20", "--tol", "0"])
    assert result.exit_code == 0, result.output
    assert "PoissonMF, 3 factors of 400 participants" in result.output
    assert dfact.load_model(chosen).selection_.values == [[1], [3]]
    model.stability_ = dfact.selection.bootstrap(model, data, 3, random_state=0)
    assert model.stability_.similarity.shape == (3, 3)
    assert np.median(model.stability_.similarity) > 0.9
    write_report(model, tmp_path / "report.html", dfact.open_dataset(data))
    page = (tmp_path / "report.html").read_text()
    assert ">F3<" in page
    assert "similarit" in page


@pytest.mark.needs("batch")
def test_a_job_plans_the_largest_candidate() -> None:
    from dfact.batch.estimate import largest_estimator
    from dfact.batch.job_file import Step

    step = Step(1, 1, "select poisson", select_command(SPEC, SELECT), {}, {"n_components": [2, 5], "max_iter": 9})
    assert (largest_estimator(step)[0].get_params()["n_components"], largest_estimator(step)[1]) == (5, 2)
