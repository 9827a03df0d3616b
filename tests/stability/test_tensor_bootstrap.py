"""Bootstrap of CP decompositions: the refits, the matching of their components, the intervals, and what shows them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.data.coerce import as_dataset
from dfact.data.layout import Layout
from dfact.errors import DataError, ParameterError, StoreError
from dfact.export.files import write_stability
from dfact.models.cp.factor_match import match_components
from dfact.models.provenance import Stability, TensorStability
from dfact.selection import bootstrap
from dfact.stability.resamples import Resample
from tests.cases import exhaustive_after
from tests.models.cp.test_penalty_selection import planted

PARTS = ("similarity", "estimate", "low", "high", "selected", "weight", "weight_low", "weight_high")


def fitted(name: str, Z: NDArray[Any], rank: int = 2, **settings: Any) -> Any:
    if name == "als":
        return dfact.CPALS(rank, random_state=0, **settings).fit(Z)
    return dfact.ElasticCP(rank, init="svd", random_state=0, max_iter=1000, **({"lam": 1.0} | settings)).fit(Z)


def same(first: TensorStability, second: TensorStability) -> bool:
    return all(np.array_equal(getattr(first, part), getattr(second, part), equal_nan=True) for part in PARTS)


# Matching.
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_components_match_whatever_their_order_signs_and_scales(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first = [rng.standard_normal((3, size)) for size in (9, 7, 5)]
    order, signs = rng.permutation(3), [rng.choice([-1.0, 1.0], (3, 1)) for _ in first]
    second = [(A * sign * rng.uniform(0.1, 9, (3, 1)))[order] for A, sign in zip(first, signs, strict=True)]
    found = match_components(first, second)
    assert_allclose(found.similarity, 1)
    assert_array_equal(order[found.columns], np.arange(3))
    for of_mode, sign in zip(found.signs, signs, strict=True):
        assert_array_equal(of_mode, sign[:, 0])
    assert found.score == pytest.approx(1)


def test_score_is_the_mean_product_of_cosines_and_a_lost_component_counts_0() -> None:
    first = [np.eye(2), np.array([[1.0, 0.0], [0.0, 1.0]])]
    turned = [np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([[0.8, 0.6], [0.0, 1.0]])]
    found = match_components(first, turned)
    assert_allclose(found.similarity, [0.8, 0.8])
    lost = match_components(first, [np.vstack([A[:1], np.zeros((1, 2))]) for A in first])
    assert_allclose(lost.similarity, [1, 0])
    assert lost.score == 0.5
    fewer = match_components(first, [A[1:] for A in first])
    assert_array_equal(fewer.columns, [-1, 0])
    assert_allclose(fewer.similarity, [0, 1])


# Refits.
@pytest.mark.parametrize(("missing", "seed"), [(0.0, 0), (0.2, 1)])
@pytest.mark.parametrize("name", ["als", "elastic"])
def test_a_refit_is_the_fit_to_the_drawn_rows(name: str, missing: float, seed: int) -> None:
    """Similarities equal those of fits to datasets that hold the drawn rows."""
    Z = planted((60, 8, 6), 2, seed, missing=missing)
    model = fitted(name, Z)
    found = bootstrap(model, Z, 2, random_state=seed)
    scores = []
    for number in range(2):
        number_of_draws = Resample.draw(Layout.of(Z.shape), seed_of(seed), number, weighted=False).multiplicity(0, 0, 60)
        rows = np.repeat(np.arange(60), number_of_draws)
        start = [np.asarray(model.factors_[0])[rows], *model.factors_[1:]]
        parameters = {"lam": 0.0, "slice_variances": None} if name == "als" else {"lam": 1.0}
        again = dfact.ElasticCP(2, **parameters, init=start, missing="fill", max_iter=2000, tol=1e-9).fit(Z[rows])
        scores.append(match_components(model_vectors(model, Z), [A.T for A in again.factors_[1:]]).similarity)
    assert_allclose(found.similarity, scores, atol=1e-4)
    assert (found.similarity < 1 - 1e-6).all()
    assert_allclose(found.factor_match_scores, np.mean(scores, axis=1), atol=1e-4)


def model_vectors(model: Any, Z: NDArray[Any]) -> list[NDArray[Any]]:
    """Return the converged model's vectors of modes 2 to N (R, I_n)."""
    if isinstance(model, dfact.CPALS):
        return [A.T for A in dfact.CPALS(2, random_state=0, max_iter=3000, tol=1e-12).fit(Z).factors_[1:]]
    return [A.T for A in dfact.ElasticCP(**model.get_params() | {"max_iter": 3000, "tol": 1e-12}).fit(Z).factors_[1:]]


