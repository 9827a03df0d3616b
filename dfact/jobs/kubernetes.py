"""TODO dfact.jobs.kubernetes"""

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
from dfact.jobs.job_file import Problem, Step
from dfact.storage.location import Location, parse_location

if TYPE_CHECKING:
    from dfact.engine.memory_plan import Plan

_MOUNT = PurePosixPath("/data")
_COMPONENTS = {"s3": "s3", "gs": "gcs"}
POD_OPTIONS = ("scheduler", "executor", "tls-ca-file", "tls-cert", "tls-key")
_SIZES = tuple(1 << power for power in range(31, 40))  # 2 GiB to 512 GiB
_DISK = 16 << 30  # of a pod's /tmp that state may take: the manifests allow 20 GiB
_CREDENTIAL = re.compile(r"SECRET|PASSWORD|TOKEN|CREDENTIAL|KEY")
_LONGEST_NAME = 40  # names of pods add a prefix and a number, and may have 63 characters


@dataclass(frozen=True)
class PlannedWorkers:
    """WorkerResources that are not there yet, as an executor that can only be planned for."""

    count: int
    threads: int
    memory: int

    def workers(self, memory_limit: int | str | None) -> Any:
        """As those of a cluster."""
        from dfact.engine.memory_plan import cluster_workers

        return cluster_workers([self.memory] * self.count, self.threads, memory_limit)

    def open(self, partitions: Any, plan: Any) -> Any:
        """No pass can run: these workers are planned for and do not exist yet."""
        # Only the plan asks for these workers; a session on them is a mistake in the code.
        raise NotImplementedError("pods that are yet to be started run no pass")


def _problems(steps: Sequence[Step], table: Mapping[str, Any], claim: str | None) -> Iterator[Problem]:
    """What of a job would not work in pods."""
    if "state" not in table:
        yield Problem(1, "[job] has no 'state'; expected where pods can keep what is done, an address or a path below /data")
    elif not _reachable(place := parse_location(str(table["state"])), claim):
        yield Problem(1, f"state = {str(place)!r}: {_expected(claim)}")
    for name in POD_OPTIONS:
        yield from (
            Problem(step.line, f"{step.title}: {name!r} is for the manifests to say; leave it out") for step in steps if name in step.given
        )
        if name in table:
            yield Problem(1, f"[job]: {name!r} is for the manifests to say; leave it out")
    for step in steps:
        checkpoint = step.parameters.get("checkpoint")
        for place in (*step.inputs, *step.outputs, *([] if checkpoint is None else [checkpoint])):
            if not _reachable(place, claim):
                yield Problem(step.line, f"{step.title}: {place}: {_expected(claim)}")


def _reachable(place: Location, claim: str | None) -> bool:
    if isinstance(place, str):
        return place.split(":")[0] in _COMPONENTS
    return claim is not None and PurePosixPath(place.as_posix()).is_relative_to(_MOUNT) and ".." not in place.parts


def _expected(claim: str | None) -> str:
    kinds = " or ".join(f"{scheme}://…" for scheme in _COMPONENTS)
    return f"pods see no such place; expected an address {kinds}, or a path below {_MOUNT}{'' if claim else ' with --volume-claim'}"


def _memory(steps: Sequence[Step], pods: PlannedWorkers, given: str | None) -> int:
    """Bytes of a pod: as given or, by the plans, the least that holds the state of every step."""
    from dfact.engine.memory_plan import format_bytes, parse_bytes

    made: set[str] = set()
    least, unknown = 0, []
    for step in steps:
        if step.name.startswith(("fit ", "select ")):
            data = step.parameters["data"]
            if str(data) in made or not _here(data):
                unknown.append(step)
            else:
                least = max(least, _needed(step, pods, parse_bytes(given) if given else None))
        made |= {str(place) for place in step.outputs}
    for step in unknown:
        click.echo(
            f"{step.title}: {step.parameters['data']} cannot be read from here, so its memory is checked only when the job comes to it.",
            err=True,
        )
    if given is None and unknown:
        raise click.UsageError("--memory is missing: the data of some steps cannot be read from here, so no plan says what they need.")
    size = parse_bytes(given) if given else max(least, _SIZES[0])
    if size < _SIZES[0] // 2:
        raise ParameterError(f"--memory is {format_bytes(size)}, expected 1 GiB or more: a scheduler and a driver are in one pod")
    return size


