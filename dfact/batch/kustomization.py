"""The kustomization of a job: the choices for its pods, as patches of the manifests in this package."""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from dfact.batch.job_file import Step
from dfact.batch.kubernetes import STORES, PlannedWorkers, locations_of
from dfact.storage.location import parse_location

MANIFESTS = Path(__file__).parent / "manifests"
_CREDENTIAL = re.compile(r"SECRET|PASSWORD|TOKEN|CREDENTIAL|KEY")
_MAX_NAME = 40  # names of pods add a prefix and a number, and are limited to 63 characters
_LOG_DISK = 2 << 30  # bytes of a pod's disk for logs, in addition to its /tmp
_KUSTOMIZATION = "kustomization.yaml"
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_KEY = rf"({_NAME}(\.{_NAME})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_COMPONENT_LABEL = "app.kubernetes.io/component"
_JOB, _CONTAINER = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "dfact"}}, "dfact"


@dataclass(frozen=True)
class Deployment:
    """The choices of a user for the pods of a job."""

    image: str
    name: str
    namespace: str
    workers: PlannedWorkers
    """The full number of workers, with cores, bytes of memory, and bytes of ``/tmp`` of each."""
    min_workers: int
    """Number of workers with which the driver starts."""
    driver: tuple[int, int] | None
    """Cores and bytes of memory of the driver's pod; None if it is of the workers' size."""
    claim: str | None
    environment: Sequence[str]
    tls: bool
    node_selector: Sequence[str]
    tolerations: Sequence[str]
    priority: str | None
    spread: Sequence[str]
    """Labels of nodes, over whose values the pods are spread."""
    pull_secret: str | None
    queue: str | None

    def components(self, steps: Sequence[Step], job: Mapping[str, Any]) -> list[str]:
        """Return the names of the components that the job needs."""
        locations = [*(location for step in steps for location in locations_of(step)), parse_location(str(job["state"]))]
        stores = {STORES[location.split(":", 1)[0]] for location in locations if isinstance(location, str)}
        chosen = (("workers", self.driver), ("tls", self.tls), ("pvc", self.claim))
        return [*(name for name, is_chosen in chosen if is_chosen), *sorted(stores)]

    def kustomization(self, components: Sequence[str]) -> dict[str, Any]:
        """Return the contents of the files of a kustomization beside copies of the base and its components, by file name."""
        variables = dict(_parse_variable(text) for text in self.environment) | {"DASK_DFACT__EXPECTED_WORKERS": str(self.min_workers)}
        variables |= {"DASK_DFACT__TLS_NAME": self.tls_name} if self.tls else {}
        driver = {"kind": "Job", "labelSelector": f"{_COMPONENT_LABEL}!=workers"}
        patches: dict[str, tuple[dict[str, Any], dict[str, str] | None]] = {
            "pods.yaml": (self._pods([part for part in components if part in STORES.values()]), {"kind": "Job"}),
            "job.yaml": (self._size(), driver),
        }
        if self.driver:
            workers = {"kind": "Job", "labelSelector": f"{_COMPONENT_LABEL}=workers"}
            patches["workers.yaml"] = (_sized(self.workers.count, self.workers.threads, self.workers.memory), workers)
        patches |= {file: (patch, None) for file, patch in self._policies(variables.get("AWS_ENDPOINT_URL")).items()}
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": _matching("--namespace", self.namespace, _NAME, "a name of the characters a-z, 0-9 and -"),
            "nameSuffix": f"-{_check_name(self.name)}",
            "labels": [{"pairs": {"app.kubernetes.io/instance": self.name}, "includeSelectors": True}],
            "resources": ["base"],
            "components": [f"components/{component}" for component in components],
            "images": [_parse_image(self.image)],
            "configMapGenerator": [
                {"name": "dfact-job", "files": ["job.toml"]},
                {"name": "dfact-settings", "behavior": "merge", "literals": [f"{key}={value}" for key, value in variables.items()]},
            ],
            "patches": [{"path": file} | ({"target": target} if target else {}) for file, (_, target) in patches.items()],
        }
        return {_KUSTOMIZATION: kustomization} | {file: patch for file, (patch, _) in patches.items()}

    @property
    def tls_name(self) -> str:
        """Name on the certificates of this job."""
        return f"dfact-{self.name}"

    def _pods(self, stores: Sequence[str]) -> dict[str, Any]:
        """Return the patch of all pods."""
        disk = str(self.workers.disk + _LOG_DISK)
        secrets = [{"secretRef": {"name": f"dfact-{store}-{self.name}", "optional": True}} for store in stores]
        container = {
            "name": _CONTAINER,
            "envFrom": [{"configMapRef": {"name": "dfact-settings"}}, *secrets],
            "resources": {kind: {"ephemeral-storage": disk} for kind in ("limits", "requests")},
        }
        volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {"sizeLimit": str(self.workers.disk)}}]
        if self.tls:
            volumes.append({"name": "tls", "secret": {"secretName": f"dfact-tls-{self.name}"}})
        if self.claim:
            volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": self.claim}})
        pod: dict[str, Any] = {"containers": [container], "volumes": volumes, **self._placement()}
        if self.pull_secret:
            pod["imagePullSecrets"] = [{"name": _matching("--pull-secret", self.pull_secret, rf"{_NAME}(\.{_NAME})*", "a Secret's name")}]
        return _JOB | {"metadata": {"name": "dfact"} | self._queue(), "spec": {"template": {"spec": pod}}}

    def _placement(self) -> dict[str, Any]:
        """Return what decides on which nodes the pods run."""
        found: dict[str, Any] = {}
        if self.node_selector:
            found["nodeSelector"] = dict(_parse_label(text) for text in self.node_selector)
        if self.tolerations:
            found["tolerations"] = [_parse_toleration(text) for text in self.tolerations]
        if self.priority:
            found["priorityClassName"] = _matching("--priority-class", self.priority, rf"{_NAME}(\.{_NAME})*", "a PriorityClass's name")
        if self.spread:
            keys = [_matching("--spread", key, _KEY, "a label of nodes such as topology.kubernetes.io/zone") for key in self.spread]
            own = {"labelSelector": {"matchLabels": {"app.kubernetes.io/instance": self.name}}}
            # A job that cannot be spread evenly still runs.
            found["topologySpreadConstraints"] = [
                {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway"} | own for key in keys
            ]
        return found

    def _queue(self) -> dict[str, Any]:
        """Return the labels and annotations that Kueue reads."""
        if self.queue is None:
            return {}
        name = _matching("--queue", self.queue, _NAME, "the name of a LocalQueue of Kueue in the job's namespace")
        found: dict[str, Any] = {"labels": {"kueue.x-k8s.io/queue-name": name}}
        if self.min_workers < self.workers.count and self.driver is None:  # Kueue may admit fewer pods
            least = str(self.min_workers + 1)
            keys = ("kueue.x-k8s.io/job-min-parallelism", "kueue.x-k8s.io/job-completions-equal-parallelism")
            found["annotations"] = dict(zip(keys, (least, "true"), strict=True))
        return found

    def _size(self) -> dict[str, Any]:
        """Return the patch of the base's Job."""
        workers = self.workers
        return _sized(1, *self.driver) if self.driver else _sized(workers.count + 1, workers.threads, workers.memory)

    def _policies(self, endpoint: str | None) -> dict[str, Any]:
        """Return the patches of the PodDisruptionBudget and, for a store on a port other than 443, of the NetworkPolicy."""
        budget = {"minAvailable": self.min_workers}  # with the driver, all pods but one that the job needs
        patches: dict[str, Any] = {
            "disruptionbudget.yaml": {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "dfact"},
                "spec": budget,
            },
        }
        parts = urlsplit(endpoint or "")
        port = parts.port or {"http": 80}.get(parts.scheme, 443)
        if port != 443:
            rule = {"ports": [{"port": 443, "protocol": "TCP"}, {"port": port, "protocol": "TCP"}]}
            policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "dfact-s3"}}
            patches["networkpolicy.yaml"] = policy | {"spec": {"egress": [rule]}}
        return patches


