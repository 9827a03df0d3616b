"""Selection of the penalty and the rank of a CP decomposition on its path, and the core consistency."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray

import dfact
from dfact.data.coerce import as_dataset
from dfact.data.layout import Layout
from dfact.engine.partitions import partitions
from dfact.models.cp.path import PathStep
from dfact.models.cp.penalty_selection import CRITERIA, select_penalty, split_half_similarity
from dfact.report.selection import selection_text
from dfact.selection import core_consistency
from dfact.selection.cross_validation.masks import EntryMask, masked
from dfact.selection.result import Selection
from tests.cases import exhaustive_after
from tests.conftest import REAL_DATA

Array = NDArray[Any]
LAMBDAS = [1.0, 10.0, 30.0, 60.0, 100.0, 200.0, 300.0, 500.0, 800.0, 2000.0]
needs_tensors = pytest.mark.skipif(not (REAL_DATA / "tensors" / "amino.npz").exists(), reason="the real tensors are not there")


def planted(shape: tuple[int, ...], rank: int, seed: int, *, missing: float = 0.0, noise: float = 0.2) -> Array:
    """A tensor of this rank with normal noise, NaN where missing."""
    rng = np.random.default_rng(seed)
    Z = rebuilt([rng.standard_normal((size, rank)) for size in shape])
    Z = Z + noise * Z.std() * rng.standard_normal(shape)
    Z[rng.random(shape) < missing] = np.nan
    return Z


def rebuilt(factors: list[Array]) -> Array:
    letters = "ijklm"[: len(factors)]
    return np.asarray(np.einsum(",".join(f"{letter}r" for letter in letters) + "->" + letters, *map(np.asarray, factors)))


def select(Z: Any, criterion: str = "held_out", *, lambdas: Any = LAMBDAS, rank: int = 6, **settings: Any) -> Selection:
    settings = {"n_init": 1, "executor": None, "l1_ratio": 0.1} | settings
    model = dfact.ElasticCP(rank, random_state=0, **{name: settings.pop(name) for name in ("n_init", "executor", "l1_ratio")})
    return select_penalty(model, Z, criterion, lambdas, **({"random_state": 0} | settings))


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize(
    ("shape", "missing", "seed"), [((40, 15, 12), 0.0, 0), ((40, 15, 12), 0.2, 1), ((30, 10, 8, 6), 0.3, 2), ((40, 15, 12), 0.0, 3)]
)
def test_the_planted_rank_is_found(criterion: str, shape: tuple[int, ...], missing: float, seed: int) -> None:
    selection = select(planted(shape, 3, seed, missing=missing), criterion, random_state=seed)
    model: Any = selection.model
    assert model.rank_ == 3
    assert model.explained_share_ > 0.93
    assert list(selection.table) == ["rank", "zeros", "relative_error", criterion]
    assert selection.table.index.name == "lam"
    row = selection.table.loc[selection.best_params["lam"]]
    assert row["rank"] == 3
    assert row["relative_error"] == pytest.approx(np.sqrt(1 - model.explained_share_), rel=1e-6)
    assert "best" in selection_text(selection)


@pytest.mark.parametrize("seed", [0, 1])
def test_score_is_the_error_on_held_out_entries(seed: int) -> None:
    """The score is reproduced from a path of the remaining entries and its refined models on the held-out ones."""
    Z = planted((30, 12, 9), 3, seed, missing=0.1)
    selection = select(Z, holdout_fraction=0.2, random_state=seed)
    dataset = as_dataset(Z)
    number = int(np.random.default_rng(int(np.random.RandomState(seed).randint(2**31))).integers(2**31))
    training, test = (masked(dataset, EntryMask(0.2, number, 0, held_out)).source.read(0, 30) for held_out in (False, True))
    np.testing.assert_array_equal(np.where(np.isnan(training), test, training), Z)
    assert np.isnan(np.where(np.isnan(training), np.nan, test)).all()
    path = dfact.ElasticCP(6, n_init=1, random_state=0, l1_ratio=0.1).path(training, LAMBDAS)
    norm = np.linalg.norm(np.nan_to_num(test))
    for step, score in zip(path.steps, selection.table["held_out"], strict=False):
        error = np.linalg.norm(np.nan_to_num(test - rebuilt(step.refined or step.factors))) / norm
        assert score == pytest.approx(error, rel=1e-9)


def test_bic_agrees_with_its_formula() -> None:
    Z = planted((25, 12, 9), 2, 0, missing=0.1)
    selection = select(Z, "bic", rank=4)
    path = dfact.ElasticCP(4, n_init=1, random_state=0, l1_ratio=0.1).path(Z, LAMBDAS)
    n = int((~np.isnan(Z)).sum())
    for step, score in zip(path.steps, selection.table["bic"], strict=True):
        factors = step.refined or step.factors
        errors = np.nansum((Z - rebuilt(factors)) ** 2) / np.nansum(Z**2)
        freedom = sum(int((A[:, : step.rank] != 0).sum()) for A in factors) - 2 * step.rank
        assert score == pytest.approx(n * np.log(errors) + freedom * np.log(n), rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_split_half_similarity_ignores_order_and_signs(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def step(factors: list[Array]) -> PathStep:
        return PathStep(1.0, 3, 0, 0.0, np.zeros(1), True, factors)

    factors = [rng.standard_normal((size, 3)) for size in (9, 8, 7)]
    order, signs = rng.permutation(3), np.array([1, -1, 1])
    others = [rng.standard_normal((4, 3)), *(A[:, order] * signs * (n + 2) for n, A in enumerate(factors[1:]))]
    assert split_half_similarity(step(factors), step(others)) == pytest.approx(1)
    others[1][:, 0] = rng.standard_normal(8)
    A, B = (C[:, i] / np.linalg.norm(C[:, i]) for C, i in ((factors[1], order[0]), (others[1], 0)))
    assert split_half_similarity(step(factors), step(others)) == pytest.approx(abs(A @ B))
    others[2][:, 2] = 0
    assert split_half_similarity(step(factors), step(others)) == 0


@pytest.mark.further
@pytest.mark.parametrize("criterion", exhaustive_after(1, CRITERIA))
def test_stores_and_executors_choose_the_same(criterion: str, tmp_path: Path, client: Client) -> None:
    Z = planted((300, 12, 9), 2, 0, missing=0.1)
    dataset = dfact.import_array(Z, tmp_path / "z.zarr")
    lambdas = [100.0, 300.0, 1000.0]
    expected = select(Z, criterion, rank=3, lambdas=lambdas)
    for executor in ("threads", client):
        found = select(dataset, criterion, rank=3, lambdas=lambdas, executor=executor)
        assert found.best_params == expected.best_params
        np.testing.assert_array_equal(found.table, expected.table)
        np.testing.assert_array_equal(found.model.components_, expected.model.components_)
    codes = np.where(np.isnan(Z), -9, np.rint(10 * Z)).astype(np.int16)
    integers = dfact.import_array(codes, tmp_path / "i.zarr", missing=-9)
    assert select(integers, criterion, rank=4).model.rank_ == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("n", [100, 6000])
def test_row_subsets_and_masks_read_the_same_entries(n: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    Z = rng.integers(0, 5, (n, 30, 4)).astype(np.int16)
    dataset = dfact.import_array(Z, tmp_path / "z.zarr", missing=4)
    chosen = np.flatnonzero(rng.random(n) < 0.5)
    some = dataset.take_rows(chosen)
    expected = np.where(Z == 4, np.nan, Z)
    blocks = [block.values for block in partitions(some.source, 4, None).blocks(np.dtype(np.float64))]
    np.testing.assert_array_equal(np.concatenate(blocks), expected[chosen])
    np.testing.assert_array_equal(some.statistics.observed, (~np.isnan(expected[chosen])).sum(axis=0).ravel())
    # Held-out entries do not depend on the ranges that are read.
    source = masked(dataset, EntryMask(0.3, 7, 0, held_out=False)).source
    complete = source.read(0, n)
    step = Layout.of(Z.shape).block_rows
    for start, stop in ((0, 5), (step - 1, step + 3), (17, 93)):
        np.testing.assert_array_equal(source.read(start, min(stop, n)), complete[start:stop])
    np.testing.assert_array_equal(source.slice(slice(step, n)).read(3, 9) if n > step else complete[:0], complete[step + 3 : step + 9])


def test_priors_and_starts_are_restricted_to_the_rows_of_a_half() -> None:
    Z = planted((40, 12, 9), 2, 0)
    rng = np.random.default_rng(1)
    model = dfact.ElasticCP(
        4, slice_variances=[rng.uniform(0.5, 2, size) for size in Z.shape], init=[rng.standard_normal((size, 4)) for size in Z.shape]
    )
    assert select_penalty(model, Z, "split_half", LAMBDAS, random_state=0).model.rank_ == 2


@pytest.mark.further
@pytest.mark.parametrize(("shape", "missing"), [((12, 9, 7), 0.0), ((12, 9, 7), 0.2), ((8, 7, 6, 5), 0.1), ((20, 8), 0.0)])
def test_core_consistency_is_that_of_the_pseudo_inverses(shape: tuple[int, ...], missing: float) -> None:
    Z = planted(shape, 2, 1, missing=missing)
    for rank in (1, 2, 3):
        model = dfact.ElasticCP(rank, lam=0.1, l1_ratio=0.0, random_state=0).fit(Z)
        X = np.where(np.isnan(Z), model.reconstruct(), Z)
        lengths = np.stack([np.linalg.norm(A, axis=0) for A in model.factors_])
        core = X
        for A, length in zip(model.factors_, lengths, strict=True):
            even = A / length * lengths.prod(axis=0) ** (1 / len(shape))
            core = np.tensordot(core, np.linalg.pinv(even), axes=(0, 1))
        ideal = np.zeros_like(core)
        ideal[(np.arange(rank),) * len(shape)] = 1
        assert core_consistency(model, Z) == pytest.approx(100 * (1 - ((core - ideal) ** 2).sum() / rank), abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_core_consistency_of_the_planted_rank_wherever_the_data_lies(seed: int, tmp_path: Path, client: Client) -> None:
    Z = planted((30, 15, 12), 3, seed, missing=0.1)
    model = dfact.ElasticCP(3, lam=1e-6, init="svd", random_state=seed).fit(Z)
    figure = core_consistency(model, Z)
    assert 99 < figure <= 100
    stored = dfact.import_array(Z, tmp_path / "z.zarr")
    assert core_consistency(model.set_params(executor=client), stored) == figure


@pytest.mark.parametrize("seed", range(3))
def test_core_consistency_falls_where_a_component_is_split(seed: int) -> None:
    """One component is split into two that differ by noise."""
    rng = np.random.default_rng(seed)
    Z = planted((30, 15, 12), 2, seed, noise=0.05)
    model = dfact.ElasticCP(2, lam=1e-6, init="svd", random_state=seed).fit(Z)
    split = [np.hstack([A, A[:, :1] + 0.1 * np.abs(A).mean() * rng.standard_normal((len(A), 1))]) for A in model.factors_]
    halved = [split[0] * [0.5, 1, 0.5], *split[1:]]
    start = dfact.ElasticCP(3, lam=1e-6, init=halved, max_iter=3).fit(Z)
    assert core_consistency(start, Z) < 80 < core_consistency(model, Z)


@needs_tensors
@pytest.mark.parametrize(("criterion", "start"), exhaustive_after(1, [("bic", 8), ("held_out", 6), ("split_half", 8)]))
def test_amino_acids_are_three(criterion: str, start: int) -> None:
    """The remaining structure is scatter, which also predicts held-out entries; the knee omits it."""
    X = np.load(REAL_DATA / "tensors" / "amino.npz")["X"]
    lambdas = [3e3, 1e4, 2e4, 3e4, 5e4, 1e5, 3e5, 1e6, 2e6, 3e6, 4e6, 5e6, 7e6, 1e7, 2e7]
    if criterion != "split_half":
        selection = select(X, criterion, lambdas=lambdas, rank=start, rule="knee", l1_ratio=0.0)
        assert selection.model.rank_ == 3  # type: ignore[attr-defined]
        assert core_consistency(selection.model, X) > 99
        return
    four = dfact.ElasticCP(4, lam=1e-6, init="svd", random_state=0).fit(X)
    assert core_consistency(four, X) < 80
    # Five samples are too few for halves; each half of the 201 emission wavelengths shows all components.
    emission = np.ascontiguousarray(np.moveaxis(X, 1, 0))
    model: Any = select(emission, criterion, lambdas=lambdas, rank=start, l1_ratio=0.0).model
    assert model.rank_ == 3
    assert model.explained_share_ == pytest.approx(0.9994, abs=1e-4)


@pytest.mark.further
@needs_tensors
def test_real_tensors_with_missing_entries() -> None:
    for name, limit in (("il2", 0.45), ("kinetic", 0.2)):
        X = np.load(REAL_DATA / "tensors" / f"{name}.npz")["X"]
        X = X[:, ::2, ::2, ::6] if name == "kinetic" else X
        size = float(np.sqrt(np.nanmean(X**2)))
        selection = select(X / size, lambdas=[1e-2, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0], rank=4)
        assert selection.table["held_out"].min() < limit
        assert selection.model.rank_ >= 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": dfact.ICQF()}, "model is a ICQF, expected an ElasticCP"),
        ({"criterion": "aic"}, "criterion is 'aic', expected one of 'held_out', 'bic', 'split_half'"),
        ({"rule": "1se"}, "rule is '1se', expected one of 'min', 'knee'"),
        ({"holdout_fraction": 0}, "holdout_fraction is 0, expected a number between 0 and 1"),
        ({"holdout_fraction": 1.0}, "holdout_fraction is 1.0, expected"),
        ({"holdout_fraction": 1e-9}, "no entry is held out: holdout_fraction is 1e-09 of 216 entries, expected a larger one"),
        ({"criterion": "split_half", "X": np.ones((3, 4, 5))}, "X has 3 rows, expected at least 4"),
        ({"lambdas": [2.0, 1.0]}, "lambdas are"),
        ({"criterion": "split_half", "lambdas": [1e10]}, "no component is left in either half"),
        ({"model": dfact.ElasticCP(0)}, "n_components is 0"),
    ],
)
def test_errors(settings: dict[str, Any], message: str) -> None:
    arguments = {"model": dfact.ElasticCP(2), "X": np.ones((6, 6, 6)), "lambdas": [1.0, 2.0], "random_state": 0} | settings
    with pytest.raises((dfact.ParameterError, dfact.DataError), match=message):
        select_penalty(**arguments)


@pytest.mark.filterwarnings("ignore:.* no observed entry")
@pytest.mark.parametrize("criterion", ["held_out", "bic", "split_half"])
def test_data_without_entries_is_an_error(criterion: str) -> None:
    with pytest.raises(dfact.DataError, match=r"no entry is held out|no observed entry|no component is left"):
        select_penalty(dfact.ElasticCP(2, random_state=0), np.full((6, 5, 4), np.nan), criterion, random_state=0)


@pytest.mark.filterwarnings("ignore:the penalty sets all")
def test_core_consistency_errors() -> None:
    Z = planted((10, 8, 6), 2, 0)
    with pytest.raises(dfact.ParameterError, match="model is a ICQF, expected an ElasticCP or CPALS"):
        core_consistency(dfact.ICQF(2, random_state=0).fit(np.abs(Z[:, :, 0])), np.abs(Z[:, :, 0]))
    with pytest.raises(dfact.DataError, match="infinity"):
        core_consistency(dfact.ElasticCP(2, lam=0.1, random_state=0).fit(Z), np.where(Z[0, 0, 0] == Z, np.inf, Z))
    model = dfact.ElasticCP(2, lam=1e8, random_state=0).fit(Z)
    with pytest.raises(dfact.ParameterError, match="no component left"):
        core_consistency(model, Z)
    with pytest.raises(dfact.DataError, match=r"X has shape \(9, 8, 6\), the model was fitted to \(10, 8, 6\)"):
        core_consistency(model, Z[:9])
