"""Every estimator with odd inputs: it fits and its components are finite, or an error names what is wrong with the input."""

import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import dfact
from tests.cases import further_unless, of_installed

N, M = 60, 8
BASE = np.random.default_rng(0).integers(0, 3, (N, M)).astype(np.float64)


class Refusing:
    """An array of another library that cannot be read."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("not now")


def changed(at: Any, value: float) -> NDArray[np.float64]:
    X = BASE.copy()
    X[at] = value
    return X


def objects(value: Any) -> NDArray[Any]:
    X = BASE.astype(object)
    X[0, 0] = value
    return X


INPUTS: dict[str, Callable[[], Any]] = {
    "answers": lambda: BASE,
    "infinity": lambda: changed((3, 2), np.inf),
    "a huge number": lambda: changed((3, 2), 1e300),
    "a tiny number": lambda: changed((3, 2), 1e-320),
    "a negative number": lambda: changed((3, 2), -1),
    "no rows": lambda: np.empty((0, M)),
    "no columns": lambda: np.empty((N, 0)),
    "one row": lambda: BASE[:1],
    "two rows": lambda: BASE[:2],
    "one column": lambda: BASE[:, :1],
    "a vector": lambda: BASE[:, 0],
    "a number": lambda: 3.0,
    "None": lambda: None,
    "a path that leads nowhere": lambda: "no/such/path.zarr",
    "rows of different lengths": lambda: [[1, 2], [3]],
    "an empty list": list,
    "nothing observed": lambda: np.full((N, M), np.nan),
    "an empty row": lambda: changed(5, np.nan),
    "an empty column": lambda: changed((slice(None), 1), np.nan),
    "a constant column": lambda: changed((slice(None), 1), 1.0),
    "constants": lambda: np.ones((N, M)),
    "zeros": lambda: np.zeros((N, M)),
    "equal columns": lambda: np.hstack([BASE[:, :4]] * 2),
    "rank 1": lambda: np.outer(np.arange(N) % 3, np.ones(M)),
    "complex": lambda: BASE + 1j,
    "truth values": lambda: BASE > 0,
    "large integers": lambda: changed((3, 2), 2**53).astype(np.uint64),
    "dates": lambda: np.zeros((N, M), "M8[s]"),
    "bytes": lambda: BASE.astype("S3"),
    "texts": lambda: BASE.astype(str),
    "objects with a text": lambda: objects("three"),
    "objects with a large integer": lambda: objects(10**30),
    "a structured array": lambda: np.zeros(N, [("a", "f4"), ("b", "f4")]),
    "reversed strides": lambda: BASE[::-1, ::-1],
    "the other byte order": lambda: BASE.astype(">f8"),
    "a broadcast row": lambda: np.broadcast_to(BASE[0], (N, M)),
    "a frame with equal names": lambda: pd.DataFrame(BASE, columns=["a"] * M),
    "a frame with a text": lambda: pd.DataFrame(BASE).assign(t="x"),
    "a frame with levels of names": lambda: pd.DataFrame(BASE, columns=pd.MultiIndex.from_product([["a", "b"], range(4)])),
    "an empty frame": pd.DataFrame,
    "a dictionary": lambda: {"a": [1, 2]},
    "a generator": lambda: (row for row in BASE),
    "an array that cannot be read": Refusing,
    "five modes": lambda: np.random.default_rng(1).random((6, 2, 2, 2, 2)),
    "a folder": lambda: ".",
    "a path with a null": lambda: "a\0b",
}
ESTIMATORS: dict[str, Callable[[], Any]] = of_installed(
    {
        "NMF": lambda: dfact.NMF(2, max_iter=3),
        "PCA": lambda: dfact.PCA(2, max_iter=3),
        "ICQF": lambda: dfact.ICQF(2, max_iter=3),
        "FactorAnalysis": lambda: dfact.FactorAnalysis(2),
        "ExpectileMF": lambda: dfact.ExpectileMF(2, ridge=0.1, max_iter=3),
        "GradeOfMembership": lambda: dfact.GradeOfMembership(2, random_state=0),
        "Admixture": lambda: dfact.Admixture(2, max_iter=3, random_state=0),
        "ElasticCP": lambda: dfact.ElasticCP(2, lam=0.1, max_iter=3, n_init=1, random_state=0),
        "CPALS": lambda: dfact.CPALS(2, max_iter=3, random_state=0),
    }
)


def fault(fit: Callable[[], Any]) -> str:
    """Return what is wrong with how a fit ends; an empty text if nothing is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            components = fit().components_
    except dfact.DfactError:
        return ""
    except (TypeError, ValueError) as error:  # of scikit-learn's checks, or of the array itself
        where = traceback.extract_tb(error.__traceback__)[-1].filename
        return "" if "/sklearn/utils/" in where or where == __file__ else f"{type(error).__name__}: {error} in {where}"
    parts = components if isinstance(components, (list, tuple)) else [components]
    return "" if all(np.isfinite(np.asarray(part, np.float64)).all() for part in parts) else "components that are not finite"


@pytest.mark.parametrize("name", further_unless({"NMF", "CPALS"}.__contains__, ESTIMATORS))
def test_odd_inputs_are_fitted_or_refused_with_a_reason(name: str) -> None:
    faults = {kind: found for kind, make in INPUTS.items() if (found := fault(lambda make=make: ESTIMATORS[name]().fit(make())))}  # type: ignore[misc]
    assert not faults


def test_data_without_any_answer_are_refused_by_every_estimator() -> None:
    for make in ESTIMATORS.values():
        with pytest.raises(dfact.DataError, match="has no observed entry, expected at least one"):
            make().fit(np.full((N, M), np.nan))
