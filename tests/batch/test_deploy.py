"""Manifests that Kubernetes and the Dask operator accept, secure pods, and the processes that run in them."""

import copy
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import yaml

import dfact
from benchmarks.common import wait_until
from dfact.batch.kubernetes import PlannedWorkers
from dfact.cli.main import main
from dfact.data.coerce import as_dataset
from dfact.data.layout import Layout
from dfact.storage.replacement import host, is_stale, process_start
from tests.batch.manifest_rules import (
    COMPONENT,
    DEPLOY,
    MANIFESTS,
    ROOT,
    VERSIONS,
    Manifest,
    operator_schemas,
    pods,
    problems,
    render,
    schema_problems,
)
from tests.conftest import planted_answers

FOLDERS = ("overlays/example-s3", "overlays/example-pvc", "daskjob")
IMAGE = "registry.example.com/dfact:0.1.0"
PATIENCE = 400  # seconds after which a process hangs: on a busy machine the imports alone take minutes
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    try:
        return operator_schemas(tmp_path_factory.mktemp("operator"))
    except subprocess.SubprocessError as error:
        pytest.skip(f"the operator's wheel cannot be downloaded: {error}")


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[Manifest]]:
    return {folder: render(DEPLOY / "kubernetes" / folder) for folder in FOLDERS}


# Manifests


@needs_kubectl
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("version", VERSIONS)
def test_rendered_manifests_are_valid(folder: str, version: str, rendered: dict[str, list[Manifest]], operator: dict[str, Any]) -> None:
    assert list(schema_problems(rendered[folder], version, operator)) == []


@needs_kubectl
@pytest.mark.parametrize("folder", FOLDERS)
def test_rendered_manifests_work_and_are_secure(folder: str, rendered: dict[str, list[Manifest]]) -> None:
    assert problems(rendered[folder]) == []
    assert len(pods(rendered[folder])) == (3 if folder == "daskjob" else 1)


def _put(*path: Any) -> Callable[[Manifest], None]:
    """Set the value at a path; the first entries are the keys, the last is the value."""

    def change(manifest: Manifest) -> None:
        *keys, last, value = path
        for key in keys:
            manifest = manifest[key]
        manifest[last] = value

    return change


def _drop(*path: Any) -> Callable[[Manifest], None]:
    def change(manifest: Manifest) -> None:
        *keys, last = path
        for key in keys:
            manifest = manifest[key]
        del manifest[last]

    return change


