"""Grade of membership: the paper's tables, exact recovery without noise, one result on all executors, errors."""

import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

import dfact
from dfact import DataError, GradeOfMembership, ParameterError
from dfact.engine.checkpoint import resume_point
from dfact.engine.executors import LocalSession
from dfact.linalg import kmeans
from tests.cases import exhaustive_unless
from tests.suites.estimator import EstimatorSuite

Array = NDArray[np.float64]
METHODS = ("crsc", "srsc", "ssc", "srm")
CASES = [*((method, "kmeans") for method in METHODS), ("crsc", "svm-cone")]
ALONE = "ignore:only the subject that defines"


def planted(seed: int, n: int = 400, m: int = 60, k: int = 3, levels: int = 4) -> tuple[Array, Array, NDArray[np.int64]]:
    """Memberships, half of them pure, item parameters, and responses."""
    rng = np.random.default_rng(seed)
    Pi = np.vstack([np.eye(k)[rng.integers(0, k, n - n // 2)], rng.dirichlet(np.ones(k), n // 2)])
    Theta = rng.random((m, k)) * levels
    return Pi, Theta, rng.binomial(levels, Pi @ Theta.T / levels)


def matched(found: Any, true: Any) -> float:
    """Largest difference under the best order of the classes."""
    found, true = np.asarray(found), np.asarray(true)
    return min(float(np.abs(found[:, list(order)] - true).max()) for order in permutations(range(true.shape[1])))


def fit(X: Any, k: int = 3, **parameters: Any) -> GradeOfMembership:
    return GradeOfMembership(k, **{"random_state": 0, **parameters}).fit(X)


@pytest.mark.parametrize(("method", "vertex_hunting"), CASES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tau", [None, 0.0])
def test_expected_responses_recover_the_parameters(method: str, vertex_hunting: str, seed: int, tau: float | None) -> None:
    Pi, Theta, _ = planted(seed)
    model = fit(Pi @ Theta.T, method=method, vertex_hunting=vertex_hunting, max_response=4, tau=tau)
    assert matched(model.memberships_, Pi) < 1e-8
    assert matched(model.item_parameters_, Theta) < 1e-8
    assert {int(Pi[row].argmax()) for row in model.pure_subjects_} == {0, 1, 2}
    assert (Pi[model.pure_subjects_].max(axis=1) == 1).all()


@pytest.mark.further
@pytest.mark.parametrize("method", METHODS)
def test_expected_responses_of_many_items_and_in_single_precision(method: str) -> None:
    Pi, Theta, _ = planted(0, m=700)
    model = fit(Pi @ Theta.T, method=method, max_response=4)
    assert matched(model.memberships_, Pi) < 1e-8
    single = fit((Pi @ Theta.T).astype(np.float32), method=method, max_response=4)
    assert single.memberships_.dtype == np.float32
    assert matched(single.memberships_, Pi) < 1e-3


@pytest.mark.parametrize(("method", "vertex_hunting"), CASES[1:3] + CASES[4:])
def test_memberships_approach_the_planted_ones_with_more_items(method: str, vertex_hunting: str) -> None:
    errors = []
    for m in (50, 2000):
        Pi, _, R = planted(1, n=500, m=m)
        errors.append(np.abs(_in_order(fit(R, method=method, vertex_hunting=vertex_hunting).memberships_, Pi) - Pi).sum(axis=1).mean())
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.2


def _in_order(found: Array, true: Array) -> Array:
    order = min(permutations(range(true.shape[1])), key=lambda order: float(np.abs(found[:, list(order)] - true).sum()))
    return found[:, list(order)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings(ALONE)
def test_memberships_and_item_parameters_follow_their_definitions(method: str) -> None:
    _, _, R = planted(2)
    model = fit(R, method=method)
    Pi, Theta = np.asarray(model.memberships_), model.components_.T
    np.testing.assert_allclose(Pi.sum(axis=1), 1, rtol=1e-12)
    assert Pi.min() >= 0
    np.testing.assert_allclose(Theta, np.clip(R.T @ Pi @ np.linalg.inv(Pi.T @ Pi), 0, 4), atol=1e-9)
    np.testing.assert_allclose(Pi[model.pure_subjects_], np.eye(3), atol=1e-9)
    assert (np.diff(Pi.sum(axis=0)) <= 0).all()
    assert model.highly_pure_share_ == np.mean(Pi.max(axis=1) >= 0.9)
    assert model.highly_mixed_share_ == np.mean(Pi.max(axis=1) <= 0.7)
    np.testing.assert_allclose(model.inverse_transform(Pi), Pi @ Theta.T)
    A = R @ R.T.astype(float)
    d = A.sum(axis=1)
    modularity = ((A - np.outer(d, d) / d.sum()) * (Pi @ Pi.T)).sum() / d.sum()
    assert model.modularity_ == pytest.approx(modularity, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings(ALONE)
def test_transform_gives_the_memberships_of_the_fit_and_of_new_subjects(method: str) -> None:
    Pi, Theta, R = planted(3)
    model = fit(R, method=method)
    np.testing.assert_array_equal(model.transform(R), model.memberships_)
    np.testing.assert_allclose(model.transform(R[:7]), model.memberships_[:7], rtol=1e-9)
    exact = fit(Pi @ Theta.T, method=method, max_response=4)
    new = np.random.default_rng(9).dirichlet([1, 1, 1], 20)
    order = [int(Pi[row].argmax()) for row in exact.pure_subjects_]
    np.testing.assert_allclose(exact.transform(new @ Theta.T), new[:, order], atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings(ALONE)
def test_nonrespondents_do_not_affect_the_fit(method: str) -> None:
    _, _, R = planted(4)
    nonrespondents = [0, 17, 399]
    full = R.astype(float)
    full[nonrespondents] = 0
    full[17] = np.nan
    with pytest.warns(UserWarning, match="3 of 400 subjects have no response"):
        model = fit(full, method=method)
    assert model.n_unobserved_ == 3
    rest = np.delete(np.arange(400), nonrespondents)
    assert np.isnan(model.memberships_[nonrespondents]).all()
    expected = fit(full[rest], method=method)
    np.testing.assert_allclose(model.memberships_[rest], expected.memberships_, atol=1e-8)
    assert model.modularity_ == pytest.approx(expected.modularity_)
    assert rest[expected.pure_subjects_].tolist() == model.pure_subjects_.tolist()
    assert model.highly_pure_share_ == pytest.approx(expected.highly_pure_share_)
    with pytest.warns(UserWarning, match="3 of 400 subjects have no response"):
        assert np.isnan(model.transform(full)[nonrespondents]).all()


@pytest.mark.filterwarnings(ALONE)
def test_missing_answers_are_no_responses() -> None:
    _, _, R = planted(5)
    missing = np.random.default_rng(0).random(R.shape) < 0.1
    zeros, nans = np.where(missing, 0, R).astype(float), np.where(missing, np.nan, R)
    np.testing.assert_array_equal(fit(zeros, max_response=4).memberships_, fit(nans, max_response=4).memberships_)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings(ALONE)
def test_sparse_responses_give_the_result_of_dense_ones(method: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    R = (rng.integers(1, 6, (300, 800)) * (rng.random((300, 800)) < 0.06)).astype(float)
    expected = fit(R, method=method, max_response=5)
    sparse = sp.csr_array(R)
    dfact.import_array(sparse, tmp_path / "sparse.zarr")
    for X in (sparse, tmp_path / "sparse.zarr"):
        found = fit(X, method=method, max_response=5, dtype="float64")
        assert found.pure_subjects_.tolist() == expected.pure_subjects_.tolist()
        np.testing.assert_allclose(found.memberships_, expected.memberships_, atol=1e-6)


def test_no_block_of_sparse_responses_becomes_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    R = sp.random_array((300, 800), density=0.06, rng=rng, data_sampler=lambda size: rng.integers(1, 6, size).astype(float)).tocsr()
    monkeypatch.setattr("dfact.engine.passes.Block.values", property(lambda _: pytest.fail("a block became dense")))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "only the subject that|.*have no response")
        for method in METHODS:
            fit(R, method=method)


@pytest.mark.filterwarnings(ALONE)
class TestEstimator(EstimatorSuite):
    model = GradeOfMembership
    parameters: ClassVar = {"n_components": 3, "random_state": 0}
    rows = "memberships_"
    derived = ("item_parameters_",)
    sizes: ClassVar = {"block_entries": 1 << 11, "chunk_entries": 1 << 13, "partition_entries": 1 << 14}

    @pytest.fixture(scope="class", params=CASES, ids="-".join)
    @classmethod
    def variant(cls, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kmeans, "_SAMPLE", 500)  # so that Lloyd's passes run
            yield dict(zip(("method", "vertex_hunting"), request.param, strict=True))

    def data(self) -> Array:
        return planted(8, n=1500, m=25)[2].astype(np.float32)


@pytest.mark.filterwarnings(ALONE)
def test_answers_of_a_shifted_import_are_in_original_units(tmp_path: Path) -> None:
    _, _, R = planted(10, n=200, m=12)
    R += 1
    R[np.random.default_rng(0).random(R.shape) < 0.05] = 0
    R[0] = np.arange(12) % 5 + 1
    table = pd.DataFrame(R, columns=[f"Q{j}" for j in range(12)])
    table.to_csv(tmp_path / "r.csv", index=False)
    dataset = dfact.import_table(tmp_path / "r.csv", tmp_path / "r.zarr", items=["Q*"], missing=[0])
    assert dataset.offset.tolist() == [1] * 12
    model, expected = fit(dataset, dtype="float64"), fit(R)
    np.testing.assert_array_equal(model.memberships_, expected.memberships_)
    assert model.max_response_ == expected.max_response_ == 5
    assert model.item_parameters_.index.tolist() == list(table)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings(ALONE)
def test_selection_equals_single_fits_with_one_decomposition(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, R = planted(11, n=600, m=80)
    single = {k: fit(R, k, method=method) for k in range(2, 6)}
    passes: Counter[str] = Counter()
    run = LocalSession.run

    def counted(self: LocalSession, request: Any) -> Any:
        passes[type(request.pass_).__name__] += 1
        return run(self, request)

    monkeypatch.setattr(LocalSession, "run", counted)
    prototype = GradeOfMembership(method=method, random_state=0)
    selection = dfact.selection.select_by_modularity(prototype, R, range(2, 6))
    assert passes["GramPass"] == (method != "srm")
    assert passes["MembershipPass"] == 2
    for k, model in single.items():
        assert selection.table.loc[k, "modularity"] == pytest.approx(model.modularity_, rel=1e-9)
    best = max(single, key=lambda k: single[k].modularity_)
    assert selection.best_params == {"n_components": best}
    assert selection.model.get_params()["n_components"] == best
    np.testing.assert_allclose(selection.model.memberships_, single[best].memberships_, atol=1e-9)
    assert not hasattr(prototype, "memberships_")


@pytest.mark.further
@pytest.mark.filterwarnings(ALONE)
@pytest.mark.parametrize("after", [2, 3, 4])
def test_an_interrupted_selection_of_classes_resumes_to_the_same_bits(after: int, tmp_path: Path) -> None:
    _, _, R = planted(after, n=300, m=40)

    def stop(iteration: Any) -> None:
        if iteration.number == after:
            raise KeyboardInterrupt

    def chosen(callbacks: Any = (), **kept: Any) -> Any:
        model = GradeOfMembership(random_state=0, checkpoint_every=1, callbacks=callbacks)
        return dfact.selection.select_by_modularity(model, R, range(2, 6), **kept)

    undisturbed = chosen()
    with pytest.raises(KeyboardInterrupt):
        chosen([stop], checkpoint=tmp_path / "kept")
    assert resume_point(tmp_path / "kept") > 0
    found = chosen(checkpoint=tmp_path / "kept")
    pd.testing.assert_frame_equal(found.table, undisturbed.table, check_exact=True)
    for name in ("memberships_", "components_", "pure_subjects_"):
        np.testing.assert_array_equal(getattr(found.model, name), getattr(undisturbed.model, name))


@pytest.mark.parametrize("seed", range(3))
def test_modularity_finds_the_planted_number_of_classes(seed: int) -> None:
    _, _, R = planted(seed, n=800, m=200)
    assert dfact.selection.select_by_modularity(GradeOfMembership(random_state=seed), R, range(2, 7)).best_params["n_components"] == 3


def responses(folder: Path, name: str) -> tuple[Array, int]:
    """Answers with 0 for no response, without the rows that have none, and M."""
    file, items, levels = {
        "ipip_ascado": ("ipip_ascado.csv", slice(0, 40), 5),
        "kims": ("kims.csv", slice(0, 39), 5),
        "npi": ("npi.csv", [f"Q{i}" for i in range(1, 41)], 2),
    }[name]
    table = pd.read_csv(folder / file)
    R = (table[items] if isinstance(items, list) else table.iloc[:, items]).to_numpy(float)
    return R[R.any(axis=1)], levels


TABLE_4: dict[str, dict[str, tuple[int, float]]] = {
    "ipip_ascado": {"srsc": (4, 0.0021), "crsc": (2, 0.0067), "ssc": (4, 0.0021), "srm": (4, 0.0019)},
    "kims": {"srsc": (3, 0.0027), "crsc": (2, 0.0081), "ssc": (3, 0.0027), "srm": (3, 0.0024)},
    "npi": {"srsc": (4, 0.0017), "crsc": (2, 0.0054), "ssc": (4, 0.0017), "srm": (14, 0.00028)},
}
TABLE_5 = {"ipip_ascado": (0.6036, 0.2112, 0.002), "kims": (0.6040, 0.1947, 0.002), "npi": (0.6249, 0.1882, 0.003)}


@pytest.mark.parametrize(
    ("method", "name", "dtype"),
    exhaustive_unless(
        lambda case: case[1] != "npi" and (case[0] == "crsc" or case[1:] == ("ipip_ascado", "float64")),
        [
            (method, *data)
            for method in METHODS
            for data in (*((name, "float64") for name in TABLE_4), ("ipip_ascado", "float32"), ("kims", "float32"))
        ],
    ),
)
@pytest.mark.filterwarnings(ALONE)
def test_the_papers_tables(name: str, method: str, dtype: str, questionnaires: Path) -> None:
    R, levels = responses(questionnaires, name)
    prototype = GradeOfMembership(method=method, max_response=levels, random_state=0, dtype=dtype)
    selection = dfact.selection.select_by_modularity(prototype, R, range(2, 16))
    k, modularity = TABLE_4[name][method]
    digits = len(str(modularity).split(".")[1]) if modularity >= 1e-3 else 5
    single = dtype == "float32"  # may choose another of several subjects at nearly equal distance from a class's centre
    assert selection.model.modularity_ == pytest.approx(modularity, abs=(1 if single else 0.5) * 10**-digits)
    assert selection.best_params["n_components"] == k
    if method == "crsc":
        pure, mixed, tolerance = TABLE_5[name]
        tolerance = 0.01 if single else tolerance
        assert selection.model.highly_pure_share_ == pytest.approx(pure, abs=tolerance)
        assert selection.model.highly_mixed_share_ == pytest.approx(mixed, abs=tolerance)


def changed(R: Any, value: float) -> Array:
    X = np.array(R, float)
    X[5, 7] = value
    return X


@pytest.mark.parametrize(
    ("X", "parameters", "message"),
    [
        (lambda R: changed(R, 2.5), {}, "row 5, column '7' holds 2.5, expected whole numbers from 0"),
        (lambda R: changed(R, -1), {}, "row 5, column '7' holds -1, expected 0 to"),
        (lambda R: changed(R, 9), {"max_response": 4}, "row 5, column '7' holds 9, expected 0 to 4"),
        (lambda R: changed(R, np.inf), {}, "infin|inf"),
        (lambda R: sp.csr_array(changed(R, 2.5)), {}, "row 5, column '7' holds 2.5"),
        (lambda R: R + 0.5, {}, "row 0, column '0' holds .*5, expected whole numbers"),
        (lambda R: np.repeat(R[:2], 50, axis=0), {}, "rank 2|span 2 dimensions"),
        (lambda R: R[:2], {}, "n_components=3 is larger than the data allows: n_samples=2"),
        (lambda R: np.where(np.arange(len(R))[:, None] < 2, R + 1, 0), {}, "2 of 400 subjects have any response, expected at least"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_invalid_responses_are_refused(X: Any, parameters: Any, message: str, method: str) -> None:
    _, _, R = planted(12)
    with pytest.raises((DataError, ParameterError, ValueError), match=message):
        fit(X(R), method=method, **parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {"n_components": 0},
        {"n_components": 2.5},
        {"method": "svd"},
        {"vertex_hunting": "deer"},
        {"tau": -1},
        {"max_response": 0},
        {"dtype": "int8"},
    ],
)
def test_invalid_parameters_are_refused(parameters: dict[str, Any]) -> None:
    _, _, R = planted(12)
    with pytest.raises(ParameterError, match=f"{next(iter(parameters))} is"):
        GradeOfMembership(**parameters).fit(R)


def test_a_selection_needs_candidates_and_a_model_of_memberships() -> None:
    _, _, R = planted(12)
    with pytest.raises(ParameterError, match="no candidates"):
        dfact.selection.select_by_modularity(GradeOfMembership(), R, [])
    with pytest.raises(ParameterError, match="expected a GradeOfMembership"):
        dfact.selection.select_by_modularity(dfact.ICQF(), R)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="n_components=500 is larger"):
        dfact.selection.select_by_modularity(GradeOfMembership(), R, [2, 500])


@pytest.mark.parametrize("method", METHODS)
def test_a_class_without_other_pure_subjects_is_reported(method: str) -> None:
    Pi, Theta, _ = planted(13)
    Pi[:, 2] *= 0.3
    Pi /= Pi.sum(axis=1, keepdims=True)
    Pi = Pi[(Pi[:, 2] < 0.2)]
    Pi[40] = [0.2, 0.2, 0.6]
    with pytest.warns(UserWarning, match=r"only the subject that defines the class has a membership of 0.9 or more in class3 \(40\)"):
        model = fit(Pi @ Theta.T, method=method, max_response=4)
    assert model.pure_subjects_[2] == 40


@pytest.mark.filterwarnings(ALONE)
def test_progress_reports_each_step() -> None:
    _, _, R = planted(14)
    seen: list[Any] = []
    fit(R, callbacks=[seen.append])
    assert [step.step for step in seen] == ["responses", "singular vectors", "pure subjects", "modularity", "memberships"]
    assert [step.number for step in seen] == [1, 2, 3, 4, 5]
