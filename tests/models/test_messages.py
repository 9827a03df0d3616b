"""Warnings and refusals of fits name what exists and point at the caller."""

import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dfact
from dfact.errors import ParameterError
from dfact.parameters import TooManyComponentsError
from tests.cases import of_installed, of_slice

_RNG = np.random.default_rng(0)
X = _RNG.random((60, 10))
HOLES = np.where(_RNG.random(X.shape) < 0.3, np.nan, X)
COUNTS = _RNG.integers(0, 3, (60, 40))
T = _RNG.random((12, 6, 5))

EARLY: dict[str, Callable[[], Any]] = of_installed(
    {
        "PCA": lambda: dfact.PCA(2, max_iter=2).fit(HOLES),
        "FactorAnalysis": lambda: dfact.FactorAnalysis(3, max_iter=1).fit(X),
        "Admixture": lambda: dfact.Admixture(2, max_iter=2).fit(COUNTS),
        "GradeOfMembership": lambda: dfact.GradeOfMembership(2, likelihood="binomial", max_iter=2).fit(COUNTS),
        "ICQF": lambda: dfact.ICQF(2, max_iter=2).fit(COUNTS),
        "NMF": lambda: dfact.NMF(2, max_iter=2).fit(X),
        "ExpectileMF": lambda: dfact.ExpectileMF(2, max_iter=2).fit(HOLES),
        "ElasticCP": lambda: dfact.ElasticCP(2, max_iter=2).fit(T),
    }
)


@pytest.mark.parametrize("name", EARLY)
def test_attributes_that_a_warning_names_exist(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = EARLY[name]()
    [text] = [str(one.message) for one in caught if issubclass(one.category, dfact.ConvergenceWarning)]
    named = re.findall(r"\b[a-z_]+_(?![a-z_])", text)
    assert all(hasattr(model, attribute) for attribute in named)
    assert bool(named) == (name != "FactorAnalysis"), "only a factor analysis keeps no history"


@pytest.mark.needs("questionnaires")
def test_warnings_point_at_the_caller(tmp_path: Path) -> None:
    empty = np.vstack([HOLES, np.full((1, 10), np.nan)])
    table = tmp_path / "answers.csv"
    table.write_text("a,b\n" + "1,\n,1\n" * 30)  # boxes that are ticked or empty
    calls: list[Callable[[], Any]] = [
        *EARLY.values(),
        lambda: dfact.PCA(2).fit(empty),
        lambda: dfact.ExpectileMF(2).fit(empty),
        lambda: dfact.describe(np.c_[X, 100 * X[:, :1]]),
        lambda: dfact.FactorAnalysis(2).fit(_RNG.integers(1, 6, (9, 20))),
        lambda: dfact.import_table(table, tmp_path / "answers.zarr", items="*"),
    ]
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert caught
        assert {one.filename for one in caught} == {__file__}


@pytest.mark.parametrize("model", [dfact.PCA(20), dfact.NMF(20), dfact.ICQF(20), *of_slice("FactorAnalysis", 20)])
def test_only_the_first_batch_must_have_as_many_rows_as_components(model: Any) -> None:
    rows = _RNG.integers(0, 5, (10, 50)).astype(float)
    with pytest.raises(ParameterError, match=r"the first batch has 10 rows.*begin with at least 20 of each; later batches may have any"):
        model.partial_fit(rows)
    with pytest.raises(TooManyComponentsError, match="n_components=20 is larger than the data allows: n_samples=10, n_features=50"):
        model.fit(rows)
    error = TooManyComponentsError(20, 10, 50)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_later_batches_may_have_any_number_of_rows() -> None:
    model = dfact.PCA(5).partial_fit(X).partial_fit(X[:2])
    assert len(model.factors_) == 62


def test_the_module_is_the_command() -> None:
    shown = subprocess.run([sys.executable, "-m", "dfact", "--version"], check=True, capture_output=True, text=True).stdout
    assert dfact.__version__ in shown
