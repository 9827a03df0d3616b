"""A fit in one process imports no cluster and no reader."""

import subprocess
import sys

_FIT = """
import sys
import numpy as np
import dfact
dfact.ICQF(2, max_iter=2).fit(np.random.default_rng(0).integers(0, 5, (200, 12)).astype(float))
beyond = ("dask", "distributed", "dfact.engine.cluster", "dfact.data.readers", "dfact.data.ingest", "dfact.jobs", "dfact.report")
print([name for name in beyond if name in sys.modules])
"""


def test_a_fit_of_an_array_imports_no_cluster_and_no_reader() -> None:
    shown = subprocess.run([sys.executable, "-c", _FIT], check=True, capture_output=True, text=True).stdout
    assert shown == "[]\n"
