"""Fits across hosts of their own; ``python -m benchmarks.sites`` has all models, and sizes that matter."""

from dataclasses import asdict

import pytest

from benchmarks.faults.namespaces import available
from benchmarks.sites.checks import Benchmark
from benchmarks.sites.faults import faults
from benchmarks.sites.sites import Network
from dfact.data.layout import Sizes, cut_into

pytest.importorskip("grpc")
pytestmark = [pytest.mark.faults, pytest.mark.process, pytest.mark.root, pytest.mark.exhaustive]


@pytest.mark.filterwarnings("ignore:ICQF did not converge")
def test_rows_stay_at_their_host_and_a_fit_survives_all_faults() -> None:
    possible, reason = available()
    if not possible:
        pytest.skip(reason)
    with cut_into(**asdict(Sizes())), Network(rows=400, columns=30) as network:  # as the processes of the sites do
        benchmark = Benchmark(network)
        benchmark.hidden_disks()
        benchmark.leaks(faults(2))
    assert [row for row in benchmark.checks.rows if row["verdict"] == "FAIL"] == []
    assert len(benchmark.checks.rows) == 12
