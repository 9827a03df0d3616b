"""Small fits end where they ended when ``figures.json`` was recorded.

On the machine and with the versions of the record the bits are equal; elsewhere the figures agree to rounding errors.
Record anew with ``python -m tests.golden.test_golden``, in the commit that means to change results.
"""

import hashlib
import json
import platform
import warnings
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest
import scipy
from threadpoolctl import threadpool_info

from tests.cases import needing
from tests.golden.recipes import ATTRIBUTES, RECIPES

FIGURES = Path(__file__).parent / "figures.json"


def machine() -> dict[str, Any]:
    """Everything that the last digits depend on, except the code."""
    return {
        "cpu": llvm.get_host_cpu_name(),
        "features": hashlib.sha256(llvm.get_host_cpu_features().flatten().encode()).hexdigest()[:16],
        "blas": sorted({f"{pool['internal_api']} {pool.get('version')} {pool.get('architecture')}" for pool in threadpool_info()}),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "numba": numba.__version__,
    }


def figures(name: str) -> dict[str, Any]:
    """The digest of each attribute of a fit, and a few numbers that other machines can be compared by."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RECIPES[name]()
    found: dict[str, Any] = {}
    for attribute in ATTRIBUTES:
        value = getattr(model, attribute, None)
        if value is None:
            continue
        for i, array in enumerate(value if isinstance(value, list) and np.ndim(value[0]) else [value]):
            values = np.ascontiguousarray(array, dtype=None)
            numbers = values.astype(np.float64)
            found[f"{attribute}{i or ''}"] = {
                "digest": hashlib.sha256(f"{values.dtype.str} {values.shape}".encode() + values.tobytes()).hexdigest()[:32],
                "norm": float(np.sqrt(np.nansum(numbers**2))),
            }
    return found


@pytest.mark.parametrize("name", needing("questionnaires", "factor_analysis".__eq__, RECIPES))
def test_a_small_fit_ends_where_it_did(name: str) -> None:
    recorded = json.loads(FIGURES.read_text())
    found, expected = figures(name), recorded["figures"][name]
    assert found.keys() == expected.keys()
    if recorded["machine"] == machine():
        assert {key: value["digest"] for key, value in found.items()} == {key: value["digest"] for key, value in expected.items()}
    for key in found.keys() - {"pure_subjects_"}:
        np.testing.assert_allclose(found[key]["norm"], expected[key]["norm"], rtol=1e-3, err_msg=key)


if __name__ == "__main__":
    FIGURES.write_text(json.dumps({"machine": machine(), "figures": {name: figures(name) for name in RECIPES}}, indent=1) + "\n")
