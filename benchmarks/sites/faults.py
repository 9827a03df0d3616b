"""Lost sites, coordinators and networks in the middle of a fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

import dfact
from benchmarks.sites.cases import ICQF, SITES, Case
from benchmarks.sites.sites import COORDINATOR, Network, Run
from dfact.sites.site_log import read_log

ITERATIONS = 150
LONG = replace(
    ICQF,
    name=f"ICQF, {ITERATIONS} iterations",
    options=("-k", "4", "--max-iter", str(ITERATIONS), "--tol", "0"),
    model=lambda **settings: dfact.ICQF(4, max_iter=ITERATIONS, tol=0, **settings),
)
TILED = replace(
    LONG,
    name=f"Admixture, {ITERATIONS} iterations",
    command=("fit", "admixture"),
    options=(*LONG.options, "--ploidy", "3", "--init", "random", "--seed", "0"),
    model=lambda **settings: dfact.Admixture(4, ploidy=3, init="random", random_state=0, max_iter=ITERATIONS, tol=0, **settings),
)
"""A fit whose sums are kept by tiles of columns."""
STRUCK = SITES[1]


@dataclass(frozen=True)
class Fault:
    """What happens to a run once a site has sent a number of sums."""

    name: str
    step: int
    strike: Callable[[Network, Run], None]


def kill_site(network: Network, run: Run) -> None:
    del network
    run.sites[STRUCK].kill()
    run.sites[STRUCK] = run.start_site(STRUCK)


def kill_coordinator(network: Network, run: Run) -> None:
    del network
    run.coordinator.kill()
    run.start_coordinator()


def cut(seconds: float) -> Callable[[Network, Run], None]:
    return lambda network, _: network.cut(STRUCK, seconds)


def faults(*cuts: float) -> list[Fault]:
    """Return all faults, with a cut of the network for each of these numbers of seconds."""
    cut_off = [Fault(f"network cut for {seconds:g} s", 45 + 10 * number, cut(seconds)) for number, seconds in enumerate(cuts)]
    return [Fault("site killed", 15, kill_site), Fault("coordinator killed", 30, kill_coordinator), *cut_off]


def suffer(network: Network, struck: Sequence[Fault], case: Case = LONG, *, via: str = COORDINATOR) -> tuple[Run, float]:
    """Fit across the sites while all of this happens; return the run, and the longest time between two sums of the site, in seconds."""
    run, reached = network.run(case, via=via, checkpoint=True), 0
    for fault in struck:
        watched = run.sites[SITES[0]]
        watched.wait_for(lambda step=fault.step: run.steps(SITES[0]) >= step, f"step {fault.step}")
        reached = run.steps(SITES[0])
        fault.strike(network, run)
    run.finish()
    if run.passes() < reached + 2:
        raise RuntimeError(f"the fit had {run.passes()} passes, and the last fault struck it after {reached}: too late")
    entries = read_log(run.folder(SITES[0]) / "log.jsonl")
    times = [datetime.fromisoformat(entry["time"]) for entry in entries if entry["what"] != "description"]
    return run, max((later - earlier).total_seconds() for earlier, later in pairwise(times))