def _sized(pods: int, cores: int, memory: int) -> dict[str, Any]:
    resources = {"cpu": str(cores), "memory": str(memory)}
    container = {"name": _CONTAINER, "resources": {"limits": resources, "requests": dict(resources)}}
    return _JOB | {"spec": {"completions": pods, "parallelism": pods, "template": {"spec": {"containers": [container]}}}}


def _matching(option: str, value: str, pattern: str, expected: str) -> str:
    if not re.fullmatch(pattern, value) or len(value.rpartition("/")[2]) > 63:
        raise click.UsageError(f"{option} is {value!r}, expected {expected}")
    return value


def _check_name(name: str) -> str:
    if not re.fullmatch(_NAME, name) or len(name) > _MAX_NAME:
        raise click.UsageError(
            f"--name is {name!r}, expected at most {_MAX_NAME} of the characters a-z, 0-9 and -, the first and the last not a -"
        )
    return name


def _parse_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
        raise click.UsageError(f"--env is {text!r}, expected NAME=VALUE")
    if _CREDENTIAL.search(name):
        secrets = ", ".join(f"dfact-{store}-NAME" for store in STORES.values())
        raise click.UsageError(
            f"--env {name} looks like a credential, expected none in a manifest; put it into the Secret of the job's store ({secrets})"
        )
    return name, value


