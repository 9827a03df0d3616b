"""Seconds, messages and bytes of fits across sites beside the fit to the concatenated data.

``python -m benchmarks.sites.costs FOLDER RESULT REPEATS CASE…`` is the coordinator of three sites, with its files in the folder.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dfact
from benchmarks.sites.cases import ANSWERS, CASES, DEPTH, KEY, MISSING, TENSOR, Array, Case, across, same_result, site_answers
from benchmarks.sites.sites import COORDINATOR, SITES, Network
from dfact.data.coerce import as_dataset
from dfact.sites.across_sites import open_sites
from dfact.sites.in_process import InProcessSites
from dfact.sites.policy import Policy
from dfact.sites.site_log import read_log

MANY = 20


def median_seconds(action: Callable[[], object], repeats: int) -> float:
    """Return the median time after a first call, which loads compiled kernels."""
    action()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _data_of(cases: Sequence[Case]) -> list[str]:
    """Return the kinds of data that the cases have, in the order in which sites join."""
    return sorted({case.data for case in cases})


def coordinate(folder: Path, result: Path, repeats: int, names: Sequence[str]) -> None:
    """Carry out the cases of these names as the coordinator, and write the seconds of each."""
    seconds = {}
    for data in _data_of([case for case in CASES if case.name in names]):
        with open_sites(folder / f"{data}.toml") as sites:
            for case in CASES:
                if case.data == data and case.name in names:
                    seconds[case.name] = median_seconds(lambda case=case: across(case, sites), repeats)
    result.write_text(json.dumps(seconds))


def over_the_network(network: Network, cases: Sequence[Case], repeats: int) -> dict[str, float]:
    """Return the seconds of each case across three hosts, with connections that last."""
    disk = network.disk(COORDINATOR)
    for data in _data_of(cases):
        network.write_sites_file(data)
    words = [disk, disk / "costs.json", str(repeats), *(case.name for case in cases)]
    coordinator = network.start(COORDINATOR, "-m", "benchmarks.sites.costs", *words, log=disk / "costs.log")
    for data in _data_of(cases):
        for program in [network.join(site, data, network.disk(site) / f"costs-{data}") for site in SITES]:
            try:
                program.require_success()
            except RuntimeError as error:
                raise RuntimeError(f"{error}\nThe coordinator: {coordinator.said[-2000:]}") from error
    coordinator.require_success()
    found: dict[str, float] = json.loads((disk / "costs.json").read_text())
    return found


def pooled_seconds(network: Network, cases: Sequence[Case], repeats: int) -> dict[str, float]:
    """Return the seconds of each case on the concatenated data, on as many threads as a site has."""
    return {
        case.name: median_seconds(lambda case=case: case.pooled(network.whole(case.data), executor="threads"), repeats) for case in cases
    }


def many_sites(cases: Sequence[Case], rows: int, columns: int, repeats: int) -> list[dict[str, Any]]:
    """Return the costs of each case across 20 sites in one process, whose messages are encoded and decoded in memory."""
    values = {f"site{number:02d}": site_answers(rows, columns, 100 + number).astype(np.float32) for number in range(MANY)}
    for part in values.values():
        part[part == MISSING] = np.nan
    table = []
    for data in _data_of(cases):
        parts = {name: _in_memory(data, part, number) for number, (name, part) in enumerate(values.items())}
        whole = dfact.concatenate(list(parts.values()))
        with tempfile.TemporaryDirectory() as folder:
            logs: Any = {name: Path(folder) / name for name in parts}
            for path in logs.values():
                path.with_suffix(".key").write_text(KEY)
            with InProcessSites(
                parts, policy=Policy(extremes=True, min_cell=1, min_rows=3, max_share=1.0, max_numbers=1e9), logs=logs
            ) as sites:
                log = next(iter(logs.values()))
                table += [_costs(case, sites, whole, log, repeats) for case in cases if case.data == data]
    return table


def _in_memory(data: str, part: Array, number: int) -> Any:
    """Return the answers of a site as data of this kind."""
    if data == TENSOR:
        return part.reshape(len(part), -1, DEPTH)
    weights = np.random.default_rng([8, number]).gamma(4, 1, len(part))
    return part if data == ANSWERS else as_dataset(part).with_weights(weights)


def _costs(case: Case, sites: InProcessSites, whole: Any, log: Path, repeats: int) -> dict[str, Any]:
    """Return the row of a case across the sites of one process."""
    connections = list(sites.connections.values())
    found, expected = across(case, sites), case.pooled(whole, executor="inline")
    before = [(each.messages, each.sent + each.received) for each in connections]
    seconds = median_seconds(lambda: across(case, sites), repeats)
    entries = read_log(log)
    passes = 1 + max(int(entry["step"]) for entry in entries if entry["run"] == entries[-1]["run"])
    calls = sum(each.messages for each in connections) - sum(count for count, _ in before)
    size = sum(each.sent + each.received for each in connections) - sum(count for _, count in before)
    return {
        "same": same_result(found, expected, whole.shape[0]),
        **cost_row(case, MANY, passes, calls / (1 + repeats), size / (1 + repeats), seconds),
        **pooled_columns(seconds, median_seconds(lambda: case.pooled(whole, executor="inline"), repeats), passes),
    }


def cost_row(case: Case, sites: int, passes: int, calls: float, size: float, seconds: float) -> dict[str, Any]:
    """Return the costs of a case: a message and its answer count as two messages."""
    return {
        "fit": case.name,
        "sites": sites,
        "passes": passes,
        "messages a pass": round(2 * calls / passes, 1),
        "KiB a pass": round(size / passes / 1024, 1),
        "ms a pass": round(1000 * seconds / passes, 1),
    }


def pooled_columns(seconds: float, pooled: float, passes: int) -> dict[str, Any]:
    """Return the time of the fit to the concatenated data beside that across the sites."""
    return {"pooled ms a pass": round(1000 * pooled / passes, 1), "ratio": round(seconds / pooled, 2)}


if __name__ == "__main__":
    coordinate(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
