"""Jobs on Kubernetes: checks of their locations, and memory by the plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from dfact.batch.job_file import Problem, Step
from dfact.cli.types import FittingCommand
from dfact.errors import MemoryPlanError, StoreError
from dfact.storage.location import Location, parse_location

if TYPE_CHECKING:
    from dfact.engine.memory_plan import Plan

POD_OPTIONS = ("scheduler", "executor", "tls-ca-file", "tls-cert", "tls-key", "metrics-port")
"""Options that the manifests set."""
_MOUNT = PurePosixPath("/data")
STORES = {"s3": "s3", "gs": "gcs", "az": "azure"}
"""Components of the manifests by URL scheme."""
_SIZES = tuple(1 << power for power in range(31, 40))  # 2 GiB to 512 GiB
_DISK_SHARE = 0.8  # of a pod's /tmp, which spilled state may take


@dataclass(frozen=True)
class PlannedWorkers:
    """An executor of workers that do not exist yet: it supports planning but runs no pass."""

    count: int
    threads: int
    memory: int
    disk: int
    """Bytes of the /tmp of each."""

    def workers(self, memory_limit: int | str | None) -> Any:
        """Return the resources that a cluster of these workers would have."""
        from dfact.engine.memory_plan import cluster_workers

        return cluster_workers([self.memory] * self.count, self.threads, memory_limit)

    def open(self, partitions: Any, plan: Any) -> Any:
        """Raise NotImplementedError: a session on planned workers is a mistake in the code."""
        raise NotImplementedError("planned workers run no pass")


def find_deployment_problems(steps: Sequence[Step], job: Mapping[str, Any], claim: str | None) -> Iterator[Problem]:
    """Yield the locations that pods cannot reach and the options that the manifests set."""
    if "state" not in job:
        yield Problem(1, "[job] has no 'state', expected a URL or a path below /data where pods keep the record of the job")
    elif not _is_reachable(location := parse_location(str(job["state"])), claim):
        yield Problem(1, f"state = {str(location)!r}: {_expected_locations(claim)}")
    for name in POD_OPTIONS:
        yield from (
            Problem(step.line, f"{step.title}: {name!r} is set by the manifests; remove it") for step in steps if name in step.settings
        )
        if name in job:
            yield Problem(1, f"[job]: {name!r} is set by the manifests; remove it")
    for step in steps:
        for location in locations_of(step):
            if not _is_reachable(location, claim):
                yield Problem(step.line, f"{step.title}: {location}: {_expected_locations(claim)}")


def locations_of(step: Step) -> list[Location]:
    """Return all locations that a step reads or writes."""
    checkpoint = step.parameters.get("checkpoint")
    return [*step.inputs, *step.outputs, *([] if checkpoint is None else [checkpoint])]


def _is_reachable(location: Location, claim: str | None) -> bool:
    if isinstance(location, str):
        return location.split(":")[0] in STORES
    return claim is not None and PurePosixPath(location.as_posix()).is_relative_to(_MOUNT) and ".." not in location.parts


def _expected_locations(claim: str | None) -> str:
    kinds = ", ".join(f"{scheme}://…" for scheme in STORES)
    return f"pods cannot reach it, expected a URL {kinds}, or a path below {_MOUNT}{'' if claim else ' with --volume-claim'}"


def pod_memory(steps: Sequence[Step], pods: PlannedWorkers, requested: int | None) -> int:
    """Return the bytes of a pod: as requested, or the least size with which the plan of every step fits."""
    written: set[str] = set()
    largest, unplanned = 0, []
    for step in steps:
        if isinstance(step.command, FittingCommand):
            data = step.parameters["data"]
            if str(data) in written or not _is_readable(data):
                unplanned.append(step)
            else:
                largest = max(largest, _required_memory(step, pods, requested))
        written |= {str(output) for output in step.outputs}
    for step in unplanned:
        click.echo(
            f"{step.title}: {step.parameters['data']} cannot be read from this machine, so its memory is checked only when the step runs.",
            err=True,
        )
    if requested is None and unplanned:
        raise click.UsageError("--memory is missing: the data of some steps cannot be read from this machine, so they cannot be planned.")
    return requested or max(largest, _SIZES[0])


def _is_readable(data: Location) -> bool:
    from dfact.storage.groups import exists

    try:
        return exists(data)
    except StoreError:
        return False


def _required_memory(step: Step, pods: PlannedWorkers, requested: int | None) -> int:
    """Return the least bytes of a pod that hold the state of a step, or ``requested`` if its plan fits with spilling."""
    from dfact.batch.estimate import largest_estimator
    from dfact.data.stored_dataset import open_dataset
    from dfact.models.estimator import plan
    from dfact.text import format_bytes

    disk = int(_DISK_SHARE * pods.disk)
    model, _ = largest_estimator(step)
    dataset = open_dataset(step.parameters["data"])

    def plan_with(memory: int) -> "Plan":
        return plan(model.set_params(executor=replace(pods, memory=memory)), dataset)

    for size in (requested,) if requested else _SIZES:
        planned = plan_with(size)
        if planned.fits and not planned.spilled:
            return size
    if planned.fits and requested and planned.spilled <= pods.count * disk:
        return requested
    if planned.fits:
        excess = f"{step.title}: {format_bytes(planned.spilled)} of its state do not fit into {pods.count} pods of {format_bytes(size)}"
        raise MemoryPlanError(f"{excess}, nor on the {format_bytes(disk)} of disk that each may use; raise --memory, --disk or --workers")
    needed = format_bytes(ceil(planned.peak / planned.workers.limit * size))
    raise MemoryPlanError(f"{step.title}: --memory is {format_bytes(size)}, expected {needed} or more")
