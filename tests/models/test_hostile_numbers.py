"""Every solver on hostile data: refused with a message, or finite, within its constraints, and no worse than its start.

The data are constant, duplicate, nearly empty, of extreme sizes, or smaller than the model. NumPy's warnings of overflow and the
like are errors here, as in all tests.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

import dfact
from dfact.catalogue import BY_NAME
from dfact.data.validation import magnitude_limits
from tests.cases import exhaustive_after, exhaustive_unless, installed, of_slice
from tests.suites.hostile_data import DATA, NARROW, SIZES, N, answers, refusal, with_an_entry_per_column

Array = NDArray[Any]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of rows without entries, Heywood cases, lone pure subjects


SPARSE_ENTRIES = {"one entry": "has no observed entry"}
SINGLE = dict.fromkeys(("large", "columns of all sizes", "rows of all sizes", "outlier"), "large entries") | {"small": "small entries"}
TOO_MANY = "larger than the data allows"
CONSTANT = "expected items that vary|do not vary together"


@dataclass(frozen=True)
class Solver:
    """A variant of an estimator, and the data that it refuses, with a pattern of the message."""

    model: Callable[..., Any]
    parameters: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] | None = field(default_factory=dict)
    """None for data whose refusal the model decides: each case is fitted or refused."""
    inputs: tuple[str, ...] = ()
    least: str = ""
    """Pattern of the refusal of more components than rows or columns; empty where they are accepted."""

    def fit(self, X: Array, k: int, **changes: Any) -> Any:
        rng, n = np.random.default_rng(len(X)), len(X)
        inputs: dict[str, Any] = {}
        if "confounders" in self.inputs:
            inputs["confounders"] = pd.DataFrame({"age": rng.uniform(18, 80, n), "sex": pd.Categorical(rng.choice(["f", "m"], n))})
        if "weights" in self.inputs:
            weights = rng.gamma(2, 1, n)
            weights[1::3] = 0
            inputs["sample_weight"] = weights
        data = sp.csr_array(np.nan_to_num(X)) if "sparse" in self.inputs else X
        return self.model(k, **{"max_iter": 30} | self.parameters | changes).fit(data, **inputs)

    def shaped(self, X: Array) -> Array:
        """Return the data as a tensor or as genotypes, where the model takes these."""
        if "genotypes" in self.inputs:
            return np.minimum(X, 2)
        if self.parameters.get("solver") == "stochastic":
            X = np.tile(X, (3, 1))  # its samples need 30 rows
        return np.stack([X, X[::-1], 2 * X], axis=2) if "tensor" in self.inputs else X

    def expected(self, case: str, dtype: str) -> str:
        """Return the pattern of the message with which this data is refused, empty if it is fitted."""
        if case == "more components":
            return self.least
        if case in ("one row", "one number") and self.parameters.get("solver") == "stochastic":
            return "slices in mode 1, expected at least 30"
        if self.refused is None:
            return "^(?!failed|raised)"
        return self.refused.get(case, SINGLE.get(case, "") if dtype == "float32" else "")


def bounded(**parameters: Any) -> dict[str, Any]:
    return {"parameters": parameters, "refused": SPARSE_ENTRIES, "least": TOO_MANY}


def responses(**parameters: Any) -> dict[str, Any]:
    return {"parameters": {"random_state": 0} | parameters, "refused": None, "least": TOO_MANY}


def cp(**parameters: Any) -> dict[str, Any]:
    return {"parameters": {"random_state": 0, "lam": 0.1} | parameters, "inputs": ("tensor",)}


FACTORS = {
    **SPARSE_ENTRIES,
    **dict.fromkeys(("constant columns", "equal entries", "zeros", "an entry per column"), CONSTANT),
    **dict.fromkeys(NARROW, "at least 2 of each"),
}
ONE_FACTOR = {"duplicate rows": "^$|fewer than 2 factors"}
"""Promax of perfectly correlated items divides by 0, or by a rounding error."""
SOLVERS = {
    "ICQF": Solver(dfact.ICQF, **bounded()),
    "ICQF, confounders": Solver(dfact.ICQF, **bounded(), inputs=("confounders",)),
    "ICQF, weights": Solver(dfact.ICQF, **bounded(), inputs=("weights",)),
    "ICQF, l2, FISTA": Solver(dfact.ICQF, **bounded(penalty="l2", subproblem_solver="fista")),
    "ICQF, unbounded": Solver(dfact.ICQF, **bounded(beta=0, w_max=np.inf, q_max=np.inf, bounds=(0, np.inf))),
    "ICQF, ADMM": Solver(dfact.ICQF, **bounded(solver="admm")),
    "ICQF, ADMM, adaptive": Solver(dfact.ICQF, **bounded(solver="admm", rho="adaptive"), inputs=("confounders", "weights")),
    "NMF": Solver(dfact.NMF, **bounded()),
    "NMF, weights": Solver(dfact.NMF, **bounded(), inputs=("weights",)),
    "ExpectileMF": Solver(dfact.ExpectileMF),
    "ExpectileMF, exact": Solver(dfact.ExpectileMF, {"solver": "exact", "tau": 0.8}),
    "ExpectileMF, surrogate": Solver(dfact.ExpectileMF, {"solver": "surrogate", "tau": 0.2}),
    "ExpectileMF, sparse": Solver(dfact.ExpectileMF, {}, {"zeros": "no observed entry"}, ("sparse",)),
    "ElasticCP": Solver(dfact.ElasticCP, **cp()),
    "ElasticCP, matrix": Solver(dfact.ElasticCP, {"random_state": 0, "lam": 0.1}),
    "ElasticCP, without prior": Solver(dfact.ElasticCP, **cp(slice_variances=None)),
    "ElasticCP, not negative": Solver(dfact.ElasticCP, **cp(nonnegative=True)),
    "ElasticCP, exact": Solver(dfact.ElasticCP, **cp(missing="exact")),
    "ElasticCP, least squares": Solver(dfact.ElasticCP, **cp(lam=0.0)),
    "ElasticCP, stochastic": Solver(dfact.ElasticCP, **cp(solver="stochastic", max_iter=8)),
    "PCA": Solver(dfact.PCA, {}, None, (), TOO_MANY),
    "PCA, mean": Solver(dfact.PCA, {"missing": "mean"}, None, (), TOO_MANY),
    "PCA, standard": Solver(dfact.PCA, {"scale": "standard"}, None, (), TOO_MANY),
    "PCA, binomial": Solver(dfact.PCA, {"scale": "binomial"}, None, ("genotypes",), TOO_MANY),
    "GradeOfMembership": Solver(dfact.GradeOfMembership, **responses()),
    "GradeOfMembership, svm-cone": Solver(dfact.GradeOfMembership, **responses(vertex_hunting="svm-cone")),
    "GradeOfMembership, srsc": Solver(dfact.GradeOfMembership, **responses(method="srsc")),
    "GradeOfMembership, ssc, sparse": Solver(dfact.GradeOfMembership, **responses(method="ssc"), inputs=("sparse",)),
    "GradeOfMembership, srm": Solver(dfact.GradeOfMembership, **responses(method="srm")),
    "GradeOfMembership, likelihood": Solver(dfact.GradeOfMembership, **responses(likelihood="binomial")),
    **({"Admixture": Solver(dfact.Admixture, **responses(), inputs=("genotypes",))} if installed("genetics") else {}),
    "CPALS": Solver(dfact.CPALS, {"random_state": 0}, None, ("tensor",)),
}
if "FactorAnalysis" in BY_NAME:  # of a slice
    SOLVERS |= {
        "FactorAnalysis": Solver(dfact.FactorAnalysis, {"max_iter": 1000}, FACTORS | ONE_FACTOR, (), TOO_MANY),
        # The row of the outlier has weight 0, but determines the shift of its column.
        "FactorAnalysis, weights": Solver(
            dfact.FactorAnalysis,
            {"max_iter": 1000},
            FACTORS | ONE_FACTOR | {"outlier": f"{CONSTANT}|large entries"},
            ("weights",),
            TOO_MANY,
        ),
        "FactorAnalysis, oblimin": Solver(
            dfact.FactorAnalysis, {"max_iter": 1000, "rotation": "oblimin", "missing": "listwise"}, FACTORS, (), TOO_MANY
        ),
        "FactorAnalysis, polychoric": Solver(
            dfact.FactorAnalysis, {"max_iter": 1000, "correlation": "polychoric"}, None, ("weights",), TOO_MANY
        ),
    }


def fit(solver: Solver, case: str, seed: int, dtype: str) -> tuple[Any, Array]:
    X = solver.shaped(DATA["plain" if case == "more components" else case](seed))
    k = 8 if case == "more components" else 1 if case in NARROW else 2
    return solver.fit(X, k, dtype=dtype), X


def check(model: Any, X: Array) -> None:
    """Assert that fitted numbers are finite, keep their constraints, and are no worse than the start."""
    rows, entries = np.asarray(model.row_factors()), X.reshape(len(X), -1)
    # The likelihoods leave rows without entries as NaN, and grade of membership treats 0 as missing.
    observed = (np.nan_to_num(entries) != 0).any(axis=1) if hasattr(model, "memberships_") else ~np.isnan(entries).all(axis=1)
    arrays = [rows[observed], np.asarray(model.components_), *(getattr(model, "factors_", []) if X.ndim == 3 else [])]
    assert all(np.isfinite(array).all() for array in arrays)
    history = getattr(model, "objective_history_", None)
    if history is not None:
        assert np.isfinite(history).all()
        with np.errstate(under="ignore"):
            norm = float(np.nansum(np.square(X)))
        # A stochastic fit estimates its start on some rows, and may miss an outlier; it may not end above the model 0.
        start = max(history[0], 0.5 * norm) if getattr(model, "solver", "") == "stochastic" else history[0]
        rounding = 30 * float(np.finfo(rows.dtype).eps)
        assert history[-1] <= start * (1 + 1e-6) + rounding * norm, f"{start:.6g} rose to {history[-1]:.6g}"
    CHECKS.get(type(model).__name__, lambda *_: None)(model, rows)


def check_bounds(model: Any, W: Array) -> None:
    Q, problem = model.components_.astype(np.float64), model.problem_
    assert W.min() >= 0
    assert Q.min() >= 0
    assert (problem.w_max * (1 + 1e-6) >= W).all()
    assert (np.asarray(problem.q_max) * (1 + 1e-6) >= Q).all()
    if not len(getattr(model, "confounder_components_", ())):
        upper = np.broadcast_to(problem.upper, Q.shape[1])
        assert (upper * (1 + 2e-4) >= W @ Q).all()


def check_signs(model: Any, _: Array) -> None:
    assert not model.nonnegative or min(A.min() for A in model.factors_) >= 0


def check_simplex(model: Any, memberships: Array) -> None:
    known = memberships[~np.isnan(memberships).any(axis=1)]
    assert known.min(initial=0) >= 0
    np.testing.assert_allclose(known.sum(axis=1), 1, rtol=1e-5)
    assert model.components_.min() >= 0
    assert model.components_.max() <= getattr(model, "max_response_", 1) * (1 + 1e-6)
    history = getattr(model, "log_likelihood_history_", np.zeros(1))
    assert history[-1] >= history[0]


def check_factors(model: Any, _: Array) -> None:
    assert (model.uniquenesses_ > 0).all()
    assert np.abs(model.correlations_).max() <= 1
    assert np.isfinite(model.communalities_).all()


CHECKS: dict[str, Callable[[Any, Array], None]] = {
    "ICQF": check_bounds,
    "NMF": check_bounds,
    "ElasticCP": check_signs,
    "GradeOfMembership": check_simplex,
    "FactorAnalysis": check_factors,
}


def outcome(solver: Solver, case: str, seed: int, dtype: str) -> str:
    """Return the message of a refusal; empty after a fit that passes all checks, else what was found."""
    try:
        check(*fit(solver, case, seed, dtype))
    except dfact.DfactError as error:
        return str(error)
    except AssertionError as error:
        return f"failed: {error}"
    except (ArithmeticError, ValueError, RuntimeWarning, np.linalg.LinAlgError) as error:
        return f"raised {type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("dtype", exhaustive_after(1, ["float32", "float64"]))
@pytest.mark.parametrize("name", exhaustive_unless(lambda name: "," not in name, SOLVERS))
def test_hostile_data_are_fitted_or_refused(name: str, dtype: str) -> None:
    solver, failed = SOLVERS[name], []
    for seed, case in enumerate((*DATA, "more components")):
        expected, found = solver.expected(case, dtype), outcome(solver, case, seed, dtype)
        if not (re.search(expected, found) if expected else not found):
            failed.append(f"{case}: expected {expected or 'a fit'}, found {found or 'a fit'}")
    assert not failed, "\n".join(failed)


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_entries_beyond_the_range_of_the_precision_are_refused(dtype: str) -> None:
    X = answers(0)
    lowest, highest = magnitude_limits(np.dtype(dtype))
    for size, message in (
        (3.1 * highest / X.max(), "large entries: row .*divide X"),
        (0.9 * lowest / X.max(), "small entries.*multiply X"),
    ):
        for model in (dfact.NMF(2), dfact.CPALS(2), dfact.FactorAnalysis(1)):
            with pytest.raises(dfact.DataError, match=message):
                model.set_params(dtype=dtype).fit(X * size)
    fitted = dfact.NMF(2, dtype=dtype).fit(X)
    assert np.isfinite(fitted.transform(X * lowest / 100)).all()  # rows near 0, of which a chunk may consist
    with pytest.raises(dfact.DataError, match="large entries"):
        fitted.transform(X * highest)


@pytest.mark.further
@pytest.mark.parametrize("name", ["ICQF", "ICQF, ADMM", "NMF", "ExpectileMF", "ElasticCP", "GradeOfMembership"])
def test_parameters_of_any_size_are_fitted_or_refused(name: str) -> None:
    solver = SOLVERS[name]
    X, model = solver.shaped(answers(0)), solver.model(2, **solver.parameters)
    given = {"bounds", "w_max", "q_max", "beta", "rho", "tau", "ridge", "lam", "l1_ratio", "max_response", "tol", "step_size"}
    for parameter in sorted(given & set(model.get_params())):
        for size in (1e300, 1e30, 1e-300, np.inf):
            value = (0.0, size) if parameter == "bounds" else size
            fit = partial(solver.fit, X, 2, dtype="float32", **{parameter: value})
            fitted: list[Any] = []
            refused = refusal(lambda: fitted.append(fit()))  # noqa: B023  (called at once)
            assert refused or np.isfinite(fitted[0].components_).all(), (parameter, size)
            assert not refused or size != 1e300 or re.search(f"^{parameter} (is|holds) ", refused), refused


@pytest.mark.parametrize("exponent", [10, 40, 100])
@pytest.mark.parametrize("seed", [0, 3, 11])
def test_bounds_are_kept_whatever_the_unit_of_the_answers(seed: int, exponent: int) -> None:
    X = answers(seed)
    plain, scaled = (dfact.ICQF(2, beta=0, max_iter=30).fit(X * size) for size in (1.0, 2.0**exponent))
    check_bounds(scaled, scaled.factors_)
    np.testing.assert_allclose(scaled.transform(X * 2.0**exponent), scaled.factors_)
    np.testing.assert_allclose(scaled.objective_history_[-1] / 4.0**exponent, plain.objective_history_[-1], rtol=0.02)


@pytest.mark.parametrize("solver", ["exact", "surrogate"])
def test_more_components_than_columns_do_not_amplify_rounding(solver: str) -> None:
    X = answers(8) * 10.0**SIZES
    model = dfact.ExpectileMF(8, tau=0.8, solver=solver, max_iter=30).fit(X)
    error = np.abs(model.inverse_transform(model.row_factors_) - X).max()
    assert error <= 1e-12 * X.max()


def weighted_models() -> dict[str, Any]:
    return {
        "ICQF": dfact.ICQF(2, max_iter=100),
        "ICQF, ADMM": dfact.ICQF(2, solver="admm", max_iter=100),
        "NMF": dfact.NMF(2, max_iter=100),
        **dict(zip(["FactorAnalysis"], of_slice("FactorAnalysis", 1), strict=False)),
    }


@pytest.mark.parametrize("name", weighted_models())
def test_the_unit_of_weights_does_not_matter(name: str) -> None:
    X, w = answers(5, 24), np.random.default_rng(5).gamma(2, 1, 24)
    expected = weighted_models()[name].fit(X, sample_weight=w)
    for unit in (2.0**-60, 2.0**-20, 2.0**20, 2.0**60):
        found = weighted_models()[name].fit(X, sample_weight=unit * w)
        np.testing.assert_allclose(found.components_, expected.components_, rtol=1e-6, atol=1e-9)
        if name.startswith("ICQF"):
            np.testing.assert_allclose(found.objective_history_ / unit, expected.objective_history_, rtol=1e-9)


def test_weights_beyond_the_range_of_the_precision_are_refused() -> None:
    for weight in (1e-300, 1e300):
        with pytest.raises(dfact.DataError, match=r"weights of rows are up to.*multiply all weights"):
            dfact.ICQF(2).fit(answers(0), sample_weight=np.full(N, weight))


@pytest.mark.parametrize("name", weighted_models())
def test_a_row_with_a_billion_copies_decides_the_fit(name: str) -> None:
    X, w = answers(6, 24), np.ones(24)
    X[3], w[3] = [3, 0, 1, 2, 3], 1e9
    model = weighted_models()[name].fit(X, sample_weight=w)
    error = np.abs(model.inverse_transform(model.row_factors())[3] - X[3]).max()
    assert error < 0.5
    assert np.isfinite(model.row_factors()).all()
    if name == "FactorAnalysis":
        np.testing.assert_allclose(model.mean_, X[3], atol=1e-6)


def test_an_integer_weight_equals_copies_of_the_row() -> None:
    X, w = answers(7, 20), np.random.default_rng(7).integers(0, 60, 20)
    weighted = dfact.ICQF(2, dtype="float64").fit(X, sample_weight=w)
    copied = dfact.ICQF(2, dtype="float64").fit(np.repeat(X, w, axis=0))
    np.testing.assert_allclose(weighted.objective_history_, copied.objective_history_, rtol=1e-9)
    np.testing.assert_allclose(weighted.components_, copied.components_, atol=1e-7)


def test_items_of_weight_0_alone_are_described_without_dividing_by_0() -> None:
    X, w = with_an_entry_per_column(1), np.ones(N)
    w[0] = 0
    for model in (dfact.ICQF(2), dfact.NMF(2)):
        assert np.isfinite(model.fit(X, sample_weight=w).components_).all()


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("seed", [-1, 2**40, "seven", 1.5])
def test_what_is_no_seed_is_refused(seed: Any) -> None:
    X = answers(0)
    for fit in (
        dfact.ICQF(2, init="random", random_state=seed).fit,
        dfact.ICQF(2, init=np.ones((2, X.shape[1])), random_state=seed).fit,  # which draws no numbers
        dfact.GradeOfMembership(2, random_state=seed).fit,
        dfact.CPALS(2, random_state=seed).fit,
        lambda X: dfact.selection.select_penalty(dfact.ElasticCP(2), X, lambdas=[0.1], random_state=seed),
    ):
        assert "random_state is" in refusal(partial(fit, X))
    if seed != 2**40:
        assert "random_state is" in refusal(lambda: dfact.selection.select_number_of_factors(dfact.FactorAnalysis(1), X, random_state=seed))
