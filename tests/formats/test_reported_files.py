"""Files of public reports about other tools: the right values, with the options that the messages name."""

from typing import Any

import numpy as np
import pytest

import dfact
from tests.conftest import REAL_DATA
from tests.imports.test_import_table import answers_of

REPORTED = REAL_DATA.parent / "repro" / "data"
CASES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "reverse_unused_code.sav": ({"items": "v*", "reverse": ["v4", "v5"]}, [3.033, 3.06, 3.073, 2.94, 2.993]),
    "multi_select.csv": ({"items": "tools*", "empty_cells": 0}, [0.68, 0.493, 0.507, 0.313, 0.18, 0.067]),
    "thousands.csv": ({"items": ["units"], "thousands": ","}, [1742.4]),
    "far_codes.csv": ({"items": ["slider*", "chol"], "missing": [-99, -9]}, [50.371, 45.518, 46.558, 48.268, 349.991]),
    "label_words_gss.dta": ({"items": "a*", "missing": [0, 8, 9], "empty_rows": "drop"}, [2.508, 2.55, 2.628, 2.693]),
    "parts_order.parquet": ({"items": "Q*"}, [6.5, 1.5]),
}


@pytest.mark.further
@pytest.mark.parametrize("name", CASES)
def test_means_of_reported_files(name: str, tmp_path: Any) -> None:
    if not REPORTED.is_dir():
        pytest.skip("the reported files are not next to the project")
    settings, right = CASES[name]
    answers = answers_of(dfact.import_table(REPORTED / name, tmp_path / "d.zarr", **settings))
    np.testing.assert_allclose(np.nanmean(answers, axis=0), right, atol=5e-4)
