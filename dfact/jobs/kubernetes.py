"""Kubernetes manifests of a job: checks of its locations, memory by the plan, and a kustomization on the manifests of ``deploy/``."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from dfact.errors import DfactError, MemoryPlanError, ParameterError, StoreError
from dfact.jobs.declarations import FittingCommand
from dfact.jobs.job_file import Problem, Step
from dfact.storage.location import Location, parse_location

if TYPE_CHECKING:
    from dfact.engine.memory_plan import Plan

POD_OPTIONS = ("scheduler", "executor", "tls-ca-file", "tls-cert", "tls-key", "metrics-port")
"""Options that the manifests set."""
_MOUNT = PurePosixPath("/data")
_COMPONENTS = {"s3": "s3", "gs": "gcs"}
"""Components of the manifests by URL scheme."""
_SIZES = tuple(1 << power for power in range(31, 40))  # 2 GiB to 512 GiB
_DISK = 16 << 30  # bytes of a pod's /tmp that spilled state may take; the manifests allow 20 GiB
_CREDENTIAL = re.compile(r"SECRET|PASSWORD|TOKEN|CREDENTIAL|KEY")
_MAX_NAME = 40  # names of pods add a prefix and a number, and are limited to 63 characters


@dataclass(frozen=True)
class PlannedWorkers:
    """An executor of workers that do not exist yet: it supports planning but runs no pass."""

    count: int
    threads: int
    memory: int

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
        checkpoint = step.parameters.get("checkpoint")
        for location in (*step.inputs, *step.outputs, *([] if checkpoint is None else [checkpoint])):
            if not _is_reachable(location, claim):
                yield Problem(step.line, f"{step.title}: {location}: {_expected_locations(claim)}")


def _is_reachable(location: Location, claim: str | None) -> bool:
    if isinstance(location, str):
        return location.split(":")[0] in _COMPONENTS
    return claim is not None and PurePosixPath(location.as_posix()).is_relative_to(_MOUNT) and ".." not in location.parts


def _expected_locations(claim: str | None) -> str:
    kinds = " or ".join(f"{scheme}://…" for scheme in _COMPONENTS)
    return f"pods cannot reach it, expected a URL {kinds}, or a path below {_MOUNT}{'' if claim else ' with --volume-claim'}"


def pod_memory(steps: Sequence[Step], pods: PlannedWorkers, requested: str | None) -> int:
    """Return the bytes of a pod: as requested, or the least size with which the plan of every step fits."""
    from dfact.data.memory_limit import parse_bytes
    from dfact.engine.memory_plan import format_bytes

    written: set[str] = set()
    largest, unplanned = 0, []
    for step in steps:
        if isinstance(step.command, FittingCommand):
            data = step.parameters["data"]
            if str(data) in written or not _is_readable(data):
                unplanned.append(step)
            else:
                largest = max(largest, _required_memory(step, pods, parse_bytes(requested) if requested else None))
        written |= {str(output) for output in step.outputs}
    for step in unplanned:
        click.echo(
            f"{step.title}: {step.parameters['data']} cannot be read from this machine, so its memory is checked only when the step runs.",
            err=True,
        )
    if requested is None and unplanned:
        raise click.UsageError("--memory is missing: the data of some steps cannot be read from this machine, so they cannot be planned.")
    size = parse_bytes(requested) if requested else max(largest, _SIZES[0])
    if size < _SIZES[0] // 2:
        raise ParameterError(f"--memory is {format_bytes(size)}, expected 1 GiB or more: one pod holds scheduler and driver")
    return size


def _is_readable(data: Location) -> bool:
    from dfact.storage.groups import exists

    try:
        return exists(data)
    except StoreError:
        return False


def _required_memory(step: Step, pods: PlannedWorkers, requested: int | None) -> int:
    """Return the least bytes of a pod that hold the state of a step, or ``requested`` if its plan fits with spilling."""
    from dfact.data.stored_dataset import open_dataset
    from dfact.engine.memory_plan import format_bytes
    from dfact.jobs.estimate import largest_estimator
    from dfact.models.estimator import plan

    model, _ = largest_estimator(step)
    dataset = open_dataset(step.parameters["data"])

    def plan_with(memory: int) -> "Plan":
        return plan(model.set_params(executor=PlannedWorkers(pods.count, pods.threads, memory)), dataset)

    for size in (requested,) if requested else _SIZES:
        planned = plan_with(size)
        if planned.fits and not planned.spilled:
            return size
    if planned.fits and requested and planned.spilled <= pods.count * _DISK:
        return requested
    if planned.fits:
        excess = f"{step.title}: {format_bytes(planned.spilled)} of its state do not fit into {pods.count} pods of {format_bytes(size)}"
        raise MemoryPlanError(f"{excess}, nor on their disks of {format_bytes(_DISK)}; raise --memory or --workers")
    needed = format_bytes(ceil(planned.peak / planned.workers.limit * size))
    raise MemoryPlanError(f"{step.title}: --memory is {format_bytes(size)}, expected {needed} or more")


def make_kustomization(
    steps: Sequence[Step],
    job: Mapping[str, Any],
    folder: Path,
    manifests: Path,
    pods: PlannedWorkers,
    *,
    image: str,
    namespace: str,
    name: str,
    claim: str | None,
    environment: Sequence[str],
    tls: bool,
) -> dict[str, Any]:
    """Return the contents of the files of a kustomization, by file name."""
    locations = [*(path for step in steps for path in (*step.inputs, *step.outputs)), parse_location(str(job.get("state", "job.state")))]
    components = (["tls"] if tls else []) + (["pvc"] if claim else [])
    components += sorted({_COMPONENTS[location.split(":", 1)[0]] for location in locations if isinstance(location, str)})
    variables = dict(_parse_variable(text) for text in environment) | {"DASK_DFACT__EXPECTED_WORKERS": str(pods.count)}
    patches = _patches(pods, claim, variables.get("AWS_ENDPOINT_URL"))
    settings = {"name": "dfact-settings", "behavior": "merge", "literals": [f"{key}={value}" for key, value in variables.items()]}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        **_name_suffix(name),
        "resources": [_relative(manifests / "base", folder)],
        "components": [_relative(manifests / "components" / component, folder) for component in components],
        "images": [_parse_image(image)],
        "configMapGenerator": [{"name": "dfact-job", "files": ["job.toml"]}, settings],
        "patches": [{"path": file} for file in patches],
    }
    return {"kustomization.yaml": kustomization} | patches


def _parse_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
        raise click.UsageError(f"--env is {text!r}, expected NAME=VALUE")
    if _CREDENTIAL.search(name):
        raise click.UsageError(
            f"--env {name} looks like a credential, expected none in a manifest; put it into the Secret dfact-s3 or dfact-gcs"
        )
    return name, value


def _name_suffix(name: str) -> dict[str, Any]:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) or len(name) > _MAX_NAME:
        raise click.UsageError(
            f"--name is {name!r}, expected at most {_MAX_NAME} of the characters a-z, 0-9 and -, the first and the last not a -"
        )
    labels = [{"pairs": {"app.kubernetes.io/instance": name}, "includeSelectors": True}]
    return {"nameSuffix": f"-{name}", "labels": labels}


def _parse_image(image: str) -> dict[str, str]:
    match = re.fullmatch(r"(?P<newName>[^@\s]+?)(@(?P<digest>sha256:[0-9a-f]{64})|:(?P<newTag>[\w][\w.-]*))", image)
    if match is None or match["newTag"] == "latest":
        raise click.UsageError(
            f"--image is {image!r}, expected one with a digest or a version other than latest, such as registry.example.com/dfact:0.1.0"
        )
    return {"name": "dfact"} | {key: value for key, value in match.groupdict().items() if value}


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def _patches(pods: PlannedWorkers, claim: str | None, endpoint: str | None) -> dict[str, Any]:
    """Return the changes to the base manifests, by file name."""
    resources = {"cpu": str(pods.threads), "memory": str(pods.memory)}
    container = {"name": "dfact", "resources": {"limits": resources, "requests": dict(resources)}}
    spec: dict[str, Any] = {"containers": [container]}
    if claim:
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    size = {"completions": pods.count + 1, "parallelism": pods.count + 1, "template": {"spec": spec}}
    budget = {"minAvailable": pods.count}  # all pods but one
    patches: dict[str, Any] = {
        "job.yaml": {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "dfact"}, "spec": size},
        "disruptionbudget.yaml": {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "dfact"}, "spec": budget},
    }
    parts = urlsplit(endpoint or "")
    port = parts.port or {"http": 80}.get(parts.scheme, 443)
    if port != 443:
        rule = {"ports": [{"port": 443, "protocol": "TCP"}, {"port": port, "protocol": "TCP"}]}
        policy = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "dfact-s3"},
            "spec": {"egress": [rule]},
        }
        patches["networkpolicy.yaml"] = policy
    return patches


def write_manifests(folder: Path, job: Path, manifests: Mapping[str, Any]) -> None:
    """Write the manifests and a copy of the job file into a folder."""
    import yaml

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.toml").write_bytes(job.read_bytes())
        for name, content in manifests.items():
            (folder / name).write_text(yaml.safe_dump(content, sort_keys=False))
    except OSError as error:
        raise DfactError(f"cannot write the manifests to {folder}: {error}") from error