POD = ("spec", "template", "spec")
BOX = (*POD, "containers", 0)
ENV = (*BOX, "env")
OTHERS = [{"podSelector": {"matchLabels": {"role": "scheduler"}}}]
BROKEN: dict[str, tuple[str, Callable[[Manifest], None], str]] = {
    # name: (kind of the broken manifest, change that breaks it, expected message)
    "root": ("Job", _put(*POD, "securityContext", "runAsNonRoot", False), "may run as root"),
    "no seccomp": ("Job", _drop(*POD, "securityContext", "seccompProfile"), "no seccomp"),
    "privileged": ("Job", _put(*BOX, "securityContext", "privileged", True), "privileged"),
    "escalation": ("Job", _drop(*BOX, "securityContext", "allowPrivilegeEscalation"), "gain privileges"),
    "writable root": ("Job", _put(*BOX, "securityContext", "readOnlyRootFilesystem", False), "root is writable"),
    "capability": ("Job", _put(*BOX, "securityContext", "capabilities", {"drop": ["ALL"], "add": ["NET_ADMIN"]}), "capabilities"),
    "host network": ("Job", _put(*POD, "hostNetwork", True), "node's namespaces"),
    "host path": ("Job", _put(*POD, "volumes", 0, {"name": "tmp", "hostPath": {"path": "/"}}), "node's files"),
    "host port": ("Job", _put(*BOX, "ports", 0, "hostPort", 8786), "port of the node"),
    "token": ("Job", _drop(*POD, "automountServiceAccountToken"), "token"),
    "latest": ("Job", _put(*BOX, "image", "dfact:latest"), "no version"),
    "no limit": ("Job", _drop(*BOX, "resources", "limits", "memory"), "not promised"),
    "account": ("Job", _put(*POD, "serviceAccountName", "other"), "no ServiceAccount other"),
    "mount": ("Job", _put(*BOX, "volumeMounts", 0, "name", "tsl"), "mounts differ"),
    "settings": ("Job", _put(*BOX, "envFrom", 0, "configMapRef", "name", "setings"), "no ConfigMap setings"),
    "order of variables": ("Job", lambda job: job["spec"]["template"]["spec"]["containers"][0]["env"].reverse(), "not defined before"),
    "probe": ("Job", _put(*BOX, "livenessProbe", {"tcpSocket": {"port": 8787}}), "probe of port 8787"),
    "container of a resource": ("Job", _put(*BOX, "env", 2, "valueFrom", "resourceFieldRef", "containerName", "x"), "no container x"),
    "tcp": ("Job", _put(*BOX, "env", 1, "value", "tcp://a:8786"), "settings of TLS"),
    "port": ("Job", _put(*BOX, "env", 1, "value", "tls://a:8787"), "not of port"),
    "size": ("Job", _put("spec", "parallelism", 2), "size"),
    "success": ("Job", _put("spec", "successPolicy", "rules", 0, "succeededIndexes", "1"), "end with its driver"),
    "tries": ("Job", _drop("spec", "backoffLimitPerIndex"), "limit of tries"),
    "two drivers": ("Job", _put("spec", "podReplacementPolicy", "TerminatingOrFailed"), "two drivers"),
    "lost node": ("Job", _put("spec", "podFailurePolicy", "rules", 0, "action", "Count"), "lost node"),
    "lost scheduler": ("Job", _put("spec", "podFailurePolicy", "rules", 1, "action", "Count"), "lost scheduler"),
    "wrong usage": ("Job", _put("spec", "podFailurePolicy", "rules", 2, "action", "Count"), "wrong usage"),
    "other container": ("Job", _put("spec", "podFailurePolicy", "rules", 1, "onExitCodes", "containerName", "x"), "not there"),
    "no deadline": ("Job", _drop("spec", "activeDeadlineSeconds"), "never ends"),
    "grace": ("Job", _put(*POD, "terminationGracePeriodSeconds", 30), "time for a checkpoint"),
    "workers leave first": ("ConfigMap", _put("data", "DASK_DFACT__LEAVE_TIMEOUT", "60s"), "time for a checkpoint"),
    "workers end at once": ("ConfigMap", _drop("data", "DASK_DISTRIBUTED__WORKER__PRELOAD"), "hands nothing over"),
    "no limit of the disk": ("Job", _drop(*BOX, "resources", "limits", "ephemeral-storage"), "not promised"),
    "volume without limit": ("Job", _put(*POD, "volumes", 1, "emptyDir", {}), "tmp may fill the node's disk"),
    "readable key": ("Job", _put(*POD, "volumes", 2, "secret", "defaultMode", 0o444), "others can read the secret tls"),
    "default mode of a key": ("Job", _drop(*POD, "volumes", 2, "secret", "defaultMode"), "others can read the secret tls"),
    "writable key": ("Job", _drop(*BOX, "volumeMounts", 2, "readOnly"), "the volume tls is writable"),
    "no budget": ("PodDisruptionBudget", _put("spec", "selector", "matchLabels", {"app": "other"}), "may stop them at once"),
    "small budget": ("PodDisruptionBudget", _put("spec", "minAvailable", 1), "keeps 1 of 3 pods"),
    "drain that never ends": ("PodDisruptionBudget", _put("spec", "minAvailable", 3), "keeps 3 of 3 pods"),
    "drain that waits": ("PodDisruptionBudget", _drop("spec", "unhealthyPodEvictionPolicy"), "hold up a drain"),
    "long name": ("Job", _put("metadata", "name", "n" * 62), "host names"),
    "subdomain": ("Job", _put(*POD, "subdomain", "dask"), "no Service"),
    "enum": ("Job", _put(*BOX, "imagePullPolicy", "Sometimes"), "imagePullPolicy is Sometimes"),
    "credential of the job": ("Job", _put(*ENV, 2, {"name": "AWS_SECRET_ACCESS_KEY", "value": "x"}), "looks like a credential"),
    "address for each": ("Service", _drop("spec", "clusterIP"), "does not name each pod"),
    "selector": ("Service", _put("spec", "selector", {"app.kubernetes.io/name": "other"}), "selects other pods"),
    "port of the service": ("Service", _put("spec", "ports", 0, "targetPort", "http"), "port that no pod has"),
    "dashboard": ("NetworkPolicy", _put("spec", "ingress", 0, "ports", [{"port": 8786}, {"port": 8787}]), "more than the job's own port"),
    "open to all": ("NetworkPolicy", _drop("spec", "ingress", 0, "from"), "cannot reach each other: Ingress"),
    "workers apart": ("NetworkPolicy", _put("spec", "egress", 0, "to", OTHERS), "cannot reach each other: Egress"),
    "no names": ("NetworkPolicy", _drop("spec", "egress", 1), "names cannot be looked up"),
    "no policy": ("NetworkPolicy", _put("spec", "podSelector", "matchLabels", {"app": "other"}), "no NetworkPolicy limits its Ingress"),
    "credential": ("ConfigMap", _put("data", "AWS_SECRET_ACCESS_KEY", "x"), "looks like a credential"),
    "short timeout": ("ConfigMap", _put("data", "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP", "5s"), "11 s"),
    "silent workers": ("ConfigMap", _put("data", "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "5s"), "worker-ttl"),
    "failures": ("ConfigMap", _put("data", "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "3"), "too few workers"),
    "key elsewhere": ("ConfigMap", _put("data", "DASK_DISTRIBUTED__COMM__TLS__WORKER__KEY", "/etc/tls/tls.key"), "nothing is mounted"),
    "no name": ("ConfigMap", _drop("data", "DASK_DFACT__TLS_NAME"), "names on certificates are not checked"),
    "worker's port": ("ConfigMap", _put("data", "DFACT_WORKER_PORT", "0"), "nobody may reach them"),
    "metrics for all": ("NetworkPolicy", _put("spec", "ingress", 1, "from", [{"namespaceSelector": {}}]), "metrics to all"),
    "pages": ("NetworkPolicy", _put("spec", "ingress", 1, "ports", [{"port": 8787}]), "more than metrics is open"),
    "port of metrics": ("ConfigMap", _put("data", "DASK_DFACT__METRICS_PORT", "9090"), "nobody can read its metrics"),
    "no run": ("Job", _drop(*ENV, 5), "no id of the run"),
    "claim": ("PersistentVolumeClaim", _put("metadata", "name", "other"), "claims that are made and mounted differ"),
    "mode of a claim": ("PersistentVolumeClaim", _put("spec", "accessModes", ["ReadWriteAll"]), "accessModes is ReadWriteAll"),
}  # fmt: skip


@pytest.mark.further
@needs_kubectl
@pytest.mark.parametrize("what", BROKEN)
def test_broken_manifest_is_reported(what: str, rendered: dict[str, list[Manifest]]) -> None:
    kind, change, message = BROKEN[what]
    manifests = copy.deepcopy(rendered["overlays/example-pvc"])
    for manifest in manifests:
        if manifest["kind"] == kind and "job.toml" not in manifest.get("data", {}):
            change(manifest)
    assert message in "\n".join(problems(manifests))


@needs_kubectl
def test_scheduler_with_credentials_is_reported(rendered: dict[str, list[Manifest]]) -> None:
    manifests = copy.deepcopy(rendered["daskjob"])
    spec = next(manifest["spec"] for manifest in manifests if manifest["kind"] == "DaskJob")
    spec["cluster"]["spec"]["scheduler"]["spec"]["containers"][0]["envFrom"].append({"secretRef": {"name": "dfact-s3"}})
    assert problems(manifests) == ["DaskJob scheduler: has credentials of a store that it does not use"]


@needs_kubectl
@pytest.mark.parametrize(
    ("folder", "kind", "change", "message"),
    [
        ("overlays/example-pvc", "Job", _put("spec", "backofLimitPerIndex", 1), "backofLimitPerIndex"),
        ("overlays/example-pvc", "Job", _put("spec", "completions", "three"), "three"),
        ("overlays/example-pvc", "Job", _drop(*BOX, "name"), "name"),
        ("overlays/example-pvc", "Service", _put("spec", "ports", 0, "portt", 1), "portt"),
        ("overlays/example-pvc", "NetworkPolicy", _put("spec", "egres", []), "egres"),
        ("daskjob", "DaskJob", _put("spec", "cluster", "spec", "worker", "replica", 2), "replica"),
        ("daskjob", "DaskJob", _put("spec", "job", "spec", "containers", 0, "comand", []), "comand"),
        ("daskjob", "DaskJob", _drop("spec", "cluster", "spec", "scheduler", "service"), "service"),
    ],
)  # fmt: skip
def test_manifest_that_kubernetes_refuses_or_prunes_is_reported(
    folder: str, kind: str, change: Callable[[Manifest], None], message: str, rendered: dict[str, list[Manifest]], operator: dict[str, Any]
) -> None:
    manifests = copy.deepcopy([manifest for manifest in rendered[folder] if manifest["kind"] == kind])
    change(manifests[0])
    for version in VERSIONS:
        assert message in "\n".join(schema_problems(manifests, version, operator))


CONTAINERFILE = (DEPLOY / "container" / "Containerfile").read_text()


def _pinned(name: str) -> set[str]:
    """Return the packages of a lock file, all of which have hashes, for the image's Python."""
    lock = (DEPLOY / "container" / name).read_text()
    assert "--python-version 3.13" in lock.splitlines()[1]
    packages = re.split(r"^(?=[\w.-]+==)", lock, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in package for package in packages)
    return {package.partition("==")[0].lower().replace("_", "-") for package in packages}


def test_lock_files_pin_all_dependencies_of_the_image_for_its_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = [re.match(r"[\w.-]+", requirement)[0] for requirement in project["project"]["dependencies"]]  # type: ignore[index]  # each begins with a name
    assert {*declared, "obstore", "prometheus-client"} <= _pinned("requirements.lock")
    backend = [re.match(r"[\w.-]+", requirement)[0] for requirement in project["build-system"]["requires"]]  # type: ignore[index]
    assert {*backend, "pip", "cyclonedx-bom"} <= _pinned("build.lock")
    assert "sys.version_info[:2] == (3, 13)" in CONTAINERFILE


def test_image_is_pinned_and_trusts_no_shared_folder() -> None:
    assert "ARG BASE\n\nFROM ${BASE}" in CONTAINERFILE, "no default that could move"
    assert re.search(r'case "\$BASE" in \*@sha256:\*\) ;; .*exit 1', CONTAINERFILE)
    installed = re.findall(r"^\s+(ca-certificates.*?) \\$", CONTAINERFILE, re.MULTILINE)
    assert [all("=" in package for package in line.split()) for line in installed] == [True]
    environment = dict(re.findall(r"(\w+)=(\S+)", CONTAINERFILE.rpartition("ENV ")[2].partition("USER")[0]))
    assert [name for name, value in environment.items() if value.startswith("/tmp")] == ["HOME"], "Apptainer replaces HOME alone"
    assert environment["DFACT_COMPILED_KERNELS"].startswith("/opt/")
    assert CONTAINERFILE.rpartition("FROM ")[2].count("pip") == 0


def test_context_of_the_image_has_what_it_copies_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    copies = re.findall(r"^COPY (?:--chmod=\S+ )?((?!--from)[^-].*) \S+$", CONTAINERFILE, re.MULTILINE)
    copied = {Path(source) for sources in copies for source in sources.split()}
    included = {Path(pattern[1:]) for pattern in patterns if pattern.startswith("!")}
    assert patterns[0] == "*", "what is not listed is left out"
    assert all(any(path.is_relative_to(folder) for folder in included) for path in copied)
    assert all(any(path.is_relative_to(folder) for path in copied) for folder in included)
    assert all((ROOT / path).exists() for path in copied)


# dfact deploy


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job that imports its data on a volume, so that it cannot be planned on this machine."""
    path = tmp_path / "study.toml"
    path.write_text(
        '[job]\nstate = "/data/state"\n\n[[step]]\nrun = "import"\nsource = "/data/a.csv"\ndest = "/data/a.zarr"\n'
        'items = ["Q*"]\n\n[[step]]\nrun = "fit icqf"\ndata = "/data/a.zarr"\nmodel = "s3://studies/icqf.model"\n'
    )
    return path


def deploy(job: Path, *options: str) -> tuple[int, Path]:
    folder = job.parent / "deployed"
    return main(["deploy", str(job), str(folder), "--image", IMAGE, *options]), folder


@pytest.mark.process
@needs_kubectl
def test_deploy_writes_the_manifests_of_a_job(job: Path) -> None:
    endpoint = "AWS_ENDPOINT_URL=http://minio.storage:9000"
    options = ("--volume-claim", "shared", "--workers", "7", "--cpu", "4", "--memory", "6GiB", "--env", endpoint, "--namespace", "lab")
    code, folder = deploy(job, *options)
    assert code == 0
    manifests = render(folder)
    assert problems(manifests) == []
    assert list(schema_problems(manifests, VERSIONS[0], {})) == []
    found = {manifest["kind"]: manifest for manifest in manifests if "s3" not in manifest["metadata"]["name"]}
    of_job = found["Job"]["spec"]
    assert (found["Job"]["metadata"]["name"], found["Job"]["metadata"]["namespace"]) == ("dfact-study", "lab")
    assert of_job["completions"] == of_job["parallelism"] == 8
    assert found["PodDisruptionBudget"]["spec"]["minAvailable"] == 7
    pod = pods(manifests)[0]
    assert pod.container["image"] == IMAGE
    assert pod.container["resources"]["limits"] == {"cpu": "4", "memory": str(6 << 30), "ephemeral-storage": str(22 << 30)}
    assert {"claimName": "shared"} in [volume.get("persistentVolumeClaim") for volume in pod.spec["volumes"]]
    assert "TMPDIR" not in pod.settings, "what does not fit into memory lies in the pod's own /tmp"
    assert pod.settings["DASK_SCHEDULER_ADDRESS"].startswith("tls://")
    outside = next(m for m in manifests if m["metadata"]["name"] == "dfact-s3-study")["spec"]["egress"]
    assert [port["port"] for port in outside[0]["ports"]] == [443, 9000]
    assert next(m for m in manifests if "job.toml" in m.get("data", {}))["data"]["job.toml"] == job.read_text()


@pytest.mark.further
@pytest.mark.process
@needs_kubectl
def test_two_jobs_in_a_namespace_are_separate(job: Path) -> None:
    found = []
    for name in ("one", "two"):
        _, folder = deploy(job, *SIZED, "--name", name, "--overwrite", "--driver-cpu", "1")
        found.append(render(folder))
        assert problems(found[-1]) == []
    names = [{(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests} for manifests in found]
    assert not names[0] & names[1]
    policies = [[m for m in manifests if m["kind"] == "NetworkPolicy"] for manifests in found]
    unprotected = problems([*(m for m in found[0] if m["kind"] != "NetworkPolicy"), *policies[1]])
    assert len(unprotected) == 4, "in both Jobs and directions, as the policies of one job do not select the pods of the other"
    secrets = [_named(manifests, "secretName") | _named(manifests, "secretRef") for manifests in found]
    assert secrets == [{f"dfact-tls-{name}", f"dfact-s3-{name}"} for name in ("one", "two")]
    assert [pods(manifests)[0].settings["DASK_DFACT__TLS_NAME"] for manifests in found] == ["dfact-one", "dfact-two"]


def _named(value: Any, key: str) -> set[str]:
    """Return the names of the references with a key, at any depth."""
    if isinstance(value, list):
        return set().union(*(_named(entry, key) for entry in value))
    if not isinstance(value, dict):
        return set()
    own = {value[key]["name"] if isinstance(value[key], dict) else value[key]} if key in value else set()
    return own.union(*(_named(entry, key) for entry in value.values()))


CHOSEN: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    # name: (options, part of the pods' spec that follows)
    "node": (("--node-selector", "pool=batch", "--node-selector", "a.b/c="), {"nodeSelector": {"pool": "batch", "a.b/c": ""}}),
    "tolerations": (
        ("--toleration", "spot:NoSchedule", "--toleration", "for=dfact", "--toleration", "any"),
        {
            "tolerations": [
                {"effect": "NoSchedule", "key": "spot", "operator": "Exists"},
                {"key": "for", "operator": "Equal", "value": "dfact"},
                {"key": "any", "operator": "Exists"},
            ]
        },
    ),
    "priority": (("--priority-class", "batch-low"), {"priorityClassName": "batch-low"}),
    "spread": (
        ("--spread", "kubernetes.io/hostname"),
        {
            "topologySpreadConstraints": [
                {
                    "labelSelector": {"matchLabels": {"app.kubernetes.io/instance": "study"}},
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                }
            ]
        },
    ),
    "registry": (("--pull-secret", "registry.login"), {"imagePullSecrets": [{"name": "registry.login"}]}),
}


@pytest.mark.process
@needs_kubectl
@pytest.mark.parametrize("apart", [(), ("--driver-cpu", "8", "--driver-memory", "12GiB")])
def test_choices_reach_all_pods(apart: tuple[str, ...], job: Path) -> None:
    job.write_text(job.read_text().replace("s3://studies", "az://studies"))
    options = [option for chosen, _ in CHOSEN.values() for option in chosen]
    sizes = ("--workers", "9", "--min-workers", "4", "--disk", "100GiB", "--queue", "lab")
    code, folder = deploy(job, *SIZED, *apart, *options, *sizes)
    assert code == 0
    manifests = render(folder)
    assert problems(manifests) == []
    for version in VERSIONS:
        assert list(schema_problems(manifests, version, {})) == []
    found = pods(manifests)
    for pod in found:
        for _, part in CHOSEN.values():
            assert {key: pod.spec[key] for key in part} == part
        assert pod.container["resources"]["limits"]["ephemeral-storage"] == str(102 << 30)
        assert {"sizeLimit": str(100 << 30)} in [volume.get("emptyDir") for volume in pod.spec["volumes"]]
        assert pod.labels["azure.workload.identity/use"] == "true"
        assert pod.settings["DASK_DFACT__EXPECTED_WORKERS"] == "4"
    limits = [(pod.count, pod.container["resources"]["limits"]["cpu"], pod.container["resources"]["limits"]["memory"]) for pod in found]
    assert limits == ([(1, "8", str(12 << 30)), (9, "2", str(2 << 30))] if apart else [(10, "2", str(2 << 30))])
    for manifest in manifests:
        if manifest["kind"] == "Job":
            assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "lab"
            least = {"kueue.x-k8s.io/job-min-parallelism": "5", "kueue.x-k8s.io/job-completions-equal-parallelism": "true"}
            assert manifest["metadata"].get("annotations", {}) == ({} if apart else least)


BROKEN_APART: dict[str, tuple[str, Callable[[Manifest], None], str]] = {
    # name: (label of the broken Job, change that breaks it, expected message)
    "driver among workers": ("workers", lambda job: job["spec"]["template"]["spec"]["containers"][0]["env"].pop(6), "would be drivers"),
    "endless workers": ("workers", lambda job: job["spec"]["template"]["spec"]["containers"][0]["env"].pop(7), "for ever for a driver"),
    "other scheduler": ("workers", _put(*ENV, 0, {"name": "JOB_NAME", "value": "other"}), "no Service"),
    "success of all": ("workers", _drop("spec", "successPolicy"), "end with its driver"),
    "not dismissed": ("driver", lambda job: job["spec"]["template"]["spec"]["containers"][0]["env"].pop(6), "nobody dismisses"),
    "other limit of tries": ("driver", _put("spec", "backoffLimitPerIndex", 3), "counts its tries"),
    "fewer workers": ("workers", lambda job: job["spec"].update(completions=1, parallelism=1), "size"),
}  # fmt: skip


@pytest.mark.process
@needs_kubectl
def test_broken_pair_of_jobs_is_reported(job: Path) -> None:
    _, folder = deploy(job, *SIZED, "--driver-memory", "3GiB")
    rendered = render(folder)
    assert problems(rendered) == []
    for what, (which, change, message) in BROKEN_APART.items():
        manifests = copy.deepcopy(rendered)
        for manifest in manifests:
            if manifest["kind"] == "Job" and manifest["metadata"]["labels"].get(COMPONENT, "driver") == which:
                change(manifest)
        assert message in "\n".join(problems(manifests)), what


SIZED = ("--volume-claim", "c", "--memory", "2GiB")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (("", ""), [], "pods cannot reach it, expected a URL s3://…, gs://…, az://…, or a path below /data with --volume-claim"),
        (("/data/a.csv", "a.csv"), ["--volume-claim", "c"], ":4: step 1 (import): a.csv: pods cannot reach it"),
        (("/data/a.csv", "/data/../etc/a.csv"), ["--volume-claim", "c"], "pods cannot reach it"),
        (("s3://studies/icqf.model", "other/icqf.model"), ["--volume-claim", "c"], "icqf.model: pods cannot reach it"),
        (('state = "/data/state"', ""), ["--volume-claim", "c"], "[job] has no 'state'"),
        (('[job]', '[job]\nscheduler = "tcp://a:1"'), ["--volume-claim", "c"], "'scheduler' is set by the manifests"),
        (("", ""), ["--volume-claim", "c"], "--memory is missing"),
        (("", ""), ["--volume-claim", "c", "--memory", "10MiB"], "'10MiB' is too little for a pod, expected 1GiB or more"),
        (("", ""), ["--volume-claim", "c", "--memory", "2GiB", "--image", "dfact:latest"], "expected one with a digest"),
        (("", ""), ["--volume-claim", "c", "--memory", "2GiB", "--name", "My_job"], "of the characters a-z, 0-9 and -"),
        (("", ""), ["--volume-claim", "c", "--memory", "2GiB", "--env", "AWS_SECRET_ACCESS_KEY=x"], "looks like a credential"),
        (("", ""), ["--volume-claim", "c", "--memory", "2GiB", "--env", "here"], "expected NAME=VALUE"),
        (("", ""), [*SIZED, "--workers", "2", "--min-workers", "3"], "--min-workers is 3, expected at most 2"),
        (("", ""), [*SIZED, "--disk", "huge"], "'--disk': 'huge' is not a size, expected such as 8GiB"),
        (("", ""), [*SIZED, "--driver-memory", "1MiB"], "'--driver-memory': '1MiB' is too little for a pod, expected 1GiB or more"),
        (("", ""), [*SIZED, "--node-selector", "pool"], "--node-selector is 'pool', expected KEY=VALUE"),
        (("", ""), [*SIZED, "--toleration", "spot:Never"], "--toleration is 'spot:Never', expected a taint KEY[=VALUE][:EFFECT]"),
        (("", ""), [*SIZED, "--priority-class", "High"], "--priority-class is 'High', expected a PriorityClass's name"),
        (("", ""), [*SIZED, "--spread", "a b"], "--spread is 'a b', expected a label of nodes"),
        (("", ""), [*SIZED, "--pull-secret", "My"], "--pull-secret is 'My', expected a Secret's name"),
        (("", ""), [*SIZED, "--queue", "a/b"], "--queue is 'a/b', expected the name of a LocalQueue"),
        (("", ""), [*SIZED, "--namespace", "A"], "--namespace is 'A', expected a name"),
        (('components', 'componens'), ["--volume-claim", "c"], ""),
    ],
)  # fmt: skip
def test_job_that_cannot_run_is_refused(
    change: tuple[str, str], options: list[str], message: str, job: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job.write_text(job.read_text().replace(*change) if change[0] else job.read_text())
    code, folder = deploy(job, *options)
    assert code in (1, 2)
    assert message in " ".join(capfd.readouterr().err.split("\n"))
    assert not folder.exists()


def test_a_checkpoint_in_another_store_is_reachable_too(job: Path) -> None:
    job.write_text(job.read_text() + 'checkpoint = "gs://scratch/checkpoint"\n')
    code, folder = deploy(job, *SIZED)
    assert code == 0
    assert {"components/gcs", "components/s3"} < set(yaml.safe_load((folder / "kustomization.yaml").read_text())["components"])


def test_manifests_that_are_written_again_have_no_parts_of_earlier_ones(job: Path) -> None:
    deploy(job, *SIZED, "--driver-cpu", "1")
    _, folder = deploy(job, *SIZED, "--driver-cpu", "1", "--overwrite")
    assert (folder / "components" / "workers").is_dir()
    (folder / "notes.txt").write_text("mine")
    _, folder = deploy(job, *SIZED, "--overwrite")
    assert not (folder / "components" / "workers").exists()
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_second_writer_of_manifests_leaves_those_of_the_first(
    job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    second: list[int] = []
    copy_tree = shutil.copytree

    def copy_and_begin_again(source: Path, target: Path, *others: Any, **options: Any) -> None:
        if not second:
            second.append(0)
            assert not (target.parent / "kustomization.yaml").exists()
            second[0] = deploy(job, *SIZED, "--overwrite")[0]
        copy_tree(source, target, *others, **options)

    deploy(job, *SIZED, "--driver-cpu", "1")
    monkeypatch.setattr("dfact.batch.kustomization.shutil.copytree", copy_and_begin_again)
    code, folder = deploy(job, *SIZED, "--driver-cpu", "1", "--overwrite")
    assert (code, second) == (0, [1])
    assert "kustomization.yaml is being written by process" in capfd.readouterr().err
    assert (folder / "components" / "workers").is_dir()
    assert not list(folder.glob("*.incomplete-*"))


def test_failed_deploy_leaves_nothing_that_kubectl_accepts(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = deploy(job, *SIZED)
    with monkeypatch.context() as context:
        context.setattr("dfact.batch.kustomization.shutil.copytree", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        assert deploy(job, *SIZED, "--overwrite")[0] == 1
    assert not (folder / "kustomization.yaml").exists()
    assert deploy(job, *SIZED, "--overwrite")[0] == 0
    assert (folder / "kustomization.yaml").exists()


def test_folder_with_files_is_left_unchanged(job: Path) -> None:
    (job.parent / "deployed").mkdir()
    (job.parent / "deployed" / "kustomization.yaml").write_text("mine")
    assert deploy(job, "--volume-claim", "c", "--memory", "2GiB")[0] == 1
    assert (job.parent / "deployed" / "kustomization.yaml").read_text() == "mine"


def test_a_file_is_no_folder_for_manifests(job: Path) -> None:
    (job.parent / "deployed").write_text("mine")
    code, folder = deploy(job, "--volume-claim", "c", "--memory", "2GiB", "--overwrite")
    assert (code, folder.read_text()) == (1, "mine")


@dataclass(frozen=True)
class Rows:
    """A row source with the facts that a plan needs; its rows are never read."""

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]" = field(default_factory=lambda: np.dtype(np.uint8))
    chunk_rows: int = 16384
    row_bytes: int = 60
    is_sparse: bool = False
    is_fetched: bool = False

    @property
    def layout(self) -> Layout:
        return Layout.of(self.shape)


def test_pods_get_the_memory_of_the_plan(job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    dataset = as_dataset(planted_answers(300, 60, 3, seed=0).astype(np.float32))
    monkeypatch.setattr("dfact.batch.kubernetes._is_readable", lambda _: True)
    monkeypatch.setattr("dfact.data.stored_dataset.open_dataset", lambda _: dataset)
    step = '[[step]]\nrun = "fit icqf"\ndata = "s3://b/a.zarr"\nmodel = "s3://b/a.model"\nsolver = "admm"\n'
    job.write_text('[job]\nstate = "s3://b/state"\n' + step)

    def size(*options: str) -> int:
        code, folder = deploy(job, "--overwrite", *options)
        assert code == 0, capfd.readouterr().err
        limits = yaml.safe_load((folder / "job.yaml").read_text())["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
        return int(limits["memory"])

    assert size() == 2 << 30
    dataset = replace(dataset, source=Rows((20_000_000, 60)), missing_code=255)
    few, many = size("--workers", "2"), size("--workers", "16")
    assert 2 << 30 < many < few
    for workers, memory in ((2, few), (16, many)):  # the memory suffices and half of it does not
        planned = [
            dfact.plan(dfact.ICQF(solver="admm", executor=PlannedWorkers(workers, 2, part, 20 << 30)), dataset)
            for part in (memory, memory // 2)
        ]
        assert [plan.fits and not plan.spilled for plan in planned] == [True, False]
    assert size("--memory", "2GiB", "--workers", "16") == 2 << 30, "the rest of the state lies on the pods' disks"
    assert size("--workers", "16", "--min-workers", "2") == few, "the plan holds when the job starts with two"
    assert deploy(job, "--overwrite", "--memory", "2GiB", "--workers", "2", "--disk", "1GiB")[0] == 1
    message = capfd.readouterr().err
    assert (
        "of its state do not fit into 2 pods of 2.00 GiB, nor on the 0.80 GiB of disk that each may use; raise --memory, --disk or"
        in message
    )
    assert deploy(job, "--overwrite", "--memory", "1GiB", "--cpu", "64")[0] == 1
    assert "fit icqf): --memory is 1.00 GiB, expected " in capfd.readouterr().err


# The processes of a job

_SRUN = """#!/bin/sh
# Stands in for srun: run all tasks of the job and exit with their highest exit code.
while [ "${1#--}" != "$1" ]; do shift; done
number=0 highest=0 tasks=""
while [ "$number" -lt "$SLURM_NTASKS" ]; do
    SLURM_PROCID=$number DFACT_LOST_SCHEDULER_EXIT=75 "$@" > "$SLURM_SUBMIT_DIR/../task-$number.log" 2>&1 & tasks="$tasks $!"
    number=$((number + 1))
done
for task in $tasks; do
    wait "$task"; code=$?
    echo "$code" >> "$SLURM_SUBMIT_DIR/../codes"
    [ "$code" -gt "$highest" ] && highest=$code
done
exit "$highest"
"""


_HELD = """
# The driver's sitecustomize: wait after the first pass until a stop is requested.
import sys
if "run" in sys.orig_argv:
    import time
    from dfact import signals
    from dfact.engine.checkpoint import CheckpointedSession
    save = CheckpointedSession._save_if_due

    def held(session):
        while signals.requested_signal() is None:
            time.sleep(0.01)
        save(session)

    CheckpointedSession._save_if_due = held
"""


def test_the_path_of_the_batch_script_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "--slurm-script"]) == 0
    assert Path(capsys.readouterr().out.rstrip("\n")) == MANIFESTS / "slurm" / "job.sbatch"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Run the batch script as Slurm does, with all tasks on this machine."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {"srun": _SRUN, "scontrol": '#!/bin/sh\n[ "$1" = show ] && echo 127.0.0.1 || echo "$@" >> requeued\n'}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tmp_path / "source").mkdir()
    known = {name: value for name, value in os.environ.items() if not name.startswith(("DASK_", "SLURM_", "DFACT_"))}
    given = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "a[1-2]", "SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "1"}
    given |= {"SLURM_MEM_PER_CPU": "2048", "SLURM_SUBMIT_DIR": str(tmp_path / "source"), "DFACT_BIN": str(Path(sys.executable).parent)}
    given |= {"PATH": f"{tools}:{os.environ['PATH']}", "DASK_DFACT__LEAVE_TIMEOUT": f"{PATIENCE}s"}

    started: list[subprocess.Popen[bytes]] = []

    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "sitecustomize.py").write_text(_HELD)

    def start(job: Path, **settings: str) -> "subprocess.Popen[bytes]":
        command = ["bash", str(MANIFESTS / "slurm" / "job.sbatch"), str(job)]
        with (tmp_path / "batch.log").open("ab") as log:
            environment = known | given | settings
            started.append(subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True))
        return started[-1]

    yield start
    for batch in started:  # and the processes that it started
        with suppress(ProcessLookupError):
            os.killpg(batch.pid, signal.SIGKILL)
        batch.wait()


@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.faults
@pytest.mark.timeout(4 * PATIENCE)
def test_stopped_batch_job_resumes(slurm: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path) -> None:
    answers = planted_answers(4000, 40, 3, seed=1)
    dataset = dfact.import_array(answers, tmp_path / "a.zarr")
    job = tmp_path / "job.toml"
    job.write_text(
        f'[job]\nstate = "{tmp_path}/state"\n[[step]]\nrun = "fit icqf"\ndata = "a.zarr"\nmodel = "icqf.model"\ncomponents = 3\n'
        'max-iter = 20\ntol = 0\ninit = "random"\nseed = 0\n'
    )
    driver = tmp_path / "task-0.log"
    folders = [str(tmp_path / "held"), os.environ.get("PYTHONPATH", "")]
    batch = slurm(job, PYTHONPATH=os.pathsep.join(filter(None, folders)))
    until = time.monotonic() + PATIENCE
    while not list(tmp_path.glob("state.*/steps-*")):  # the first checkpoint exists
        assert batch.poll() is None, driver.read_text()
        assert time.monotonic() < until, driver.read_text()
        time.sleep(0.05)
    (srun,) = (child for child in psutil.Process(batch.pid).children() if "srun" in " ".join(child.cmdline()))
    for process in srun.children(recursive=True):  # as --signal=USR1 reaches, with some settings of Slurm, all processes of the tasks
        process.send_signal(signal.SIGUSR1)
    assert batch.wait(timeout=PATIENCE) == 143, driver.read_text()
    assert (tmp_path / "requeued").read_text() == f"requeue {os.getpid()}\n"
    assert "stopped" in driver.read_text()
    assert f'"run_id": "slurm-{os.getpid()}"' in driver.read_text()
    assert (tmp_path / "codes").read_text().split() == ["143", "75"]
    (tmp_path / "codes").unlink()
    assert slurm(job, DFACT_DISMISS_WORKERS="true").wait(timeout=PATIENCE) == 0, driver.read_text()
    assert (tmp_path / "codes").read_text().split() == ["0", "0"], "the worker has been dismissed"
    assert "Resuming from step" in driver.read_text()
    found, expected = (
        dfact.load_model(tmp_path / "icqf.model"),
        dfact.ICQF(3, max_iter=20, tol=0, init="random", random_state=0).fit(dataset),
    )
    np.testing.assert_array_equal(found.components_, expected.components_)
    np.testing.assert_array_equal(found.factors_[:], expected.factors_[:])


_RECORDED_SRUN = """#!/bin/sh
# Stands in for srun: record its arguments and settings. The driver ends with DRIVER_CODE, and a worker has been killed.
echo "$@" > "$SLURM_SUBMIT_DIR/../arguments"
env > "$SLURM_SUBMIT_DIR/../settings"
stat -c '%a %n' "${DFACT_STATUS_FILE%/*}" "${DFACT_STATUS_FILE%/*}"/*.pem > "$SLURM_SUBMIT_DIR/../modes"
echo "$DRIVER_CODE" > "$DFACT_STATUS_FILE"
exit 137
"""


@pytest.mark.further
@pytest.mark.process
@pytest.mark.parametrize(
    ("driver", "restarts", "requeued"),
    [("0", "0", False), ("1", "0", False), ("143", "0", True), ("143", "19", True), ("143", "20", False)],
)
def test_batch_script(driver: str, restarts: str, requeued: bool, slurm: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path) -> None:
    (tmp_path / "tools" / "srun").write_text(_RECORDED_SRUN)
    (tmp_path / "job.toml").write_text("")
    for folder in (f".dfact-{os.getpid()}-abcdef", ".dfact-1-abcdef"):  # of a script that was killed
        (tmp_path / folder).mkdir()
    batch = slurm(tmp_path / "job.toml", DRIVER_CODE=driver, SLURM_RESTART_COUNT=restarts, SLURM_CPUS_PER_TASK="4")
    assert batch.wait(timeout=PATIENCE) == int(driver), (tmp_path / "batch.log").read_text()  # the killed worker does not count
    assert (tmp_path / "requeued").exists() is requeued
    arguments = (tmp_path / "arguments").read_text().split()
    assert {"--cpus-per-task=4", "--wait=0", "--kill-on-bad-exit=0"} <= set(arguments)
    modes = {Path(name).name: mode for mode, name in (line.split() for line in (tmp_path / "modes").read_text().splitlines())}
    assert modes.pop("cert.pem") in ("600", "644")
    assert (modes.pop("key.pem"), *modes.values()) == ("600", "700")
    settings = dict(line.split("=", 1) for line in (tmp_path / "settings").read_text().splitlines() if "=" in line)
    assert settings["DASK_SCHEDULER_ADDRESS"].startswith("tls://")
    assert settings["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "true"
    assert list(tmp_path.glob(".dfact*")) == [tmp_path / ".dfact-1-abcdef"]  # of another job


_DASK = """#!/bin/sh
# Stands in for dask worker: exits with 0 a while after SIGTERM, as one that hands its partitions over.
stat -c %a "$TMPDIR" > "$REPORTS/mode"
echo "$TMPDIR" > "$REPORTS/folder"
trap 'touch "$REPORTS/stopped"' TERM
touch "$REPORTS/started"
until [ -e "$REPORTS/end" ]; do sleep 0.02; done
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Start the entry point of a worker, with the stand-in."""
    (tmp_path / "dask").write_text(_DASK)
    (tmp_path / "dask").chmod(0o755)
    known = {name: value for name, value in os.environ.items() if not name.startswith(("DASK_", "SLURM_", "DFACT_"))}
    given = {"JOB_COMPLETION_INDEX": "1", "DASK_SCHEDULER_ADDRESS": "tcp://127.0.0.1:9", "DFACT_THREADS": "1", "DFACT_MEMORY": "1GiB"}
    given |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REPORTS": str(tmp_path), "TMPDIR": str(tmp_path)}
    started: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        (tmp_path / "started").unlink(missing_ok=True)
        command = [str(MANIFESTS / "node-entrypoint"), "job.toml"]
        started.append(subprocess.Popen(command, env=known | given, start_new_session=True))
        wait_until((tmp_path / "started").exists, "the process has started", PATIENCE)
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.process
def test_a_stopped_worker_is_notified_at_once(worker: Callable[[], "subprocess.Popen[bytes]"], tmp_path: Path) -> None:
    process = worker()
    process.send_signal(signal.SIGUSR1)  # the time limit of a batch job: the driver stops, and needs the worker
    process.send_signal(signal.SIGTERM)
    wait_until((tmp_path / "stopped").exists, "the process has stopped", PATIENCE)
    assert process.poll() is None  # it waits for the worker to hand its partitions over
    (tmp_path / "end").touch()
    assert process.wait(timeout=PATIENCE) == 75
    wait_until(lambda: not _group(process.pid), "its group has ended", PATIENCE)
    assert (tmp_path / "mode").read_text().strip() == "700"
    assert not Path((tmp_path / "folder").read_text().strip()).exists()


@pytest.mark.process
def test_what_killed_tasks_have_left_is_removed(worker: Callable[[], "subprocess.Popen[bytes]"], tmp_path: Path) -> None:
    killed = worker()
    left = Path((tmp_path / "folder").read_text().strip())
    (left / "dfact-state-x").mkdir()
    assert not is_stale(left.name)  # both know each other's names
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert is_stale(left.name)
    here = os.getpid()
    others = [tmp_path / left.name.replace(f"-{host()}.", "-node7.x.1."), tmp_path / f"dfact-task-{host()}.{here}.{process_start(here)}.x"]
    for folder in others:
        folder.mkdir()
    linked = tmp_path / left.name.replace(left.suffix, ".link")
    linked.symlink_to(others[0])
    worker()
    own = Path((tmp_path / "folder").read_text().strip())
    assert sorted(tmp_path.glob("dfact-task-*")) == sorted([*others, linked, own])


def _group(leader: int) -> list[str]:
    """Return the commands of the living processes of a process group."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found


_ENDING = """#!/bin/sh
# Stands in for dask worker, dask scheduler and dfact run: all that is known of them is how they end.
case "${0##*/} $1" in
    "dask worker") [ -z "$DISMISSED" ] || touch "$TMPDIR/dismissed"; exit "$CODE" ;;
    "dask scheduler") while [ "$1" != --scheduler-file ]; do shift; done; touch "$2"; exec sleep 1000 ;;
    "dfact run") exit "$CODE" ;;
    "python -m") echo "$2 $DASK_SCHEDULER_ADDRESS" > "$REPORTS/dismissal" ;;
