"""What slices of dfact have is found by the catalogue; without them, a request names the slice and its extra."""

from pathlib import Path

import pytest

import dfact
from dfact.catalogue import MISSING
from dfact.cli.main import main
from tests.conftest import planted_answers

WITHOUT = {each.name for each in MISSING}


@pytest.mark.skipif("questionnaires" not in WITHOUT, reason="questionnaires are installed")
def test_what_questionnaires_have_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dfact.save_model(dfact.NMF(2, max_iter=3).fit(planted_answers(40, 6, 2, 0)), tmp_path / "n.model")
    for arguments in (
        ["describe", "d.zarr"],
        ["compare", "m.model", "d.zarr", "--by", "g"],
        ["fit", "fa", "d.zarr", "m.model"],
        ["select", "fa", "d.zarr"],
        *([] if "formats" in WITHOUT else [["demo", "spss"]]),  # which names the first slice that it lacks
        ["export", str(tmp_path / "n.model"), str(tmp_path / "n.html"), "--style", "apa"],
    ):
        assert main(arguments) in (1, 2)
        assert 'which is not installed: pip install "dfact[questionnaires]"' in " ".join(capsys.readouterr().err.split())
    for ask in (
        lambda: dfact.FactorAnalysis,
        lambda: dfact.describe,
        lambda: dfact.selection.compare_groups,
        lambda: dfact.selection.select_number_of_factors,
    ):
        with pytest.raises(AttributeError, match=r'pip install "dfact\[questionnaires\]"'):
            ask()
