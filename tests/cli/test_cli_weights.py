"""Weights on the command line: import, info, fits, selection, stability."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dfact
from dfact.cli.main import main
from tests.models.test_weights import survey


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """An imported questionnaire with weights."""
    M, w = survey(0, n=200)
    frame = pd.DataFrame(M, columns=[f"Q{j}" for j in range(M.shape[1])]).assign(design=w)
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert main(["import", str(tmp_path / "t.csv"), str(tmp_path / "d.zarr"), "--items", "Q*", "--weight", "design"]) == 0
    return tmp_path / "d.zarr"


def test_info_describes_the_weights(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["info", str(data)]) == 0
    out = capsys.readouterr().out
    assert "design: " in out
    assert "effective number of participants" in out


@pytest.mark.further
@pytest.mark.parametrize("model", ["icqf", "nmf", "fa"])
def test_a_fit_uses_the_weights_unless_told_otherwise(data: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = data.parent
    assert main(["fit", model, str(data), str(out / "w.model"), "-k", "2"]) == 0
    assert "Weighted by design: " in capsys.readouterr().err
    assert main(["fit", model, str(data), str(out / "p.model"), "-k", "2", "--no-weights"]) == 0
    assert "Weighted" not in capsys.readouterr().err
    assert main(["fit", model, str(data), str(out / "e.model"), "-k", "2", "--weights"]) == 0
    weighted, plain, explicit = (dfact.load_model(out / f"{name}.model") for name in "wpe")
    assert (weighted.weighted_, plain.weighted_) == (True, False)
    np.testing.assert_array_equal(explicit.components_, weighted.components_)
    assert not np.allclose(plain.components_, weighted.components_, atol=1e-3)


@pytest.mark.needs("questionnaires")
def test_weights_must_exist_to_be_demanded(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(data.parent / "t.csv"), str(data.parent / "e.zarr"), "--items", "Q*"]) == 0
    capsys.readouterr()
    assert main(["fit", "fa", str(data.parent / "e.zarr"), str(data.parent / "m.model"), "--weights"]) == 1
    assert "has no weights, expected some for --weights; import it with --weight NAME" in capsys.readouterr().err
    assert not (data.parent / "m.model").exists()


def test_a_model_without_weights_says_so(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "emf", str(data), str(data.parent / "m.model"), "-k", "2", "--max-iter", "5"]) == 0
    assert "The weights 'design' of the dataset are not used" in capsys.readouterr().err


@pytest.mark.further
def test_selection_and_stability_use_the_weights_of_the_fit(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = {"w": [], "p": ["--no-weights"]}
    for name, flags in models.items():
        path = str(data.parent / f"{name}.model")
        selection = ["select", "icqf", str(data), path, "-k", "1,2", "--blocks", "4x4", "--folds", "4", "--seed", "0", *flags]
        assert main(selection) == 0
        assert dfact.load_model(path).weighted_ is not bool(flags)
        capsys.readouterr()
        assert main(["stability", path, str(data), "--resamples", "3", "--seed", "0"]) == 0
        assert ("Weighted by design" in capsys.readouterr().err) is not bool(flags)
        assert main(["stability", path, str(data), "--resamples", "3", "--seed", "0", *flags]) == 0
        wrong = "--weights" if flags else "--no-weights"
        assert main(["stability", path, str(data), "--resamples", "3", wrong]) == 2
        assert f"{wrong} is given, and" in capsys.readouterr().err
    found = [dfact.load_model(data.parent / f"{name}.model").stability_ for name in models]
    assert not np.array_equal(found[0].mean, found[1].mean)
