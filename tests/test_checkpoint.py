"""Checkpoints: a fit that was interrupted goes on, and ends with the same bits."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dfact
from dfact.engine.checkpoint import resume_point
from tests.conftest import planted_answers


class InterruptionError(Exception):
    """What stands for a lost driver where a whole process would be too slow."""


def interrupted(after: int) -> Callable[[Any], None]:
    def callback(iteration: Any) -> None:
        if iteration.number == after:
            raise InterruptionError

    return callback


def tensor(seed: int, missing: float = 0.1) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    X = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 3)) for size in (60, 12, 8))) + 0.1 * rng.standard_normal((60, 12, 8))
    X[rng.random(X.shape) < missing] = np.nan
    return X


def skewed(seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    X = rng.random((150, 3)) @ rng.random((3, 60)) + 0.05 * rng.chisquare(3, (150, 60))
    X[rng.random(X.shape) < 0.5] = np.nan
    return X


def memberships(seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    Pi = np.vstack([np.eye(3)[rng.integers(0, 3, 300)], rng.dirichlet([1, 1, 1], 100)])
    return rng.binomial(4, Pi @ rng.random((3, 30))).astype(float)


@dataclass
class Case:
    make: Callable[[], Any]
    data: Callable[[int], NDArray[np.float64]]
    after: tuple[int, ...]
    """Iterations behind which the driver is lost."""


CASES = {
    "icqf": Case(lambda: dfact.ICQF(4, max_iter=12, tol=0), lambda seed: planted_answers(300, 40, 4, seed, 0.1), (1, 7, 12)),
    "icqf-admm": Case(
        lambda: dfact.ICQF(4, max_iter=12, tol=0, solver="admm", rho="adaptive"), lambda seed: planted_answers(300, 40, 4, seed, 0.1), (5,)
    ),
    "icqf-random": Case(lambda: dfact.ICQF(3, max_iter=8, tol=0, init="random"), lambda seed: planted_answers(200, 30, 3, seed), (6,)),
    "l1nmf": Case(lambda: dfact.L1NMF(4, max_iter=12, tol=0), lambda seed: planted_answers(300, 40, 4, seed, 0.1), (5,)),
    "gom": Case(lambda: dfact.GradeOfMembership(3), memberships, (1, 2, 3, 4)),
    "gom-cone": Case(lambda: dfact.GradeOfMembership(3, hunt="svm-cone"), memberships, (3,)),
    "gom-simplex": Case(lambda: dfact.GradeOfMembership(3, method="srsc"), memberships, (3,)),
    "emf-exact": Case(lambda: dfact.ExpectileMF(3, omega=0.2, ridge=0.1, max_iter=12, tol=0, solver="exact"), skewed, (1, 8)),
    "emf-surrogate": Case(lambda: dfact.ExpectileMF(3, omega=0.2, ridge=0.1, max_iter=12, tol=0, solver="surrogate"), skewed, (8,)),
    "emf-random": Case(lambda: dfact.ExpectileMF(3, omega=0.2, ridge=0.1, max_iter=9, tol=0, init="random"), skewed, (7,)),
    "cp": Case(lambda: dfact.ElasticCP(4, lam=0.5, max_iter=12, tol=0, missing="fill"), tensor, (1, 8)),
    "cp-exact": Case(lambda: dfact.ElasticCP(4, lam=0.5, max_iter=12, tol=0, missing="exact"), tensor, (1, 8)),
    "cp-stochastic": Case(lambda: dfact.ElasticCP(4, lam=0.5, max_iter=9, tol=0, solver="stochastic"), tensor, (1, 7)),
}


def fitted(model: Any) -> dict[str, Any]:
    """All a fit has found, as bytes."""
    found = {name: value for name, value in vars(model).items() if name.endswith("_") and not name.startswith("_")}
    return {name: [np.asarray(part).tobytes() for part in value] if isinstance(value, list) else value for name, value in found.items()}


def same(a: Any, b: Any) -> None:
    one, other = fitted(a), fitted(b)
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, other[name], equal_nan=value.dtype.kind == "f"), name
        elif isinstance(value, (float, int, list, str)):
            assert value == other[name] or value != value, name  # NaN


def cut_short(case: Case, X: NDArray[np.float64], after: int, **settings: Any) -> None:
    """A fit whose driver is lost behind an iteration."""
    with pytest.raises(InterruptionError):
        case.make().set_params(**settings, callbacks=[interrupted(after)]).fit(X)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_an_interrupted_fit_goes_on_and_ends_with_the_same_bits(name: str, every: int, tmp_path: Path) -> None:
    case = CASES[name]
    X, seed = case.data(every), {"random_state": every}
    undisturbed = case.make().set_params(**seed).fit(X)
    done = []
    for after in case.after:
        kept = {"checkpoint": tmp_path / f"{after}.zarr", "checkpoint_every": every} | seed
        cut_short(case, X, after, **kept)
        done.append(resume_point(kept["checkpoint"]))
        same(case.make().set_params(**kept).fit(X), undisturbed)
        assert resume_point(kept["checkpoint"]) >= done[-1]
        same(case.make().set_params(**kept).fit(X), undisturbed)  # nothing is left to be done
    assert any(done)


@pytest.mark.parametrize("name", ["icqf-random", "emf-random", "cp", "cp-exact", "cp-stochastic", "gom"])
def test_a_fit_that_goes_on_has_the_seed_it_drew_by_chance(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    X = case.data(0)
    kept = {"checkpoint": tmp_path / "checkpoint.zarr", "checkpoint_every": 2, "random_state": None}
    histories: list[list[float]] = [[], []]

    def listening(history: list[float], stop: int) -> Callable[[Any], None]:
        def callback(iteration: Any) -> None:
            history.append(iteration.objective)
            if iteration.number == stop:
                raise InterruptionError

        return callback

    with pytest.raises(InterruptionError):
        case.make().set_params(**kept, callbacks=[listening(histories[0], 4)]).fit(X)
    resumed = case.make().set_params(**kept, callbacks=[listening(histories[1], -1)]).fit(X)
    assert np.array_equal(histories[1][: len(histories[0])], histories[0], equal_nan=True)
    same(case.make().set_params(**kept).fit(X), resumed)
