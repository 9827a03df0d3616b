"""Admixture: ADMIXTURE's log-likelihoods, recovery, conditions of optimality, one result on all executors, projection, labels."""

import os
import re
import signal
import sys
import warnings
from dataclasses import replace
from functools import partial
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import xlog1py, xlogy

import dfact
from dfact import Admixture, DataError, ParameterError
from dfact.cli.main import main
from dfact.engine.executors import LocalSession
from dfact.engine.tiles import Tile
from dfact.genetics import admixture, footprint
from dfact.genetics.examples import write_bed, write_bim
from dfact.genetics.matcher import match_columns
from dfact.models.binomial.fit import ColumnStep, Extrapolate, Products
from dfact.models.binomial.passes import ProjectionPass
from dfact.models.estimator import Variants
from tests.cases import exhaustive_after
from tests.conftest import REAL_DATA, CutRows
from tests.suites.estimator import EstimatorSuite

Array = NDArray[Any]
GENOTYPES = REAL_DATA / "genotypes"
real = pytest.mark.skipif(not GENOTYPES.exists(), reason="the folder of real data is not here")
SILENT = "ignore:.*have no genotype"


def planted(seed: int, n: int = 200, m: int = 300, k: int = 3, trials: int = 2, missing: float = 0.05) -> tuple[Array, Array, Array]:
    """Ancestries, a fifth of them pure, frequencies, and genotypes with NaN where missing."""
    rng = np.random.default_rng(seed)
    Q = rng.dirichlet(np.full(k, 0.3), n)
    Q[: n // 5] = np.eye(k)[np.arange(n // 5) % k]
    P = rng.uniform(0.02, 0.98, (k, m))
    X = rng.binomial(trials, Q @ P).astype(np.float32)
    X[rng.random(X.shape) < missing] = np.nan
    return Q, P, X


def log_likelihoods(X: Array, Q: Array, P: Array, trials: int = 2) -> Array:
    """Of each row."""
    F, g = Q @ P, np.nan_to_num(X)
    return np.asarray((~np.isnan(X) * (xlogy(g, F) + xlog1py(trials - g, -F))).sum(axis=1))


def log_likelihood(X: Array, Q: Array, P: Array, trials: int = 2) -> float:
    return float(log_likelihoods(X, Q, P, trials).sum())


def matched(Q: Array, true: Array) -> Array:
    """The columns of Q in the order in which they are nearest to the true ones."""
    Q, true = np.asarray(Q, np.float64), np.asarray(true, np.float64)
    return Q[:, linear_sum_assignment(np.square(Q[:, None, :] - true[:, :, None]).sum(axis=0))[1]]


def rmse(Q: Array, true: Array) -> float:
    return float(np.sqrt(np.square(matched(Q, true) - true).mean()))


def read_bed(path: Path, n: int, m: int) -> Array:
    """Counts of A2 (n, m), NaN where missing."""
    table = np.array([0, np.nan, 1, 2], np.float32)[(np.arange(256)[:, None] >> np.array([0, 2, 4, 6])) & 3]
    return np.ascontiguousarray(table[np.fromfile(path, np.uint8)[3:].reshape(m, -1)].reshape(m, -1)[:, :n].T)


def hapmap3() -> Array:
    return read_bed(GENOTYPES / "hapmap3" / "hapmap3.bed", 324, 13928)


def scope() -> tuple[Array, Array]:
    truth = np.loadtxt(GENOTYPES / "scope" / "Q_true.txt.gz")
    return read_bed(GENOTYPES / "scope" / "example_1k.bed", 1000, 1000), truth


@real
@pytest.mark.parametrize(("k", "expected"), exhaustive_after(2, [(1, -4_169_323.01), (3, -3_799_887.17), (2, -3_835_365.43)]))
def test_log_likelihoods_are_those_of_admixture(k: int, expected: float) -> None:
    X = hapmap3()
    model = Admixture(k).fit(X)
    assert model.log_likelihood_ == pytest.approx(expected, rel=1e-6)
    assert log_likelihood(X, np.asarray(model.memberships_, float), model.allele_frequencies_.astype(float)) == pytest.approx(
        expected, rel=1e-6
    )
    assert model.converged_
    if k > 1:
        assert rmse(model.memberships_, np.loadtxt(GENOTYPES / "hapmap3" / f"admixture.{k}.Q")) < 2e-3


@real
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_ancestries_of_the_scope_example(missing: float) -> None:
    X, truth = scope()
    if missing:
        X[::2][np.random.default_rng(0).random((500, 1000)) < missing] = np.nan
    model, swapped = Admixture(6).fit(X), Admixture(6).fit(2 - X)
    assert rmse(model.memberships_, truth) <= (0.067 if missing else 0.060)
    assert np.sqrt(np.square(swapped.memberships_ - model.memberships_).mean()) < 1e-3


@pytest.mark.exhaustive
@real
def test_cross_validation_errors_are_those_of_admixture() -> None:
    table = dfact.selection.cross_validate_entries(Admixture(), hapmap3(), [1, 2, 3], random_state=0).table
    np.testing.assert_allclose(table["deviance"], [0.55248, 0.48190, 0.47835], atol=5e-4)


@pytest.mark.parametrize("seed", range(3))
def test_accepted_merits_never_fall_and_the_last_is_that_of_the_model(seed: int) -> None:
    Q, _, X = planted(seed)
    model = Admixture(3, tol=1e-10, dtype="float64").fit(X)
    assert all(after >= before - 1e-9 * abs(before) for before, after in pairwise(model.log_likelihood_history_))
    assert model.log_likelihood_ == model.log_likelihood_history_[-1]
    assert log_likelihood(X, model.memberships_, model.allele_frequencies_) == pytest.approx(model.log_likelihood_, rel=1e-9)
    assert model.log_likelihood_ > log_likelihood(X, Q, np.clip(planted(seed)[1], 1e-5, 1))
    sizes = model.memberships_.sum(axis=0)
    assert (np.diff(sizes) <= 0).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("trials", [2, 4])
def test_the_maximum_meets_the_conditions_of_optimality(seed: int, trials: int) -> None:
    _, _, X = planted(seed, 80, 120, trials=trials)
    model = Admixture(3, ploidy=trials, tol=0, max_iter=200, dtype="float64").fit(X)
    Q, P = model.memberships_, model.allele_frequencies_
    F, seen, g = Q @ P, ~np.isnan(X), np.nan_to_num(X)
    slope = seen * (g / F - (trials - g) / (1 - F))
    rows, columns = slope @ P.T, Q.T @ slope
    for q, slopes in zip(Q, rows, strict=True):
        free = q > 2e-5
        level = (q * slopes)[free].sum() / q[free].sum()
        np.testing.assert_allclose(slopes[free], level, atol=0.02 * X.shape[1] ** 0.5)
        assert (slopes[~free] <= level + 0.1).all()
    inside = (P > 2e-5) & (P < 1 - 2e-5)
    assert np.abs(columns[inside]).max() < 0.02 * X.shape[0] ** 0.5
    assert (columns[P <= 1.001e-5] <= 0.1).all()
    assert (columns[P >= 1 - 1.001e-5] >= -0.1).all()


def test_one_population_has_the_column_means() -> None:
    _, _, X = planted(0)
    model = Admixture(1).fit(X)
    np.testing.assert_allclose(model.allele_frequencies_[0], np.nanmean(X, axis=0) / 2, rtol=1e-5)
    np.testing.assert_array_equal(model.memberships_, 1)
    assert model.n_iter_ == 3


@pytest.mark.parametrize("seed", range(3))
def test_ancestries_are_recovered(seed: int) -> None:
    Q, P, X = planted(seed, 300, 1500)
    model = Admixture(3).fit(X)
    assert rmse(model.memberships_, Q) < 0.03
    assert model.memberships_.dtype == np.float32
    order = min(permutations(range(3)), key=lambda order: np.abs(model.allele_frequencies_[list(order)] - P).sum())
    assert np.abs(model.allele_frequencies_[list(order)] - P).mean() < 0.05
    expected = model.inverse_transform(model.memberships_)
    np.testing.assert_allclose(expected, 2 * model.memberships_ @ model.allele_frequencies_, rtol=1e-5)


@pytest.mark.filterwarnings(SILENT)
def test_silent_people_and_monomorphic_snps() -> None:
    _, _, X = planted(1)
    X[:, 7], X[:, 8] = 0, 2
    X[5] = np.nan
    model = Admixture(3).fit(X)
    assert np.isnan(model.memberships_[5]).all()
    assert np.isfinite(np.delete(model.memberships_, 5, axis=0)).all()
    assert model.n_unobserved_ == 1
    np.testing.assert_allclose(model.allele_frequencies_[:, 7], 1e-5, rtol=1e-3)
    np.testing.assert_allclose(model.allele_frequencies_[:, 8], 1 - 1e-5, rtol=1e-6)
    assert np.isnan(model.transform(X)[5]).all()
    rest = Admixture(3).fit(np.delete(X, 5, axis=0))
    assert rest.log_likelihood_ == pytest.approx(model.log_likelihood_, rel=1e-6)


def test_invalid_data_is_refused() -> None:
    _, _, X = planted(0, 40, 30)
    for change, message in (
        (3.0, "Values above the ploidy.*holds 3, expected 0 to 2"),
        (-1.0, "Negative values"),
        (0.5, "holds 0.5, expected whole numbers from 0 to 2"),
    ):
        Y = X.copy()
        Y[3, 4] = change
        with pytest.raises(DataError, match=message):
            Admixture(2).fit(Y)
    Y = X.copy()
    Y[:, 4] = np.nan
    with pytest.raises(DataError, match="column '4' has no observed entry"):
        Admixture(2).fit(Y)
    with pytest.raises(DataError, match=r"rank|span"):
        Admixture(3).fit(np.tile(np.nan_to_num(X[:1]), (40, 1)))
    with pytest.raises(ParameterError, match="ploidy is 0"):
        Admixture(2, ploidy=0).fit(X)
    with pytest.raises(ParameterError, match="n_components=31 is larger"):
        Admixture(31).fit(X)


@pytest.mark.further
def test_codes_of_any_type_give_the_same_fit(tmp_path: Path) -> None:
    _, _, X = planted(2, 100, 80, missing=0.1)
    expected = Admixture(3).fit(X)
    codes = np.where(np.isnan(X), 9, X).astype(np.uint8)
    low = np.where(np.isnan(X), 1, X + 2).astype(np.uint8)  # of a questionnaire from 2 to 4, where 1 is missing
    table = pd.DataFrame(low, columns=[f"s{j}" for j in range(80)])
    table.to_csv(tmp_path / "low.csv", index=False)
    datasets = [
        dfact.import_array(codes, tmp_path / "9.zarr", missing=9),
        dfact.import_array(codes.astype(np.int16), tmp_path / "16.zarr", missing=9),
        dfact.import_table(tmp_path / "low.csv", tmp_path / "low.zarr", items=["s*"], missing=[1]),
    ]
    assert datasets[2].offset.any()
    for dataset in datasets[:2]:
        model = Admixture(3).fit(dataset)
        np.testing.assert_array_equal(model.allele_frequencies_, expected.allele_frequencies_)
        np.testing.assert_array_equal(np.asarray(model.memberships_), expected.memberships_)
    with pytest.raises(DataError, match="Values above"):
        Admixture(3).fit(datasets[2])
    four = Admixture(3, ploidy=4).fit(datasets[2])
    np.testing.assert_array_equal(four.allele_frequencies_, Admixture(3, ploidy=4).fit(X + 2).allele_frequencies_)
    assert Admixture(2).fit(sp.csr_array(np.nan_to_num(X))).log_likelihood_ == pytest.approx(
        Admixture(2).fit(np.nan_to_num(X)).log_likelihood_, rel=1e-7
    )


@pytest.mark.parametrize("seed", range(2))
def test_projection_comes_near_the_fit_in_one_read(seed: int) -> None:
    Q, _, X = planted(seed, 300, 600)
    model = Admixture(3, tol=1e-9).fit(X[:250])
    corrected = rmse(model.transform(X[250:]), Q[250:])
    model.projection_frequencies_ = None
    np.testing.assert_allclose(model.transform(X[:250]), model.memberships_, atol=2e-3)
    assert corrected < rmse(model.transform(X[250:]), Q[250:]) < 0.06


def test_a_projection_reaches_the_maximum_of_every_row() -> None:
    """Given the frequencies a row's problem is concave. Newton's step from equal memberships is too long for one of these rows."""
    X = planted(8, 600, 150, missing=0.1)[2]
    model = Admixture(3, ploidy=4, dtype="float64").fit(X)
    found, fitted = (log_likelihoods(X, Q, model.projection_frequencies_, 4) for Q in (model.transform(X), model.memberships_))
    assert (found >= fitted - 1e-3).all()


@pytest.mark.parametrize("seed", [8, 9])
def test_no_step_of_a_projection_makes_a_row_less_likely(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X = planted(seed, 600, 150, missing=0.1)[2]
    model = Admixture(3, ploidy=4, dtype="float64").fit(X)
    monkeypatch.setattr("dfact.models.binomial.passes._EXTRA", 0)
    last = log_likelihoods(X, np.full((600, 3), 1 / 3), model.projection_frequencies_, 4)
    for steps in range(1, 9):
        monkeypatch.setattr("dfact.genetics.admixture.ProjectionPass", partial(ProjectionPass, steps=steps))
        reached = log_likelihoods(X, model.transform(X), model.projection_frequencies_, 4)
        assert (reached >= last - 1e-5 * np.abs(last)).all()
        last = reached


def test_projection_matches_snps_by_their_labels(tmp_path: Path) -> None:
    _, _, X = planted(0, 100, 60)
    names = [f"rs{j}" for j in range(60)]
    stored = dfact.import_array(np.where(np.isnan(X), 9, X).astype(np.uint8), tmp_path / "a.zarr", missing=9, column_labels=names)
    model = Admixture(2).fit(stored)
    order = np.random.default_rng(0).permutation(60)
    shuffled = np.where(np.isnan(X), 9, X).astype(np.uint8)[:, order]
    same = dfact.import_array(shuffled, tmp_path / "b.zarr", missing=9, column_labels=[names[j] for j in order])
    np.testing.assert_allclose(np.asarray(model.transform(same)), np.asarray(model.transform(stored)), atol=1e-5)
    extra = [names[j] if i < 40 else f"other{i}" for i, j in enumerate(order)]
    some = dfact.import_array(shuffled, tmp_path / "c.zarr", missing=9, column_labels=extra)
    blanked = X.copy()
    blanked[:, order[40:]] = np.nan
    with pytest.warns(UserWarning, match="40 SNPs are matched; left out are 20 of the model that X lacks; 20 of X that the model lacks$"):
        found = np.asarray(model.transform(some))
    np.testing.assert_allclose(found, model.transform(blanked), atol=1e-5)
    none = dfact.import_array(shuffled, tmp_path / "d.zarr", missing=9, column_labels=[f"x{j}" for j in range(60)])
    with pytest.raises(DataError, match="X has none of the model's 60 SNPs"):
        model.transform(none)


@pytest.mark.parametrize("seed", range(2))
def test_labelled_people_keep_their_population(seed: int) -> None:
    Q, _, X = planted(seed, 200, 400)
    labels = np.array(["", "-", None], dtype=object)[np.arange(200) % 3]
    labels[:30] = np.array(["c", "a", "b"], dtype=object)[Q[:30].argmax(axis=1)]
    model = Admixture(3, supervised=True).fit(X, populations=labels)
    assert model.populations_ == ["a", "b", "c"]
    assert list(model.get_feature_names_out()) == ["a", "b", "c"]
    np.testing.assert_allclose(model.memberships_[:30], np.eye(3)[[model.populations_.index(name) for name in labels[:30]]], atol=3e-5)
    np.testing.assert_allclose(model.memberships_, Q[:, [1, 2, 0]], atol=0.35)
    assert rmse(model.memberships_[30:], Q[30:]) < 0.06
    with pytest.warns(UserWarning, match="1 of 4 components have no labelled individuals"):
        four = Admixture(4, supervised=True, random_state=0).fit(X, populations=labels)
    assert list(four.get_feature_names_out()) == ["a", "b", "c", "population4"]


def test_invalid_labels_are_refused() -> None:
    _, _, X = planted(0, 60, 40)
    labels = ["a", "b", "c"] * 20
    with pytest.raises(ParameterError, match="n_components is 2, expected at least 3, the number of labelled populations"):
        Admixture(2, supervised=True).fit(X, populations=labels)
    with pytest.raises(ParameterError, match="supervised is True, expected populations"):
        Admixture(3, supervised=True).fit(X)
    with pytest.raises(ParameterError, match="populations are given for a fit that is not supervised"):
        Admixture(3).fit(X, populations=labels)
    with pytest.raises(DataError, match="populations has 59 names, expected one for each of 60"):
        Admixture(3, supervised=True).fit(X, populations=labels[1:])
    with pytest.raises(DataError, match="no known population"):
        Admixture(3, supervised=True).fit(X, populations=["-"] * 60)


@pytest.mark.parametrize("seed", range(2))
def test_below_a_memory_limit_the_frequencies_take_the_steps_of_the_em(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, X = planted(seed)
    newton = Admixture(3, memory_limit="8GiB").fit(X)
    assert "note" not in str(dfact.plan(newton, X))
    monkeypatch.setattr(footprint, "_LIMIT_SHARE", 1 << 20)
    model = Admixture(3, memory_limit="8GiB", max_iter=200)
    plan = dfact.plan(Admixture(3), X, memory_limit="8GiB")
    assert re.search(r"note +the sums of Newton's steps .* raise memory_limit to 28\.12 GiB", str(plan))
    with pytest.warns(UserWarning, match="the frequencies take the EM algorithm's steps"):
        model.fit(X)
    assert model.log_likelihood_ == pytest.approx(newton.log_likelihood_, rel=1e-5)
    assert model.n_iter_ > newton.n_iter_
    assert all(after >= before - 1e-9 * abs(before) for before, after in pairwise(model.log_likelihood_history_))
    expected = Admixture(3).fit(X)  # without a limit
    np.testing.assert_array_equal(newton.allele_frequencies_, expected.allele_frequencies_)


def test_extrapolation_solves_a_linear_iteration() -> None:
    rng = np.random.default_rng(0)
    A, target = 0.9 * np.linalg.qr(rng.standard_normal((3, 3)))[0], np.full((3, 1), 0.5)
    state = {"P": np.full((3, 1), 0.4)}
    for number in range(5):
        P = state["P"]
        step, window = target + A @ (P - target), min(number, 3)
        # Sums of which the EM makes this step: p·A / (p·A + (1 − p)·B).
        sums = {"up": step / P, "down": (1 - step) / (1 - P), "curvature": np.empty((0, 1))}
        state, products = ColumnStep(window)(Tile(0, slice(0, 1), sums, state, {}))
        assert isinstance(products, Products)
        if window:
            coefficients = np.linalg.lstsq(products.gram, products.right, rcond=1e-10)[0]
            state, _ = Extrapolate(coefficients)(Tile(0, slice(0, 1), {}, state, {}))
    np.testing.assert_allclose(state["P"], target, atol=1e-6)


class TestEstimator(EstimatorSuite):
    model = Admixture
    parameters: ClassVar = {"n_components": 3, "max_iter": 40}
    rows = "memberships_"
    tolerance = 0.5
    shift = 0.02  # individuals of the fit are projected as new ones

    @pytest.fixture(scope="class", params=[{}, {"ploidy": 4}], ids=["genotypes", "answers"])
    @classmethod
    def variant(cls, request: pytest.FixtureRequest) -> dict[str, Any]:
        found: dict[str, Any] = request.param
        return found

    def data(self) -> Array:
        return planted(8, 600, 150, missing=0.1)[2]


def test_a_maximum_does_not_depend_on_the_blocks(cut_rows: CutRows) -> None:

    _, _, X = planted(3, 600, 100)
    expected = Admixture(3).fit(X)
    cut_rows(block_entries=1 << 10)
    np.testing.assert_allclose(Admixture(3).fit(X).memberships_, expected.memberships_, atol=1e-3)


def test_a_silent_person_warns() -> None:
    _, _, X = planted(1, 60, 40)
    X[5] = np.nan
    with pytest.warns(UserWarning, match="1 of 60 individuals have no genotype; their ancestry proportions are NaN"):
        model = Admixture(2).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.transform(X[:5])


def stored_genotypes(folder: Path, X: Array, names: list[str], alleles: list[str], kind: str) -> dfact.Dataset:
    bed = write_bed(folder / f"{kind}.bed", np.where(np.isnan(X), 9, X).astype(np.uint8), names)
    write_bim(bed.with_suffix(".bim"), names, alleles)
    return dfact.import_genotypes(bed, folder / f"{kind}.zarr")


@pytest.mark.further
@pytest.mark.parametrize("seed", range(2))
def test_projection_matches_snps_by_their_alleles(seed: int, tmp_path: Path) -> None:
    _, _, X = planted(seed, 100, 60)
    rng, names, alleles = np.random.default_rng(seed), [f"rs{j}" for j in range(60)], ["A G"] * 60
    model = Admixture(2).fit(stored_genotypes(tmp_path, X, names, alleles, "fitted"))
    dfact.save_model(model, tmp_path / "a.model")
    model = dfact.load_model(tmp_path / "a.model")
    assert model.variants_.position[3] == 1003
    expected = model.transform(X)
    order, swapped = rng.permutation(60), rng.random(60) < 0.5
    turned = np.where(swapped, 2 - X, X)[:, order]
    texts = ["G A" if swapped[j] else "A G" for j in order]
    texts[0] = "0 A" if swapped[order[0]] else "0 G"  # PLINK's text for an allele that nobody has
    same = stored_genotypes(tmp_path, turned, [names[j] for j in order], texts, "same")
    with pytest.warns(UserWarning, match=f"60 SNPs are matched, {swapped.sum()} with A1 and A2 swapped$"):
        np.testing.assert_allclose(np.asarray(model.transform(same)), expected, atol=1e-3)
    for i in (5, 6, 7, 8):
        texts[i] = "A C"
    other = stored_genotypes(tmp_path, turned, [names[j] for j in order], texts, "other")
    blanked = X.copy()
    blanked[:, order[5:9]] = np.nan
    with pytest.warns(UserWarning, match=rf"; left out are 4 with other alleles: 'rs{order[5]}' \(A, C; in the model A, G\)"):
        found = np.asarray(model.transform(other))
    np.testing.assert_allclose(found, model.transform(blanked), atol=1e-3)
    none = stored_genotypes(tmp_path, turned, [names[j] for j in order], ["A C"] * 60, "none")
    with pytest.raises(DataError, match=r"left out are 60 with other alleles: .*: expected SNPs with the model's alleles"):
        model.transform(none)


@pytest.mark.further
@pytest.mark.parametrize("seed", range(2))
def test_projection_matches_snps_without_names_by_position(seed: int, tmp_path: Path) -> None:
    _, _, X = planted(seed, 100, 60)
    rng, pairs = np.random.default_rng(seed), np.array(["A G", "C T", "A T"], dtype=object)[np.arange(60) % 3]
    names = [f"{1 + j // 20}:{1000 + j}:{pair.replace(' ', ':')}" for j, pair in enumerate(pairs)]
    model = Admixture(2).fit(stored_genotypes(tmp_path, X, names, list(pairs), "fitted"))
    expected, swapped = model.transform(X), rng.random(60) < 0.5
    texts = [" ".join(reversed(pair.split())) if turn else pair for pair, turn in zip(pairs, swapped, strict=True)]
    turned, swapped_names = (
        np.where(swapped, 2 - X, X),
        [f"{1 + j // 20}:{1000 + j}:{pair.replace(' ', ':')}" for j, pair in enumerate(texts)],
    )
    assert swapped_names != names
    for kind, others in {
        "swapped": swapped_names,
        "dots": ["."] * 60,
        "one": [*names[:-1], "."],
        "rs": [f"rs{j}" for j in range(60)],
    }.items():
        same = stored_genotypes(tmp_path, turned, others, texts, kind)
        with pytest.warns(UserWarning, match=f"60 SNPs are matched, .*{swapped.sum()} with A1 and A2 swapped$"):
            np.testing.assert_allclose(np.asarray(model.transform(same)), expected, atol=1e-3)
    # One of another position, one of other alleles, one without a position, and two of one position, alike except for an unknown allele
    table = same.genotypes.variants.copy()
    for name, j, value in (("position", 0, 9), ("A1", 1, "G"), ("chromosome", 2, "0"), ("chromosome", 6, table.chromosome[3])):
        table.loc[j, name] = value
    table.loc[6, ["position", "A1", "A2"]] = [table.position[3], "0", table.A2[3]]
    found = match_columns(names, [f"rs{j}" for j in range(60)], model.variants_, Variants.of(table))
    assert found.text.endswith("left out are 5 of the model that X lacks; 5 of X that the model lacks")
    assert found.text.startswith("55 SNPs are matched, 55 by position")
    assert found.theirs.tolist() == found.ours.tolist() == [4, 5, *range(7, 60)]
    np.testing.assert_array_equal(found.turned, swapped[found.theirs])
    chromosomes = model.variants_.chromosome
    assert {*chromosomes} == {"1", "2", "3"}
    table = same.genotypes.variants.assign(chromosome=[{"1": "chr1", "2": "chrX", "3": "MT"}[name] for name in chromosomes])
    ours = replace(model.variants_, chromosome=np.array([{"1": "1", "2": "23", "3": "M"}[name] for name in chromosomes], dtype=object))
    assert len(match_columns(names, ["."] * 60, ours, Variants.of(table)).ours) == 60


def test_a_projection_reads_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, X = planted(0, 50, 40)
    dataset = stored_genotypes(tmp_path, X, [f"rs{j}" for j in range(40)], ["A G"] * 40, "a")
    model, reads = Admixture(2).fit(dataset), list[Any]()
    run = LocalSession.run
    monkeypatch.setattr(LocalSession, "run", lambda *arguments: reads.append(arguments[1]) or run(*arguments))
    model.transform(dataset)
    assert [type(request.pass_).__name__ for request in reads] == ["ProjectionPass"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("converged", [True, False])
def test_a_stop_after_the_maximum_loses_no_model(converged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dfact.import_array(planted(3, 40, 30, 2)[2], tmp_path / "a.zarr")
    name = "sum_rows" if converged else "maximize_likelihood"
    original = getattr(admixture, name)

    def stopped(*arguments: Any, **settings: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return (yield from original(*arguments, **settings))

    monkeypatch.setattr(admixture, name, stopped)
    code = main(["-q", "fit", "admixture", str(tmp_path / "a.zarr"), str(tmp_path / "a.model"), "-k", "2"])
    assert code == (0 if converged else 128 + signal.SIGTERM)
    assert (tmp_path / "a.model").exists() == converged
