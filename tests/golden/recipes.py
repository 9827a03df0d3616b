"""Nineteen small fits whose recorded results must be bit-identical."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

import dfact
from tests.conftest import planted_answers

ATTRIBUTES = (
    "objective_history_",
    "lagrangian_history_",
    "components_",
    "factors_",
    "confounder_loadings_",
    "memberships_",
    "item_parameters_",
    "pure_subjects_",
    "row_factors_",
    "column_factors_",
    "weights_",
    "modularity_",
    "singular_values_",
    "mean_",
    "noise_variance_",
)
"""Fitted attributes that are recorded, for the models that have them."""


def icqf_mm() -> Any:
    return dfact.ICQF(4, max_iter=40).fit(planted_answers(300, 24, 4, seed=1, missing=0.1))


def icqf_admm_with_confounders() -> Any:
    rng = np.random.default_rng(2)
    known = pd.DataFrame({"age": rng.uniform(18, 80, 200), "sex": pd.Categorical(rng.choice(["f", "m"], 200))})
    M = planted_answers(200, 16, 3, seed=2, missing=0.2)
    return dfact.ICQF(3, solver="admm", max_iter=25).fit(M, confounders=known)


def factor_analysis() -> Any:
    return dfact.FactorAnalysis(3).fit(planted_answers(400, 15, 3, seed=4))


def expectile_dense() -> Any:
    return dfact.ExpectileMF(4, tau=0.2, ridge=0.1, max_iter=40).fit(_skewed(5, missing=0.0))


def expectile_missing() -> Any:
    return dfact.ExpectileMF(3, tau=0.8, ridge=0.1, max_iter=40).fit(_skewed(6, missing=0.6))


def expectile_sparse() -> Any:
    return dfact.ExpectileMF(3, tau=0.3, ridge=0.1, max_iter=40).fit(sp.csr_array(np.nan_to_num(_skewed(7, missing=0.8))))


def expectile_measurements() -> Any:
    rng = np.random.default_rng(8)
    Y = rng.random((12, 2)) @ rng.random((2, 10))
    A = rng.normal(size=(90, Y.size))
    return dfact.ExpectileMF(2, tau=0.4, ridge=0.01, max_iter=30).fit_measurements(A, A @ Y.ravel(), Y.shape)


def membership_crsc() -> Any:
    return dfact.GradeOfMembership(3, random_state=0).fit(_responses(9))


def membership_srsc() -> Any:
    return dfact.GradeOfMembership(3, method="srsc", random_state=0).fit(_responses(10))


def cp_missing() -> Any:
    X = _tensor(11)
    X[np.random.default_rng(11).random(X.shape) < 0.2] = np.nan
    return dfact.ElasticCP(4, lam=0.05, max_iter=40, random_state=0).fit(X)


def cp_nonnegative() -> Any:
    return dfact.ElasticCP(3, lam=0.01, nonnegative=True, max_iter=40, random_state=0).fit(np.abs(_tensor(12)))


def cp_stochastic() -> Any:
    return dfact.ElasticCP(3, lam=0.05, solver="stochastic", max_iter=15, random_state=0).fit(_tensor(13))


def cp_als() -> Any:
    return dfact.CPALS(3, max_iter=30, random_state=0).fit(_tensor(14))


def nmf_frobenius() -> Any:
    return dfact.NMF(4, alpha_W=0.001, l1_ratio=0.5, max_iter=40).fit(_counts(15, missing=0.1))


def nmf_divergence() -> Any:
    return dfact.NMF(3, loss="kullback-leibler", max_iter=40).fit(_counts(16, missing=0.0))


def nmf_sparse() -> Any:
    return dfact.NMF(3, max_iter=40).fit(sp.csr_array(_counts(17, missing=0.0) // 4))


def pca_complete() -> Any:
    return dfact.PCA(3, scale="standard").fit(_skewed(18, missing=0.0))


def pca_missing() -> Any:
    return dfact.PCA(3).fit(_skewed(19, missing=0.2))


RECIPES: dict[str, Callable[[], Any]] = {
    recipe.__name__: recipe
    for recipe in (
        icqf_mm,
        icqf_admm_with_confounders,
        factor_analysis,
        expectile_dense,
        expectile_missing,
        expectile_sparse,
        expectile_measurements,
        membership_crsc,
        membership_srsc,
        cp_missing,
        cp_nonnegative,
        cp_stochastic,
        cp_als,
        nmf_frobenius,
        nmf_divergence,
        nmf_sparse,
        pca_complete,
        pca_missing,
    )
}


def _skewed(seed: int, missing: float) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    Y = rng.random((160, 3)) @ rng.random((3, 40)) + rng.lognormal(-1, 1, (160, 40))
    Y[rng.random(Y.shape) < missing] = np.nan
    return Y


def _counts(seed: int, missing: float) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.gamma(0.5, 1.0, (220, 3)) @ rng.gamma(0.5, 4.0, (3, 24))).astype(float)
    counts[rng.random(counts.shape) < missing] = np.nan
    return counts


def _responses(seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    memberships = np.vstack([np.eye(3), rng.dirichlet([0.3] * 3, 240)])
    return rng.binomial(4, memberships @ rng.random((3, 20))).astype(float)


def _tensor(seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    A, B, C = (rng.normal(size=(size, 3)) for size in (40, 12, 9))
    return np.einsum("ir,jr,kr->ijk", A, B, C) + rng.normal(0, 0.1, (40, 12, 9))
