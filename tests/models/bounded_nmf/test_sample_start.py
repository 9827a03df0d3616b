"""Start of bounded factorizations on a sample of the rows, whose loadings are the start of the passes over all rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dfact
from benchmarks.faults.fits import bits, small_partitions
from dfact.data.layout import Layout
from dfact.models.bounded_nmf import solvers as bounded_nmf_solvers
from dfact.progress import Iteration
from tests.conftest import planted_answers


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_partitions():
        yield


def model(name: str, **parameters: Any) -> Any:
    return getattr(dfact, name)(**{"n_components": 4, "random_state": 0, "executor": "inline"} | parameters)


@pytest.mark.parametrize(("n", "count"), [(1, 0), (3, 0), (4, 2), (16, 2), (40, 4), (477, 48)])
@pytest.mark.parametrize("run", [1, 4])
def test_the_sample_is_a_tenth_of_the_partitions_at_equal_distances(n: int, count: int, run: int) -> None:
    found = np.array(Layout(n * 10 - 3, 10, 10 * run, 10).sample(0.1))
    assert len(found) == count
    if count:
        assert found.max() < n
        starts = found[::run] if count >= 4 * run else found
        assert np.array_equal(np.sort((starts[:, None] + np.arange(len(found) // len(starts))).ravel()), found)
        distances = np.diff([*starts, n + starts[0]])
        assert distances.max() - distances.min() <= run + 1


@pytest.mark.further
@pytest.mark.parametrize("name", ["ICQF", "NMF"])
@pytest.mark.parametrize("seed", range(2))
def test_a_sample_start_is_nearer_after_few_passes_and_reaches_the_same_objective(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    M = planted_answers(3000, 30, 4, seed, 0.1)
    assert Layout.of(M.shape).sample(0.1)
    few, end = (model(name, **p).fit(M).objective_history_[-1] for p in ({"max_iter": 5, "tol": 0}, {"tol": 1e-5, "max_iter": 300}))
    monkeypatch.setattr(Layout, "sample", lambda *_: ())
    few_of_all, end_of_all = (
        model(name, **p).fit(M).objective_history_[-1] for p in ({"max_iter": 5, "tol": 0}, {"tol": 1e-5, "max_iter": 300})
    )
    assert few - end < 0.5 * (few_of_all - end)
    assert end < 1.0005 * end_of_all


@pytest.mark.further
@pytest.mark.parametrize("name", ["ICQF", "NMF"])
def test_every_executor_gives_the_same_bits(name: str, client: Client) -> None:
    M = planted_answers(4000, 40, 4, 0, 0.1)
    expected = bits(model(name, max_iter=6).fit(M))
    for executor in ("threads", client):
        assert bits(model(name, max_iter=6, executor=executor).fit(M)) == expected


@pytest.mark.further
def test_fits_with_confounders_and_weights_start_on_the_sample() -> None:
    M, rng = planted_answers(4000, 40, 4, 1, 0.1), np.random.default_rng(0)
    known = {"confounders": {"age": rng.normal(40, 10, 4000)}, "sample_weight": rng.uniform(0.5, 2, 4000)}
    history = model("ICQF", tol=1e-6, max_iter=300).fit(M, **known).objective_history_
    assert history[0] < 1.1 * history[-1]


def test_given_loadings_replace_the_sample_start(monkeypatch: pytest.MonkeyPatch) -> None:
    M = planted_answers(4000, 40, 4, 2)
    loadings = model("ICQF", max_iter=3).fit(M).components_
    monkeypatch.setattr(bounded_nmf_solvers.MM, "with_sample_start", None)
    assert model("ICQF", init=loadings, max_iter=1).fit(M).n_iter_ == 1


@pytest.mark.parametrize("name", ["ICQF", "NMF"])
def test_callbacks_receive_the_sample_before_the_first_iteration(name: str) -> None:
    heard: list[Iteration] = []
    fitted = model(name, max_iter=3, tol=0, callbacks=[heard.append]).fit(planted_answers(4000, 40, 4, 3))
    on_sample = [iteration.step for iteration in heard if iteration.number == 0]
    assert on_sample == [f"pass {i + 1} over a sample of the rows" for i in range(len(on_sample))]
    assert len(on_sample) > 1
    assert [iteration.number for iteration in heard[len(on_sample) :]] == [1, 2, 3] == list(range(1, fitted.n_iter_ + 1))
