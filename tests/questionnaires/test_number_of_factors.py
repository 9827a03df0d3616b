"""Numbers of factors of ordered answers, and their selection, from Python and the command line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.linalg.parallel_analysis import parallel_analysis
from dfact.questionnaires.factor_analysis.number_of_factors import number_of_factors, select_number_of_factors
from dfact.report.selection import scree_plot
from tests.questionnaires import FOLDER, bfi, psychometrics

Array = NDArray[Any]


def answers(n: int, k: int, seed: int) -> Array:
    """Answers of 0 to 2 to 5 items of each of k factors."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, k)) @ np.kron(np.eye(k), np.ones((1, 5))) + rng.standard_normal((n, 5 * k))
    return (Z[:, :, None] > [-0.8, 1.0]).sum(axis=2).astype(np.uint8)


@pytest.mark.parametrize("correlation", ["pearson", "polychoric"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_number_of_planted_factors_is_chosen(seed: int, correlation: str) -> None:
    X = answers(800, 3, seed)
    model = dfact.FactorAnalysis(correlation=correlation, rotation="oblimin")
    for criterion in ("PA", "PA-factors", "MAP", "BIC"):
        chosen = select_number_of_factors(model, X, range(1, 7), criterion=criterion)
        assert chosen.best_params == {"n_components": 3}
        assert chosen.model.components_.shape == (3, 15)
    table = chosen.table
    assert list(table) == [*(f"{of}{name}" for of in ("", "factor_") for name in ("eigenvalue", "random", "excess")), "MAP", "BIC"]
    for of in ("", "factor_"):
        assert (table[f"{of}excess"] > 0).tolist() == [True] * 3 + [False] * 3
        np.testing.assert_array_equal(table[f"{of}excess"], table[f"{of}eigenvalue"] - table[f"{of}random"])
    assert (table.factor_eigenvalue < table.eigenvalue).all()
    assert chosen.model.selection_.rule == "min"
    assert not hasattr(model, "components_")


@pytest.mark.further
def test_random_eigenvalues_are_those_of_permuted_answers() -> None:
    """The corrected Wishart draws against polychoric correlations of permuted columns."""
    X, rng = answers(600, 3, 0), np.random.default_rng(1)
    model = dfact.FactorAnalysis(1, correlation="polychoric")
    permuted = [np.linalg.eigvalsh(model.correlate(np.column_stack([rng.permutation(x) for x in X.T])).R)[::-1] for _ in range(40)]
    found = number_of_factors(model, X, [1], quantile=None).parallel_analysis.reference
    plain = parallel_analysis(np.eye(15), 600, quantile=None).reference
    assert found is not None
    assert plain is not None
    expected = np.mean(permuted, axis=0)
    assert found[:4] == pytest.approx(expected[:4], abs=0.02)
    assert plain[0] < expected[0] - 0.04


def test_a_number_outside_the_candidates_is_reported() -> None:
    with pytest.warns(UserWarning, match="PA finds 3 factors, expected one of the candidates 1 to 2; 2 was chosen"):
        assert select_number_of_factors(dfact.FactorAnalysis(), answers(800, 3, 0), [1, 2]).best_params == {"n_components": 2}
    with pytest.raises(dfact.ParameterError, match="criterion is 'AIC', expected one of 'PA', 'PA-factors', 'MAP', 'BIC'"):
        select_number_of_factors(dfact.FactorAnalysis(), answers(100, 3, 0), criterion="AIC")
    with pytest.raises(dfact.ParameterError, match="model is a ICQF"):
        select_number_of_factors(dfact.ICQF(), answers(100, 3, 0))  # type: ignore[arg-type]  # meant
    with pytest.raises(dfact.ParameterError, match=r"n_components is \[0\]"):
        select_number_of_factors(dfact.FactorAnalysis(), answers(100, 3, 0), [0])


@pytest.mark.further
def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, fitted, plot = (str(tmp_path / name) for name in ("d.zarr", "m.model", "scree.svg"))
    dfact.import_array(answers(500, 2, 0), data)
    options = ["-k", "1-4", "--correlation", "polychoric", "--rotation", "oblimin", "--kaiser", "--criterion", "PA-factors"]
    assert main(["select", "fa", data, fitted, *options, "--plot", plot]) == 0
    out = capsys.readouterr().out
    assert "factor_excess" in out
    assert "unrelated answers" in Path(plot).read_text()
    assert "oblimin rotation" in out
    assert "polychoric, of 500 participants" in out
    assert "RMSEA" in out
    model = dfact.load_model(fitted)
    assert model.n_components == 2
    assert model.kaiser is True
    assert [len(item) for item in model.thresholds_] == [2] * 10
    assert model.fit_.df == 26


@pytest.mark.further
@psychometrics
@pytest.mark.parametrize("correlation", ["pearson", "polychoric"])
def test_factors_and_components_of_bfi_are_as_many_as_in_psych(correlation: str) -> None:
    """psych's random eigenvalues are of other draws, and for polychoric correlations of Pearson's."""
    expected = json.loads((FOLDER / "oracles" / "parallel_psych.json").read_text())["cor" if correlation == "pearson" else "poly"]
    found = number_of_factors(dfact.FactorAnalysis(1, correlation=correlation), bfi(), [1])
    factors, components = found.parallel_analysis_of_factors, found.parallel_analysis
    assert (factors.n_factors, components.n_factors) == (expected["n_factors"], expected["n_components"])
    np.testing.assert_allclose(factors.values[:8], expected["fa_values"], atol=1e-5 if correlation == "pearson" else 1e-4)
    np.testing.assert_allclose(components.values[:8], expected["pc_values"], atol=1e-5 if correlation == "pearson" else 1e-4)


def test_scree_plot_shows_eigenvalues_beside_random_ones() -> None:
    selection = select_number_of_factors(dfact.FactorAnalysis(), answers(300, 2, 0), range(1, 5))
    lines = {str(line.get_label()): np.asarray(line.get_ydata()) for line in scree_plot(selection).axes[0].lines}
    np.testing.assert_array_equal(lines["components"], selection.table["eigenvalue"])
    np.testing.assert_array_equal(lines["common factors of unrelated answers"], selection.table["factor_random"])
    assert lines["chosen"] == selection.table.loc[2, "eigenvalue"]
    with pytest.raises(dfact.ParameterError, match="expected the eigenvalues of a factor analysis"):
        scree_plot(replace(selection, table=selection.table[["MAP"]]))


@psychometrics
@pytest.mark.parametrize("data", ["bfi", "bfi_first_400_rows", "bfi_two_categories", "lsat7"])
def test_reference_eigenvalues_of_permuted_columns(data: str) -> None:
    expected = json.loads((FOLDER / "oracles" / "parallel_polychoric.json").read_text())[data]
    X: Any = bfi() if data != "lsat7" else pd.read_csv(FOLDER / "lsat7.csv")
    X = X.iloc[:400] if data == "bfi_first_400_rows" else (X > 4).where(X.notna()) * 1.0 if data == "bfi_two_categories" else X
    model = dfact.FactorAnalysis(1, correlation="polychoric")
    found = number_of_factors(model, X, [1]).parallel_analysis
    assert found.n_factors == expected["factors"]["permuted"]
    assert found.values[:5] == pytest.approx(expected["observed"][:5], abs=2e-5)
    assert found.reference is not None
    assert found.reference[:5] == pytest.approx(expected["inflated_wishart95"][:5], abs=0.035)  # of 200 other draws
