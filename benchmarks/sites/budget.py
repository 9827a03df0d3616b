"""Numbers about an item that leave a site in a fit of each model, as the ledger of the site counts them, against the default budget.

    python -m benchmarks.sites.budget [--rows 20000] [--columns 100] [--components 5] [--max-iter N] [--only ICQF PCA]

Three sites of one process have answers from 0 to 3, a twentieth of them missing, and the default policy, with two exceptions: lowest
and highest answers leave, and max_numbers permits all, so that each fit ends. Each run has ledgers of its own, and the default number of
iterations unless --max-iter sets it. Nothing is extrapolated.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dfact
from benchmarks.common import report
from benchmarks.sites.cases import DEPTH, MISSING, SITES, site_answers
from dfact.errors import FederationError
from dfact.sites.in_process import InProcessSites
from dfact.sites.policy import Policy
from dfact.sites.site_log import read_log


def runs(k: int, settings: dict[str, Any]) -> dict[str, Callable[[InProcessSites], Any]]:
    """Return what is computed across the sites, by its name."""
    iterating: dict[str, Any] = {
        "ICQF": dfact.ICQF(k, **settings),
        "ICQF, admm": dfact.ICQF(k, solver="admm", **settings),
        "NMF": dfact.NMF(k, **settings),
        "NMF, kullback-leibler": dfact.NMF(k, loss="kullback-leibler", **settings),
        "FactorAnalysis": dfact.FactorAnalysis(k),
        "FactorAnalysis, polychoric": dfact.FactorAnalysis(k, correlation="polychoric"),
        "PCA": dfact.PCA(k, **settings),
        "ExpectileMF": dfact.ExpectileMF(k, ridge=0.1, **settings),
        "ElasticCP": dfact.ElasticCP(k, lam=0.5, random_state=0, **settings),
        "Admixture": dfact.Admixture(k, ploidy=3, init="random", random_state=0, **settings),
    }
    found: dict[str, Callable[[InProcessSites], Any]] = {
        name: lambda sites, model=model: sites.fit(model) for name, model in iterating.items()
    }
    grid = {"n_components": [k - 1, k]}
    found["select ICQF, 10 folds"] = lambda sites: sites.select(dfact.ICQF(**settings), grid, random_state=0)
    found["describe"] = lambda sites: sites.describe()
    return found


def measured(name: str, run: Callable[[InProcessSites], Any], parts: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a fit: what the ledger of the first site has counted."""
    began, ended = time.perf_counter(), "yes"
    with tempfile.TemporaryDirectory() as folder:
        logs: Any = {site: Path(folder) / f"{site}.jsonl" for site in SITES}
        data = {site: M.reshape(len(M), -1, DEPTH) for site, M in parts.items()} if name == "ElasticCP" else parts
        with InProcessSites(data, policy=Policy(extremes=True, max_numbers=1e9), logs=logs) as sites:
            try:
                run(sites)
            except FederationError as error:
                ended = f"refused: {error}"
        entries = [entry for entry in read_log(logs[SITES[0]]) if "share_of_answers" in entry]
    share = max((entry["share_of_answers"] for entry in entries), default=0.0)
    return {
        "run": name,
        "passes": len(entries),
        "numbers about an item": max((entry["numbers_about_an_item"] for entry in entries), default=0.0),
        "% of its answers": round(100 * share, 2),
        f"within {Policy().max_numbers:.0%}": "yes" if share <= Policy().max_numbers else "no",
        "has ended": ended,
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="rows of each site")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--components", type=int, default=5)
    parser.add_argument("--max-iter", type=int, help="number of iterations; by default that of each model")
    parser.add_argument("--only", nargs="+", help="names of runs")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    parts = {}
    for number, site in enumerate(SITES):
        values = site_answers(options.rows, options.columns, 1 + number).astype(np.float32)
        values[values == MISSING] = np.nan
        parts[site] = values
    settings = {} if options.max_iter is None else {"max_iter": options.max_iter}
    table = []
    for name, run in runs(options.components, settings).items():
        if options.only is None or name in options.only:
            table.append(measured(name, run, parts))
            print(table[-1], flush=True)
    report("federation budget", table)


if __name__ == "__main__":
    main()