esac
"""


@pytest.fixture
def ending(tmp_path: Path) -> Callable[..., int]:
    """Run ``node-entrypoint`` with processes that end with a code; returns its own."""
    for name in ("dask", "dfact", "python"):
        (tmp_path / name).write_text(_ENDING)
        (tmp_path / name).chmod(0o755)
    known = {name: value for name, value in os.environ.items() if not name.startswith(("DASK_", "SLURM_", "DFACT_"))}
    given = {"DASK_SCHEDULER_ADDRESS": "tls://dfact-0.dfact:8786", "DFACT_THREADS": "1", "DFACT_MEMORY": "1GiB", "DISMISSED": ""}
    given |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REPORTS": str(tmp_path), "TMPDIR": str(tmp_path)}

    def run(code: int, **settings: str) -> int:
        command = [str(MANIFESTS / "node-entrypoint"), "job.toml"]
        environment = known | given | {"CODE": str(code)} | settings
        return subprocess.run(command, env=environment, timeout=PATIENCE, check=False).returncode

    return run


@pytest.mark.process
def test_workers_do_not_decide_whether_the_job_has_failed(ending: Callable[..., int]) -> None:
    worker = {"JOB_COMPLETION_INDEX": "1"}
    assert [ending(code, **worker) for code in (0, 1, 2, 137, 139)] == [75, 75, 2, 75, 75]
    assert ending(0, DFACT_LOST_SCHEDULER_EXIT="0", **worker) == 0, "under Slurm"
    apart = {"JOB_COMPLETION_INDEX": "0", "DFACT_ROLE": "worker", "DFACT_NO_SCHEDULER_EXIT": "69"}
    assert [ending(code, **apart) for code in (0, 1, 2, 137)] == [75, 69, 2, 75]
    assert ending(0, DISMISSED="yes", **apart) == 0, "the driver is done, and with it the Job of the workers"


@pytest.mark.further
@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "failures", "told"), [(0, "0", True), (1, "0", False), (1, "6", True), (2, "0", True), (143, "6", False), (137, "5", False)]
)
def test_driver_that_is_not_restarted_dismisses_its_workers(
    code: int, failures: str, told: bool, ending: Callable[..., int], tmp_path: Path
) -> None:
    apart = {"DFACT_DISMISS_WORKERS": "true", "DFACT_MAX_FAILURES": "6", "DFACT_FAILURES": failures}
    assert ending(code, JOB_COMPLETION_INDEX="0", **apart) == code
    assert (tmp_path / "dismissal").exists() is told
    if told:
        assert (tmp_path / "dismissal").read_text() == "dfact.engine.cluster.dismissal tls://127.0.0.1:8786\n"
        (tmp_path / "dismissal").unlink()
    assert ending(code, JOB_COMPLETION_INDEX="0") == code
    assert not (tmp_path / "dismissal").exists(), "workers of the same Job end with it"


@pytest.mark.further
@pytest.mark.process
@pytest.mark.faults
def test_workers_without_a_scheduler_end_with_a_code_that_counts_as_no_try() -> None:
    entrypoint = MANIFESTS / "node-entrypoint"
    environment = {"JOB_COMPLETION_INDEX": "1", "DASK_SCHEDULER_ADDRESS": "tcp://127.0.0.1:9", "DFACT_THREADS": "1", "DFACT_MEMORY": "1GiB"}
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DFACT_DEATH_TIMEOUT": "1"}
    known = {name: value for name, value in os.environ.items() if not name.startswith(("DASK_", "SLURM_"))}
    done = subprocess.run([str(entrypoint), "job.toml"], env=known | environment | path, capture_output=True, timeout=400, check=False)
    assert done.returncode == 75, done.stderr
