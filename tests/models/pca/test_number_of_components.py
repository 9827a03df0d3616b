"""Number of principal components: planted numbers, random eigenvalues, held-out errors, one result on all ways, resumption, errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dfact
from dfact.cli.main import main
from dfact.linalg.parallel_analysis import parallel_analysis, parallel_analysis_of_many
from dfact.selection import select_number_of_components
from tests.models.pca.test_pca import planted


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("criterion", ["PA", "held_out"])
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_the_planted_number_is_chosen(missing: float, criterion: str, seed: int) -> None:
    X = planted(seed, 400, 40, 4, missing=missing)  # of 20 columns, the fourth variance is on the verge of the random one
    selection = select_number_of_components(dfact.PCA(), X, range(1, 7), criterion=criterion, random_state=seed)
    assert selection.best_params == {"n_components": 4}
    assert selection.model.components_.shape == (4, 40)
    np.testing.assert_array_equal(selection.model.components_, dfact.PCA(4).fit(X).components_)
    assert selection.model.selection_.best == 3


@pytest.mark.needs("questionnaires")
@pytest.mark.filterwarnings("ignore:PA finds 0")
def test_random_variances_are_those_of_columns_with_as_many_missing_entries() -> None:
    from dfact.questionnaires.factor_analysis.number_of_factors import number_of_factors

    tables, counts = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X = np.where(rng.random((400, 16)) < np.linspace(0, 0.7, 16), np.nan, rng.normal(size=(400, 16)))
        tables.append(select_number_of_components(dfact.PCA(), X, range(1, 5), quantile=None, random_state=seed).table)
        counts.append(number_of_factors(dfact.FactorAnalysis(), X, [1], quantile=None, random_state=seed).parallel_analysis)
    np.testing.assert_allclose(*(np.mean([table[name] for table in tables], axis=0) for name in ("eigenvalue", "random")), rtol=0.05)
    values, random = (np.mean([vars(count)[name] for count in counts], axis=0) for name in ("values", "reference"))
    np.testing.assert_allclose(values[:4], random[:4], rtol=0.05)


def test_columns_of_different_variance_are_compared_with_such_columns() -> None:
    X = np.random.default_rng(0).normal(size=(500, 12)) * np.geomspace(1, 10, 12)
    with pytest.warns(UserWarning, match="PA finds 0 components"):
        assert select_number_of_components(dfact.PCA(), X, range(1, 5)).best_params == {"n_components": 1}
    table = select_number_of_components(dfact.PCA(), planted(0), range(1, 5)).table
    np.testing.assert_allclose(table["eigenvalue"], dfact.PCA(4).fit(planted(0)).explained_variance_)


@pytest.mark.further
@pytest.mark.parametrize(("n", "m"), [(300, 60), (60, 300)])
def test_random_eigenvalues_of_many_columns_are_those_of_few(n: int, m: int) -> None:
    few, many = parallel_analysis(np.eye(m), n, repeats=60), parallel_analysis_of_many(np.ones(5), n, m, float(m), repeats=60)
    assert few.reference is not None
    assert many.reference is not None
    np.testing.assert_allclose(many.reference, few.reference[:5], rtol=0.04)


def test_many_columns_need_a_scale() -> None:
    X = planted(0, 100, 600, noise=2)
    assert select_number_of_components(dfact.PCA(scale="standard"), X, range(1, 7)).best_params == {"n_components": 4}
    with pytest.raises(dfact.ParameterError, match=r"scale is None for 600 columns.*--criterion held_out"):
        select_number_of_components(dfact.PCA(), X, range(1, 4))


def test_errors_are_those_of_entries_that_the_fit_has_not_seen() -> None:
    X = planted(1, 300, 12, 3)
    table = select_number_of_components(dfact.PCA(), X, [1, 3], criterion="held_out", holdout_fraction=0.2, random_state=1).table
    # Noise of variance 0.25, and the uncertainty of the scores.
    assert 0.25 < table.loc[3, "error"] < 0.6
    assert table.loc[1, "error"] > 2 * table.loc[3, "error"]
    assert table["se"].between(0, 0.5).all()


def test_an_interrupted_selection_resumes_with_the_same_errors(tmp_path: Path) -> None:
    X, done = planted(2, 200, 10, 2), []
    settings: dict[str, Any] = {"criterion": "held_out", "n_repeats": 2, "random_state": 0}

    def interrupt(iteration: Any) -> None:
        done.append(iteration.number)
        if len(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        select_number_of_components(dfact.PCA(), X, [1, 2, 3], checkpoint=tmp_path / "c", callbacks=[interrupt], **settings)
    again = select_number_of_components(dfact.PCA(), X, [1, 2, 3], checkpoint=tmp_path / "c", **settings)
    pd.testing.assert_frame_equal(again.table, select_number_of_components(dfact.PCA(), X, [1, 2, 3], **settings).table)


def test_arguments_are_checked() -> None:
    X = planted(0)
    for settings, found in (
        ({"criterion": "BIC"}, "criterion is 'BIC', expected one of 'PA', 'held_out'"),
        ({"rule": "best"}, "rule is 'best', expected one of"),
        ({"quantile": 1.5}, "quantile is 1.5, expected"),
        ({"holdout_fraction": 0}, "holdout_fraction is 0, expected"),
        ({"n_components": [0, 1]}, "expected numbers of components of at least 1"),
    ):
        with pytest.raises(dfact.ParameterError, match=found):
            select_number_of_components(dfact.PCA(), X, **settings)
    with pytest.raises(dfact.ParameterError, match="model is a ICQF, expected a PCA"):
        select_number_of_components(dfact.ICQF(), X)


@pytest.mark.parametrize("criterion", ["PA", "held_out"])
def test_the_command_prints_plots_and_writes(criterion: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model, plot = tmp_path / "d.zarr", tmp_path / "x.model", tmp_path / "p.png"
    dfact.import_array(planted(0, 200, 10, 2), data)
    assert main(["select", "pca", str(data), str(model), "-k", "1-4", "--criterion", criterion, "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert "best" in printed
    assert "PCA, 2 components of 200 rows" in printed
    assert plot.stat().st_size > 0
    assert main(["report", str(model), str(tmp_path / "r.html")]) == 0
