"""Loadings of refits to shares of the rows: their correlations, the tests between models, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import false_discovery_control, wilcoxon

import dfact
from dfact.cli.main import main
from dfact.errors import ParameterError
from dfact.stability.shares import ShareCorrelations, matched_correlations, refit_shares
from tests.conftest import planted_answers


@pytest.mark.parametrize("signed", [False, True])
def test_factors_are_matched_by_pearson_correlation(signed: bool) -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((4, 30))
    order, signs = rng.permutation(4), np.array([1, -1, 1, -1]) if signed else np.ones(4)
    B = (A * signs[:, None])[order] * 3 + 5  # neither scale nor mean count
    np.testing.assert_allclose(matched_correlations(A, B, signed=signed), 1)
    B = A + rng.standard_normal(A.shape)
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(A, B, strict=True)]
    np.testing.assert_allclose(matched_correlations(A, B, signed=signed), expected)
    fewer = matched_correlations(A, A[[2, 0]], signed=signed)
    np.testing.assert_allclose(fewer, [1, np.nan, 1, np.nan])


def test_the_tests_are_wilcoxons_with_false_discovery_rates() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.uniform(0.8, 1, (3, 12, 2)), rng.uniform(0.7, 0.95, (3, 12, 2))
    first[2], second[2] = 1.0, 1.0
    second[0, 3] = np.nan
    result = ShareCorrelations((0.2, 0.5, 1.0), {"a": first, "b": second})
    table, scores = result.tests(), (first.mean(axis=2), second.mean(axis=2))
    known = ~np.isnan(scores[1][0])
    expected = [wilcoxon(scores[0][0][known], scores[1][0][known], alternative="greater").pvalue]
    expected += [wilcoxon(scores[0][1], scores[1][1], alternative="greater").pvalue, 1.0]
    np.testing.assert_allclose(table["p"], expected)
    np.testing.assert_allclose(table["adjusted"], false_discovery_control(expected))
    assert list(table["pairs"]) == [11, 12, 12]
    summary = result.summary()
    np.testing.assert_allclose(summary["b", "mean"], np.nanmean(scores[1], axis=1))
    np.testing.assert_allclose(summary["b", "sd"], np.nanstd(scores[1], axis=1, ddof=1))


def test_more_rows_give_more_similar_loadings_and_all_rows_the_same() -> None:
    M = planted_answers(300, 16, 3, seed=1, missing=0.05)
    model = dfact.ICQF(3, bounds=(0, 3)).fit(M)
    dataset = dfact.data.coerce.as_dataset(M)
    result = refit_shares({"icqf": model}, dataset, [0.1, 0.5, 1.0], 4, random_state=0)
    mean = result.summary()["icqf", "mean"].to_numpy()
    assert mean[0] < mean[1] < mean[2]
    np.testing.assert_allclose(result.correlations["icqf"][2], 1, atol=1e-6)
    again = refit_shares({"icqf": model}, dataset, [0.5], 2, random_state=0)
    np.testing.assert_array_equal(again.correlations["icqf"][0], result.correlations["icqf"][1, :2])
    with pytest.raises(ParameterError, match=r"shares are .*, expected numbers above 0 and up to 1"):
        refit_shares({"icqf": model}, dataset, [0.0])


def test_the_command_prints_tables_and_draws_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, first, second, plot = (str(tmp_path / name) for name in ("d.zarr", "a.model", "b.model", "shares.png"))
    dataset = dfact.import_array(planted_answers(200, 12, 2, seed=1), data)
    dfact.save_model(dfact.ICQF(2).fit(dataset), first)
    dfact.save_model(dfact.NMF(2).fit(dataset), second)
    command = ["stability", first, data, "--shares", "20,100", "--versus", second, "--resamples", "3", "--seed", "0"]
    assert main([*command, "--plot", plot]) == 0
    out = capsys.readouterr().out
    assert "Correlations of the loadings with those of all rows, 3 draws" in out
    assert "versus" in out
    assert Path(plot).stat().st_size > 1000
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["share"] for row in document["correlations"]] == [0.2, 1.0]
    assert document["tests"][1]["p"] == 1
    assert not hasattr(dfact.load_model(first), "stability_")
    assert main(["stability", first, data, "--versus", second]) == 2
    assert main([*command, "--halves"]) == 2
    assert "--shares takes" in capsys.readouterr().err