def _here(data: Location) -> bool:
    from dfact.storage.groups import exists

    try:
        return exists(data)
    except StoreError:
        return False


def _needed(step: Step, pods: PlannedWorkers, given: int | None) -> int:
    from dfact.cli.options import read_dataset
    from dfact.engine.memory_plan import format_bytes
    from dfact.jobs.estimate import estimator_of
    from dfact.models.estimator import plan

    model, _ = estimator_of(step)
    dataset = read_dataset(step.parameters["data"])

    def planned(memory: int) -> "Plan":
        return plan(model.set_params(executor=PlannedWorkers(pods.count, pods.threads, memory)), dataset)

    for size in (given,) if given else _SIZES:
        found = planned(size)
        if found.fits and not found.spilled:
            return size
    if found.fits and given and found.spilled <= pods.count * _DISK:
        return given
    if found.fits:
        where = f"{step.title}: {format_bytes(found.spilled)} of its state do not fit into {pods.count} pods of {format_bytes(size)}"
        raise MemoryPlanError(f"{where}, nor on their disks of {format_bytes(_DISK)}; raise --memory or --workers")
    raise MemoryPlanError(
        f"{step.title}: a pod would need {format_bytes(ceil(found.peak / found.workers.limit * size))}, {format_bytes(size)} are too few"
    )


def _job_and_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    settings = {"name": "dfact-settings", "behavior": "merge", "literals": [f"{name}={value}" for name, value in environment.items()]}
    return {"configMapGenerator": [{"name": "dfact-job", "files": ["job.toml"]}, settings]}


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
        raise click.UsageError(f"--env is {text!r}, expected NAME=VALUE")
    if _CREDENTIAL.search(name):
        raise click.UsageError(
            f"--env {name} looks like a credential, which no manifest should hold; put it into the Secret dfact-s3 or dfact-gcs"
        )
    return name, value


def _named(name: str) -> dict[str, Any]:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) or len(name) > _LONGEST_NAME:
        raise click.UsageError(
            f"--name is {name!r}, expected at most {_LONGEST_NAME} of a-z, 0-9 and -, with neither end a -, as Kubernetes has it"
        )
    labels = [{"pairs": {"app.kubernetes.io/instance": name}, "includeSelectors": True}]
    return {"nameSuffix": f"-{name}", "labels": labels}


def _image(image: str) -> dict[str, str]:
    found = re.fullmatch(r"(?P<newName>[^@\s]+?)(@(?P<digest>sha256:[0-9a-f]{64})|:(?P<newTag>[\w][\w.-]*))", image)
    if found is None or found["newTag"] == "latest":
        raise click.UsageError(
            f"--image is {image!r}, expected one with a version or a digest that is not latest: registry.example.com/dfact:0.1.0"
        )
    return {"name": "dfact"} | {key: value for key, value in found.groupdict().items() if value}


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def _patches(pods: PlannedWorkers, claim: str | None, endpoint: str | None) -> dict[str, Any]:
    """What of the base is changed, by the file that says so."""
    resources = {"cpu": str(pods.threads), "memory": str(pods.memory)}
    container = {"name": "dfact", "resources": {"limits": resources, "requests": dict(resources)}}
    spec: dict[str, Any] = {"containers": [container]}
    if claim:
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    size = {"completions": pods.count + 1, "parallelism": pods.count + 1, "template": {"spec": spec}}
    patches: dict[str, Any] = {"job.yaml": {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "dfact"}, "spec": size}}
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


def _write(folder: Path, job: Path, written: Mapping[str, Any]) -> None:
    import yaml

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.toml").write_bytes(job.read_bytes())
        for name, content in written.items():
            (folder / name).write_text(yaml.safe_dump(content, sort_keys=False))
    except OSError as error:
        raise DfactError(f"cannot write the manifests to {folder}: {error}") from error
