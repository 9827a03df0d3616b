"""Standard errors of memberships: weights are repeated columns, and the errors are the spread over new SNPs."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dfact
from dfact import Admixture, DataError, ParameterError
from dfact.engine.executors import InlineExecutor
from dfact.engine.memory_plan import Footprint, make_plan
from dfact.engine.requests import drive, read_tiles, run, step_tiles
from dfact.genetics.block_bootstrap import MomentPass, block_edges, draw_weights
from dfact.genetics.examples import write_bed
from dfact.genetics.matcher import chromosome_borders
from dfact.models.binomial.fit import Maximum, begin, maximize_likelihood
from dfact.models.binomial.passes import StepPass
from dfact.models.binomial.row_block import ColumnWeights
from dfact.selection import block_bootstrap
from dfact.selection.running import scheduler
from tests.conftest import CutRows
from tests.genetics.test_admixture import GENOTYPES, hapmap3

Array = NDArray[Any]


def planted(seed: int, n: int = 60, m: int = 300, k: int = 3) -> tuple[Array, Array]:
    """Genotypes, NaN where missing, and memberships."""
    rng = np.random.default_rng(seed)
    Q = rng.dirichlet(np.full(k, 0.5), n)
    Q[: n // 5] = np.eye(k)[np.arange(n // 5) % k]
    X = rng.binomial(2, Q @ rng.uniform(0.05, 0.95, (k, m))).astype(np.float32)
    X[rng.random(X.shape) < 0.05] = np.nan
    return X, Q


def maximum_of(X: Array, start: Admixture, columns: Array, weights: ColumnWeights | None) -> tuple[Maximum, Array]:
    """The maximum, and the frequencies, of the likelihood of the columns, from the memberships of a model."""
    task = Admixture(3, dtype="float64").prepare(X[:, columns])
    task = task.__class__(**{**vars(task), "covariates": np.hstack([np.full((len(X), 1), -1.0), start.memberships_])})

    def solve() -> Any:
        yield from run(MomentPass(task.dtype), "")
        yield from step_tiles(begin, {"P": start.allele_frequencies_[:, columns]})
        pass_ = StepPass(task.problem.codes, 3, task.dtype, weights=weights)
        maximum = yield from maximize_likelihood(pass_, tol=1e-13, max_iter=200, em_reads=0)
        return maximum, (yield from read_tiles(maximum.frequencies, task.dtype))

    executor = InlineExecutor()
    plan = make_plan(task.dataset.source, task.dtype, Footprint(0, 0, 0, 0), executor.workers(None))
    with executor.open(task.partitions, plan) as session:
        found: tuple[Maximum, Array] = drive(solve(), session)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_weights_are_repeated_columns(seed: int) -> None:
    X, _ = planted(seed)
    start = Admixture(3, dtype="float64").fit(X)
    weights = draw_weights(block_edges(chromosome_borders(300, None), 20), seed, 0)
    assert weights.weights.sum() == 20
    assert weights.weights.max() > 1
    assert weights.edges.tolist() == list(range(0, 301, 15))
    repeats = np.repeat(weights.weights, 15)
    columns = np.repeat(np.arange(300), repeats)
    (found, P), (expected, repeated) = maximum_of(X, start, np.arange(300), weights), maximum_of(X, start, columns, None)
    assert found.history[0] == pytest.approx(expected.history[0], rel=1e-12)
    assert found.history[-1] == pytest.approx(expected.history[-1], rel=1e-8)
    np.testing.assert_allclose(found.sizes, expected.sizes, rtol=1e-3)
    np.testing.assert_allclose(P[:, columns], repeated, atol=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_blocks_do_not_cross_chromosomes(seed: int) -> None:
    sizes = np.random.default_rng(seed).integers(1, 400, 5)
    borders = np.concatenate([[0], np.cumsum(sizes)])
    edges = block_edges(borders, 60)
    assert len(edges) == 61
    assert set(borders) <= set(edges)
    lengths = [np.diff(edges[(edges >= first) & (edges <= last)]) for first, last in pairwise(borders)]
    assert all(np.ptp(of_one) <= 1 for of_one in lengths)
    # No chromosome would have shorter blocks than another, had it a block less.
    assert max(size / len(of_one) for size, of_one in zip(sizes, lengths, strict=True)) <= min(
        size / (len(of_one) - 1) for size, of_one in zip(sizes, lengths, strict=True) if len(of_one) > 1
    )
    assert block_edges(borders, int(sizes.sum())).tolist() == list(range(sizes.sum() + 1))


def test_more_chromosomes_than_blocks_are_refused(tmp_path: Path) -> None:
    X, _ = planted(0, 30, 60)
    write_bed(tmp_path / "a.bed", np.where(np.isnan(X), 9, X).astype(np.uint8))
    dataset = dfact.import_genotypes(tmp_path / "a.bed", tmp_path / "a.zarr")
    model = Admixture(2, tol=1e-4).fit(dataset)
    assert chromosome_borders(60, model.variants_).tolist() == [0, 20, 40, 60]
    with pytest.raises(ParameterError, match="n_blocks is 2, expected at least 3, the number of runs of SNPs with one chromosome"):
        block_bootstrap(model, dataset, 2, n_blocks=2)


@pytest.mark.further
def test_errors_are_the_spread_over_new_snps() -> None:
    """People of known ancestries, with SNPs drawn anew: the standard deviation of their memberships."""
    rng, k, n, m = np.random.default_rng(5), 2, 80, 300
    Q = np.vstack([np.eye(2)[np.arange(40) % 2], rng.dirichlet([3, 3], n - 40)])
    found, errors = [], []
    for repeat in range(24):
        X = rng.binomial(2, Q @ rng.uniform(0.05, 0.95, (k, m))).astype(np.float32)
        model = Admixture(k, tol=1e-4).fit(X)
        order = [int(model.memberships_[::2][:20].mean(axis=0).argmax()), int(model.memberships_[1::2][:20].mean(axis=0).argmax())]
        found.append(model.memberships_[:, order])
        if repeat < 2:
            errors.append(block_bootstrap(model, X, 20, random_state=repeat)[:, order])
    spread, se = np.std(found, axis=0, ddof=1)[40:], np.mean(errors, axis=0)[40:]
    assert np.sqrt(np.square(se).mean() / np.square(spread).mean()) == pytest.approx(1, abs=0.2)


@pytest.mark.further
def test_number_of_shared_fits_partitions_and_executor_do_not_matter(
    tmp_path: Path, cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_rows(block_entries=1 << 11, chunk_entries=1 << 12, partition_entries=1 << 13)
    X, _ = planted(1, 100, 120)
    stored = dfact.import_array(np.where(np.isnan(X), 9, X).astype(np.uint8), tmp_path / "x.zarr", missing=9)
    model = Admixture(3, tol=1e-5).fit(stored)
    expected = np.asarray(block_bootstrap(model, stored, 5, n_blocks=12, random_state=3))
    assert expected.dtype == np.float32
    assert (expected > 0).any(axis=1).all()
    module = sys.modules["dfact.genetics.block_bootstrap"]  # the function has the same name
    largest = scheduler.largest_batch
    monkeypatch.setattr(module, "largest_batch", lambda source, dtype, fits, workers: (2, largest(source, dtype, fits[:2], workers)[1]))
    reports: list[int] = []
    threads = model.set_params(executor="threads")
    found = block_bootstrap(
        threads, stored, 5, n_blocks=12, random_state=3, checkpoint=tmp_path / "se", callbacks=[lambda it: reports.append(it.number)]
    )
    np.testing.assert_array_equal(np.asarray(found), expected)
    assert reports == [1, 2, 3, 4, 5]
    again = block_bootstrap(threads, stored, 5, n_blocks=12, random_state=3, checkpoint=tmp_path / "se")
    np.testing.assert_array_equal(np.asarray(again), expected)
    other = block_bootstrap(threads, stored, 5, n_blocks=12, random_state=4)
    assert not np.array_equal(np.asarray(other), expected)
    model.memberships_se_ = found
    dfact.save_model(model, tmp_path / "a.model")
    np.testing.assert_array_equal(np.asarray(dfact.load_model(tmp_path / "a.model").memberships_se_), expected)


@pytest.mark.filterwarnings("ignore:.*have no genotype")
def test_labelled_people_have_no_error_and_silent_ones_nan() -> None:
    X, Q = planted(2)
    X[50], Q[50] = np.nan, 1 / 3
    labels = np.where(Q.max(axis=1) > 0.9, np.array(["a", "b", "c"])[Q.argmax(axis=1)], "-")
    model = Admixture(3, supervised=True, tol=1e-5).fit(X, populations=labels)
    se = block_bootstrap(model, X, 4, n_blocks=10, populations=labels, random_state=0)
    assert (se[labels != "-"] == 0).all()
    free = np.flatnonzero((labels == "-") & (np.arange(60) != 50))
    assert (se[free].max(axis=1) > 0).all()
    assert np.isnan(se[50]).all()


def test_invalid_arguments_are_refused() -> None:
    X, _ = planted(0, 30, 20)
    model = Admixture(2).fit(X)
    with pytest.raises(ParameterError, match="n_resamples is 1, expected an integer from 2 to 8192"):
        block_bootstrap(model, X, 1)
    with pytest.raises(ParameterError, match="n_blocks is 21, expected an integer from 2 to 20"):
        block_bootstrap(model, X, n_blocks=21)
    with pytest.raises(ParameterError, match="model is a ICQF, expected an Admixture"):
        block_bootstrap(dfact.ICQF(), X)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(DataError, match="the data is"):
        block_bootstrap(model, X[:20], n_blocks=10)


@pytest.mark.exhaustive
@pytest.mark.skipif(not GENOTYPES.exists(), reason="the folder of real data is not here")
def test_errors_are_those_of_admixture() -> None:
    X, expected = hapmap3(), np.loadtxt(GENOTYPES / "hapmap3" / "admixture.3.Q_se")
    model, theirs = Admixture(3).fit(X), np.loadtxt(GENOTYPES / "hapmap3" / "admixture.3.Q")
    order = [int(np.square(model.memberships_ - q[:, None]).sum(axis=0).argmin()) for q in theirs.T]
    se = block_bootstrap(model, X, 8, n_blocks=300, random_state=0)[:, order]
    mixed = (theirs > 0.05) & (theirs < 0.95)
    assert np.median(se[mixed] / expected[mixed]) == pytest.approx(1, abs=0.2)


@pytest.mark.further
def test_a_cluster_gives_the_same_bits(client: Any, tmp_path: Path, cut_rows: CutRows) -> None:
    cut_rows(block_entries=1 << 11, chunk_entries=1 << 12, partition_entries=1 << 13)
    X, _ = planted(1, 200, 120)
    stored = dfact.import_array(np.where(np.isnan(X), 9, X).astype(np.uint8), tmp_path / "x.zarr", missing=9)
    model = Admixture(3, tol=1e-5).fit(stored)
    expected = np.asarray(block_bootstrap(model, stored, 4, n_blocks=12, random_state=3))
    found = block_bootstrap(model.set_params(executor=client), stored, 4, n_blocks=12, random_state=3)
    np.testing.assert_array_equal(np.asarray(found), expected)