def seed_of(random_state: int) -> int:
    return int(np.random.RandomState(random_state).randint(2**31))


@pytest.mark.further
@pytest.mark.parametrize("name", exhaustive_after(1, ["elastic", "als"]))
def test_executors_and_stores_give_the_same_bits(name: str, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    Z = planted((90, 7, 6), 2, 0, missing=0.1)
    model = fitted(name, Z)
    expected = bootstrap(model.set_params(executor="inline"), Z, 4, random_state=0)
    stored = dfact.import_array(Z, tmp_path / "z.zarr")
    for executor in ("threads", client):
        assert same(expected, bootstrap(model.set_params(executor=executor), Z, 4, random_state=0))
    assert same(expected, bootstrap(model.set_params(executor=client), stored, 4, random_state=0))
    # With shared reads, as for data that does not fit in memory.
    monkeypatch.setattr("dfact.stability.tensor_bootstrap.TensorFits.fits_in_memory", lambda *_: False)
    for executor in ("inline", "threads", client):
        assert same(expected, bootstrap(model.set_params(executor=executor), stored, 4, random_state=0))


@pytest.mark.further
def test_rows_of_several_blocks_are_drawn_alike_on_threads() -> None:
    rng = np.random.default_rng(0)
    F = [rng.standard_normal((size, 2)) for size in (5000, 4, 3)]
    Z = np.einsum("ir,jr,kr->ijk", *F) + rng.standard_normal((5000, 4, 3))
    assert Layout.of(Z.shape).block_rows < 5000
    model = fitted("elastic", Z, lam=1e-8)
    first = bootstrap(model.set_params(executor="inline"), Z, 2, random_state=0)
    assert same(first, bootstrap(model.set_params(executor="threads"), Z, 2, random_state=0))
    assert first.similarity.min() > 0.999


@pytest.mark.further
def test_cold_starts_find_the_same_components_of_a_determined_tensor() -> None:
    Z = planted((60, 8, 6), 2, 0)
    for name in ("als", "elastic"):
        model = fitted(name, Z)
        warm, cold = (bootstrap(model, Z, 3, random_state=0, warm_start=warm) for warm in (True, False))
        assert_allclose(cold.similarity, warm.similarity, atol=1e-3)
        assert_array_equal(cold.estimate, warm.estimate)


# Intervals.
@pytest.mark.further
def test_intervals_are_of_unit_vectors_in_the_models_signs_and_narrow_with_more_rows() -> None:
    widths = []
    for n in (50, 450):
        Z = planted((n, 8, 6), 2, 3, missing=0.1, noise=0.6)
        model = fitted("als", Z)
        found = bootstrap(model, Z, 39, random_state=0)
        loadings = model.loadings_.to_numpy().T
        assert_allclose(found.estimate, loadings, atol=0.02)
        for part in np.split(found.estimate, [8], axis=1):
            assert_allclose(np.linalg.norm(part, axis=1), 1)
        assert (found.low < found.estimate).mean() > 0.95
        assert (found.high > found.estimate).mean() > 0.95
        assert (found.selected == 1).all()
        assert_allclose(found.weight, model.weights_, rtol=0.01)
        assert (found.weight_low < found.weight).all()
        assert (found.weight_high > found.weight).all()
        widths.append((found.high - found.low).mean())
    assert 2 < widths[0] / widths[1] < 4.5  # √9 = 3


@pytest.mark.further
def test_a_penalty_gives_selection_frequencies_and_lost_components_nothing() -> None:
    rng = np.random.default_rng(0)
    B, C = np.kron(np.eye(2), np.ones((5, 1))), np.kron(np.eye(2), np.ones((3, 1)))
    Z = np.einsum("ir,jr,kr->ijk", rng.standard_normal((80, 2)), B, C) + rng.standard_normal((80, 10, 6))
    model = fitted("elastic", Z, 4, lam=6.0, l1_ratio=0.98)
    assert model.rank_ == 2
    found = bootstrap(model, Z, 19, random_state=0)
    for values in (found.estimate, found.low, found.weight, found.similarity.T):
        assert np.isnan(values[2:]).all()
    assert (found.low[:2] < found.high[:2]).all()
    planted_zeros = B.T == 0 if abs(found.estimate[0, :5]).sum() > 1 else B.T[::-1] == 0
    assert found.selected[:2, :10][planted_zeros].mean() < 0.7
    assert (found.selected[:2, :10][~planted_zeros] == 1).all()
    # The estimate and its intervals come from least squares with the same components, whatever the penalty.
    dense = fitted("als", Z)
    assert match_components([A.T for A in dense.factors_[1:]], np.split(found.estimate[:2], [10], axis=1)).score > 0.9999
    assert list(found.summary(model.get_feature_names_out()).index) == ["F1", "F2"]


@pytest.mark.filterwarnings("ignore:the penalty sets all")
def test_wrong_arguments_are_refused() -> None:
    Z = planted((20, 5, 4), 1, 0)
    model = fitted("elastic", Z, 1)
    with pytest.raises(ParameterError, match="takes neither"):
        bootstrap(model, Z, 3, sample_weight=np.ones(20))
    with pytest.raises(DataError, match="the data is 19×5×4"):
        bootstrap(model, Z[1:], 3)
    empty = fitted("elastic", Z, 1, lam=1e6)
    with pytest.raises(ParameterError, match="no component left"):
        bootstrap(empty, Z, 3)


# What shows them.
@pytest.mark.further
@pytest.mark.faults
def test_interrupted_bootstrap_resumes(tmp_path: Path) -> None:
    Z = planted((30, 5, 4), 2, 0)
    model, counted = fitted("elastic", Z), list[int]()

    class StopError(Exception):
        pass

    def stop(iteration: Any) -> None:
        if iteration.number == 3:
            raise StopError

    with pytest.raises(StopError):
        bootstrap(model.set_params(executor="inline"), Z, 5, random_state=0, checkpoint=tmp_path / "c", callbacks=[stop])
    found = bootstrap(
        model, Z, 5, random_state=0, checkpoint=tmp_path / "c", callbacks=[lambda iteration: counted.append(iteration.number)]
    )
    assert counted == [4, 5]
    assert same(found, bootstrap(model, Z, 5, random_state=0))


def test_commands_store_print_export_and_report_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    import pandas as pd

    Z = planted((40, 8, 6), 2, 0)
    dataset = dfact.import_array(Z, tmp_path / "z.zarr")
    path = str(tmp_path / "m")
    model = fitted("elastic", dataset)
    dfact.save_model(model, path)
    assert main(["stability", path, str(tmp_path / "z.zarr"), "--resamples", "9", "--seed", "1"]) == 0
    assert "9 refits to bootstrap samples of the slices of mode 1, intervals of 95%" in capsys.readouterr().out
    loaded = dfact.load_model(path)
    assert same(loaded.stability_, bootstrap(model, dataset, 9, random_state=1))
    assert main(["info", path]) == 0
    assert "9 refits to resampled slices of mode 1, median factor match score 0.9" in capsys.readouterr().out
    assert main(["export", path, str(tmp_path / "s.csv"), "--table", "stability"]) == 0
    assert main(["export", path, str(tmp_path / "l.csv")]) == 0
    table, loadings = (pd.read_csv(tmp_path / f"{name}.csv", index_col=0) for name in ("s", "l"))
    assert list(table) == [f"F{r}{part}" for r in (1, 2) for part in ("", "_low", "_high", "_selected")]
    for name in loadings:  # in the signs of the loadings, which the file may have flipped
        assert_allclose(table[name], loadings[name], atol=0.05)  # those of the model are shrunken
        assert (table[f"{name}_low"] <= table[f"{name}_high"]).all()
    assert main(["report", path, str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "9 refits on resampled slices of mode 1" in page
    assert "Vectors of modes 2 to N at length 1" in page


def test_the_stability_of_a_matrix_is_refused_in_a_model_of_a_tensor(tmp_path: Path) -> None:
    Z = planted((20, 5, 4), 1, 0)
    model = fitted("elastic", Z, 1)
    with pytest.raises(ParameterError, match="no stability"):
        write_stability(model, tmp_path / "s.csv")
    ones = np.ones((1, 5))
    model.stability_ = Stability(np.ones((2, 1)), ones, ones, ones, 0.95, ones)
    dfact.save_model(model, tmp_path / "m")
    with pytest.raises(StoreError, match="expected that of a tensor"):
        dfact.load_model(tmp_path / "m")
    few = np.ones((1, 8))
    model.stability_ = TensorStability(np.ones((2, 1)), few, few, few, few, np.ones(1), np.ones(1), np.ones(1), 0.95)
    dfact.save_model(model, tmp_path / "m", overwrite=True)
    with pytest.raises(StoreError, match="8 entries, expected 9"):
        dfact.load_model(tmp_path / "m")


def test_a_dataset_may_be_given() -> None:
    Z = planted((20, 5, 4), 1, 0)
    model = fitted("elastic", Z, 1)
    assert same(bootstrap(model, Z, 2, random_state=0), bootstrap(model, as_dataset(Z), 2, random_state=0))
