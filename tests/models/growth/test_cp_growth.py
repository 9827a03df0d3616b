"""Growth of CP: the surrogate of earlier slices, nearness to the fit of all, order and scales of components, equal bits, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask.distributed import Client
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.errors import DataError
from dfact.kernels.cp import slice_residuals
from dfact.models.cp import growth
from dfact.models.cp.growth import update_others
from dfact.models.cp.problem import Factors, khatri_rao, penalty_norms
from tests.conftest import CutRows
from tests.models.cp.test_elastic_cp import planted

Array = NDArray[Any]
SETTINGS: Any = {"n_components": 3, "lam": 3.0, "random_state": 0, "n_init": 2}


def modes(model: Any) -> Factors:
    return [np.ascontiguousarray(A.T, np.float64) for A in model.factors_[1:]]


def residual_squares(Z: Array, A: Array, others: Factors) -> float:
    return float(np.nansum((Z.reshape(len(Z), -1) - np.asarray(A, np.float64) @ khatri_rao(others)) ** 2))


def objective(model: Any, Z: Array) -> float:
    """The objective of all slices, each at its optimum given the other modes of the model."""
    A, others, (net, prior) = np.asarray(model.transform(Z), np.float64), modes(model), model._penalties()
    rows = Z.reshape(len(Z), -1)
    squares = np.nansum(rows**2, axis=1) * rows.shape[1] / (~np.isnan(rows)).sum(axis=1)
    variances = prior.rows.scale * squares if prior.rows.kind == "estimate" else np.ones(len(Z))
    norms = penalty_norms(A.T, variances) + sum(penalty_norms(B, v) for B, v in zip(others, prior.others, strict=True))
    return 0.5 * residual_squares(Z, A, others) + net.penalty(norms)


@pytest.mark.further
@pytest.mark.parametrize("q", [1, 4])
def test_figures_of_slices_are_means_over_their_entries(q: int) -> None:
    rng = np.random.default_rng(q)
    M, R, out = rng.normal(size=(30, 5 * q)), rng.normal(size=(30, 5 * q)), np.ones((5, 5))
    M[rng.random(M.shape) < 0.5] = np.nan
    slice_residuals(M, R, out)
    errors = (M - R).reshape(30, 5, q)
    share = (~np.isnan(errors)).mean(axis=2)
    part = np.nansum(errors, axis=2) / q
    mean = np.divide(part, share, out=np.zeros_like(part), where=share > 0)
    expected = [share.sum(0), (share**2).sum(0), *((share * mean**power).sum(0) for power in (1, 2, 3))]
    np.testing.assert_allclose(out - 1, expected, atol=1e-12)


@pytest.mark.further
@pytest.mark.parametrize("shape", [(40, 6), (40, 5, 4), (40, 3, 4, 2)])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_a_surrogate_is_the_loss_with_the_factors_of_the_slices_fixed(shape: tuple[int, ...], missing: float) -> None:
    rng = np.random.default_rng(len(shape))
    Z = planted(shape, 3, 1, missing=missing)
    first, second = (dfact.ElasticCP(**SETTINGS, max_iter=5).fit(part) for part in (Z[:25], Z[25:]))
    others = [A + 0.3 * rng.normal(size=A.shape) for A in modes(first)]
    H = khatri_rao(others)
    assert first.sums_.loss(H) == pytest.approx(0.5 * residual_squares(Z[:25], first.factors_[0], others))
    both = first.sums_.plus(second.sums_)
    assert both.loss(H) == pytest.approx(first.sums_.loss(H) + second.sums_.loss(H))
    order, scales = np.array([2, 0, 1]), np.array([2.0, -1.0, 0.5])
    moved = first.sums_.arranged(order, scales)
    assert moved.loss(H[order] / scales[:, None]) == pytest.approx(first.sums_.loss(H))
    A = np.asarray(first.factors_[0], np.float64)[:, order] * scales
    np.testing.assert_allclose(moved.gram, A.T @ A)
    np.testing.assert_allclose(moved.sizes[1], np.abs(A).sum(axis=0))


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_other_modes_are_brought_to_their_optimum(missing: float, nonnegative: bool) -> None:
    Z = planted((60, 6, 5), 3, 2, missing=missing)
    model = dfact.ElasticCP(**SETTINGS | {"lam": 20.0, "l1_ratio": 0.5}, nonnegative=nonnegative, max_iter=4).fit(Z)
    net, prior = model._penalties()
    others = [np.abs(A + 0.1) if nonnegative else A + 0.1 for A in modes(model)]

    def value(others: Factors) -> float:
        return model.sums_.loss(khatri_rao(others)) + net.penalty(
            sum(penalty_norms(A, v) for A, v in zip(others, prior.others, strict=True))  # type: ignore[arg-type]
        )

    before = value(others)
    update_others(others, model.sums_, net, prior)
    assert value(others) < before
    # The optimality conditions of the mode that was updated last.
    A, step = others[-1], 1e-4
    gradient = np.zeros_like(A)
    for at in np.ndindex(*A.shape):
        ends = []
        for sign in (1, -1):
            moved = A.copy()
            moved[at] += sign * step
            ends.append(model.sums_.loss(khatri_rao([*others[:-1], moved])))
        gradient[at] = (ends[0] - ends[1]) / (2 * step)
    gradient += net.ridge(prior.others[-1]) * A
    scale = 1e-5 * np.abs(gradient).max() + 1e-6
    np.testing.assert_allclose(gradient[A != 0], -net.l1 * np.sign(A[A != 0]), atol=scale)
    assert (gradient[A == 0] >= -net.l1 - scale).all()
    assert nonnegative or (gradient[A == 0] <= net.l1 + scale).all()


@pytest.mark.further
@pytest.mark.parametrize(("shape", "missing"), [((1500, 10, 6), 0.0), ((1500, 8, 5), 0.4), ((2000, 12), 0.1)])
def test_ten_batches_end_near_the_complete_fit(shape: tuple[int, ...], missing: float) -> None:
    Z = planted(shape, 3, 3, missing=missing, noise=0.5)
    complete, grown = dfact.ElasticCP(**SETTINGS).fit(Z), dfact.ElasticCP(**SETTINGS)
    for rows in np.array_split(np.arange(len(Z)), 10):
        grown.partial_fit(Z[rows])
    reached = objective(grown, Z)
    assert reached <= 1.002 * objective(complete, Z)
    assert reached * (1 - 1e-9) <= grown.objective_history_[-1] <= 1.01 * reached
    assert not grown.growth_.gain.worth_a_fit
    assert (grown.growth_.n_rows, grown.growth_.added_rows, grown.factors_[0].shape) == (shape[0], 0.9 * shape[0], (shape[0], 3))
    # The prior of the complete fit, and slices that are near their optimum with the other modes of today.
    found, expected = grown.slice_variances_, complete.slice_variances_
    assert found.rows.scale == pytest.approx(expected.rows.scale)
    for v, w in zip(found.others, expected.others, strict=True):
        np.testing.assert_allclose(v, w)
    np.testing.assert_allclose(grown.factors_[0], grown.transform(Z), atol=0.3 * np.abs(grown.factors_[0]).max())
    lengths = np.prod([np.linalg.norm(A, axis=0) for A in grown.factors_], axis=0)
    np.testing.assert_allclose(grown.weights_, lengths, rtol=1e-6)
    assert grown.explained_share_ == pytest.approx(complete.explained_share_, abs=0.01)


def test_an_update_descends_above_the_objective_and_solves_the_new_slices() -> None:
    Z = planted((300, 8, 5), 3, 4, missing=0.2, noise=0.5)
    model = dfact.ElasticCP(**SETTINGS).fit(Z[:200])
    known, vectors = len(model.objective_history_), model.factors_[1:]
    model.partial_fit(Z[200:])
    history = model.objective_history_[known:]
    assert (np.diff(history[:-1]) <= 0).all()
    assert objective(model, Z) <= history[-1] * (1 + 1e-9)
    np.testing.assert_allclose(model.factors_[0][200:], model.transform(Z[200:]), atol=1e-9)
    for A, B in zip(model.factors_[1:], vectors, strict=True):  # components keep their places and signs
        assert (np.einsum("ir,ir->r", A, B) > 0.9 * np.linalg.norm(A, axis=0) * np.linalg.norm(B, axis=0)).all()


@pytest.mark.further
def test_fits_by_other_solvers_grow() -> None:
    pytest.importorskip("tensorly")
    Z = planted((800, 8, 6), 2, 5, noise=0.3)
    stochastic = dfact.ElasticCP(2, solver="stochastic", random_state=0, max_iter=20)
    for model in (stochastic, dfact.CPALS(2, random_state=0)):
        complete, grown = (type(model)(**model.get_params()).fit(part) for part in (Z, Z[:400]))
        assert objective(grown.partial_fit(Z[400:]), Z) <= 1.002 * objective(complete, Z)


@pytest.mark.further
def test_executors_give_the_same_result(client: Client, tmp_path: Path, cut_rows: CutRows) -> None:
    cut_rows(block_entries=1 << 12, chunk_entries=1 << 14, partition_entries=1 << 14)
    Z = planted((1300, 8, 5), 2, 6, missing=0.2, noise=0.5).astype(np.float32)
    stored = dfact.import_array(Z[300:], tmp_path / "new.zarr")
    assert dfact.plan(dfact.ElasticCP(2), stored).n_partitions > 2
    dfact.save_model(dfact.ElasticCP(2, random_state=0, n_init=1, max_iter=15).fit(Z[:300]), tmp_path / "a.model")
    models = [
        dfact.load_model(tmp_path / "a.model").set_params(executor=kind).partial_fit(stored) for kind in ("inline", "threads", client)
    ]
    for model in models[1:]:
        np.testing.assert_array_equal(model.objective_history_, models[0].objective_history_)
        for A, B in zip(model.factors_, models[0].factors_, strict=True):
            np.testing.assert_array_equal(np.asarray(A), np.asarray(B))
        for name in ("cross", "grams", "sizes", "gram"):
            np.testing.assert_array_equal(getattr(model.sums_, name), getattr(models[0].sums_, name), err_msg=name)
    dfact.save_model(models[0], tmp_path / "b.model")
    assert dfact.load_model(tmp_path / "b.model").growth_.added_rows == 1000


def test_an_interrupted_update_leaves_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    Z = planted((200, 6, 4), 2, 7, noise=0.3)
    model = dfact.ElasticCP(2, random_state=0, n_init=1).fit(Z[:150])
    before, factors = dict(vars(model)), [A.copy() for A in model.factors_]
    steps = iter(range(2))

    def update(*arguments: Any) -> None:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        update_others(*arguments)

    monkeypatch.setattr(growth, "update_others", update)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(Z[150:])
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())
    assert all(np.array_equal(A, B) for A, B in zip(model.factors_, factors, strict=True))


def test_what_cannot_grow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Z = planted((60, 6, 4), 2, 8)
    given = dfact.ElasticCP(2, n_init=1, slice_variances=[np.ones(size) for size in Z.shape]).fit(Z)
    with pytest.raises(DataError, match="slice_variances lists the variances of the fitted slices"):
        given.partial_fit(Z)
    with pytest.raises(DataError, match="kept no sums"):
        dfact.ElasticCP(2, n_init=1).path(Z, [1.0]).at(0).partial_fit(Z)
    model = dfact.ElasticCP(2, n_init=1).fit(Z)
    with pytest.raises(DataError, match="the slices of X are 6×3"):
        model.partial_fit(Z[:, :, :3])
    monkeypatch.setattr("dfact.models.cp.base.LARGEST", 6 * 4 * 3 - 1)
    Z[0, 0, 0] = np.nan
    with pytest.raises(DataError, match="the sums hold 72 numbers, a Gram matrix for each entry of a slice, expected at most 71"):
        model.partial_fit(Z)
    assert not hasattr(dfact.ElasticCP(2, n_init=1).fit(Z), "sums_")


def test_the_command_updates_and_names_the_slices_that_drift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Z = planted((500, 8, 4), 2, 9, missing=0.1, noise=0.5)
    moved = Z[300:].copy()
    moved[:, 3] += 0.5 * np.nanstd(Z)
    for name, part in (("new", Z[300:]), ("moved", moved)):
        dfact.import_array(part, tmp_path / f"{name}.zarr", column_labels=[f"s{j}" for j in range(8)])
    model, new, other = (str(tmp_path / name) for name in ("a.model", "new.zarr", "moved.zarr"))
    dfact.save_model(dfact.ElasticCP(2, random_state=0, n_init=1).fit(Z[:300]), model)
    assert main(["update", model, other, "--check"]) == 3
    assert "3 mean residual" in capsys.readouterr().out
    assert main(["update", model, new]) == 0
    assert "200 of 500 rows were added" in capsys.readouterr().out
    assert dfact.load_model(model).factors_[0].shape == (500, 2)