def _parse_label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(_KEY, key) or not re.fullmatch(_VALUE, value) or len(value) > 63:
        raise click.UsageError(f"--node-selector is {text!r}, expected KEY=VALUE of a node's label, such as pool=batch")
    return key, value


def _parse_toleration(text: str) -> dict[str, str]:
    """Return the toleration of a taint that is written as kubectl does: KEY, KEY=VALUE, each with :EFFECT or for all effects."""
    taint, colon, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    if not re.fullmatch(_KEY, key) or not re.fullmatch(_VALUE, value) or (colon and effect not in _EFFECTS):
        raise click.UsageError(
            f"--toleration is {text!r}, expected a taint KEY[=VALUE][:EFFECT], where EFFECT is one of {', '.join(_EFFECTS)}"
        )
    found = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return found | ({"effect": effect} if effect else {})


def _parse_image(image: str) -> dict[str, str]:
    match = re.fullmatch(r"(?P<newName>[^@\s]+?)(@(?P<digest>sha256:[0-9a-f]{64})|:(?P<newTag>[\w][\w.-]*))", image)
    if match is None or match["newTag"] == "latest":
        raise click.UsageError(
            f"--image is {image!r}, expected one with a digest or a version other than latest, such as registry.example.com/dfact:0.1.0"
        )
    return {"name": "dfact"} | {key: value for key, value in match.groupdict().items() if value}


def write_manifests(folder: Path, job: Path, components: Sequence[str], manifests: Mapping[str, Any]) -> None:
    """Write the manifests, a copy of the job file, and copies of the base and the components into a folder.

    The folder's ``kustomization.yaml`` is removed first and written last: without it ``kubectl`` refuses the folder. Earlier copies of
    the base and the components are removed, other files are kept. Of several writers, each waits for those of the same host.

    Raises
    ------
    StoreError
        They cannot be written, or another writer is at work in the folder or has been faster.
    """
    import yaml

    from dfact.storage.replacement import written_beside

    last = folder / _KUSTOMIZATION
    with written_beside(last, "file", partial(Path.touch, exist_ok=False), partial(last.unlink, missing_ok=True)) as unfinished:
        for part in ("base", "components"):
            if (folder / part).exists():
                shutil.rmtree(folder / part)
        for part in ("base", *(f"components/{component}" for component in components)):
            shutil.copytree(MANIFESTS / "kubernetes" / part, folder / part)
        (folder / "job.toml").write_bytes(job.read_bytes())
        for name, manifest in manifests.items():
            (unfinished if name == _KUSTOMIZATION else folder / name).write_text(yaml.safe_dump(manifest, sort_keys=False))
