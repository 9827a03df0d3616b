"""Rules for Kubernetes manifests, which are rendered and checked without a cluster: by schemas, and beyond them.

Rendering needs kubectl, the schemas need kubernetes-validate.
"""

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dask.utils import parse_timedelta

from dfact.engine.cluster.certificate_names import PRELOAD

ROOT = Path(__file__).resolve().parents[2]
DEPLOY, MANIFESTS = ROOT / "deploy", ROOT / "dfact" / "batch" / "manifests"
OPERATOR = "dask-kubernetes==2026.3.0"
VERSIONS = ("1.33", "1.37")
"""Of Kubernetes: the least that the Job needs, and the newest that kubernetes-validate knows."""
PORT = 8786
METRICS_PORT = 9464
COMPONENT = "app.kubernetes.io/component"
"""Label of a Job of workers alone."""

Manifest = dict[str, Any]


def render(folder: Path) -> list[Manifest]:
    """Return the objects that kubectl would apply."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"kubectl kustomize {folder}: {done.stderr.strip()}")
    return list(yaml.safe_load_all(done.stdout))


# Schemas


def schema_problems(manifests: list[Manifest], version: str, operator: "dict[str, Any]") -> Iterator[str]:
    """Return the fields that Kubernetes of this version, or the Dask operator, would refuse or drop."""
    import kubernetes_validate
    from jsonschema import Draft7Validator

    for manifest in manifests:
        name = f"{manifest['kind']}/{manifest['metadata']['name']}"
        if manifest["kind"] in operator:
            for error in Draft7Validator(operator[manifest["kind"]]).iter_errors(manifest):
                yield f"{name}: {'.'.join(map(str, error.absolute_path))}: {error.message}"
            continue
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{name}: {'.'.join(map(str, error.path))}: {error.message}"
        except kubernetes_validate.SchemaNotFoundError:
            yield f"{name}: no schema in Kubernetes {version}"


def operator_schemas(folder: Path) -> dict[str, Any]:
    """Return strict schemas of the operator's resources by kind, from its wheel, which is downloaded to the folder."""
    if not (wheels := list(folder.glob("*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), OPERATOR]
        subprocess.run(command, check=True, capture_output=True, timeout=100)
        wheels = list(folder.glob("*.whl"))
    schemas = {}
    with zipfile.ZipFile(wheels[0]) as wheel:
        for name in wheel.namelist():
            if "/crds/" in name:
                definition = yaml.load(wheel.read(name), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
                schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
                schema.setdefault("properties", {}).update(
                    apiVersion={"type": "string"}, kind={"type": "string"}, metadata={"type": "object"}
                )
                schemas[definition["spec"]["names"]["kind"]] = _closed(schema)
    return schemas


def _closed(schema: Any) -> Any:
    """Return the schema as JSON schema without additional properties."""
    if isinstance(schema, list):
        return [_closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if closed.pop("x-kubernetes-int-or-string", False):
        closed.pop("type", None)
        closed["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    open_ = closed.get("x-kubernetes-preserve-unknown-fields", False)
    if isinstance(closed.get("properties"), dict) and "additionalProperties" not in closed and not open_:
        closed["additionalProperties"] = False
    return closed


# Rules beyond schemas


@dataclass(frozen=True)
class Pod:
    """A pod that a manifest creates."""

    name: str
    spec: Manifest
    labels: dict[str, str]
    settings: dict[str, str]
    """Its environment, as far as ConfigMaps and plain values tell it."""
    count: int
    """Number of such pods."""

    @property
    def container(self) -> Manifest:
        return self.spec["containers"][0]  # type: ignore[no-any-return]


def pods(manifests: list[Manifest]) -> list[Pod]:
    """Return all pods; those of a DaskJob as the operator creates them."""
    maps = {m["metadata"]["name"]: m["data"] for m in manifests if m["kind"] == "ConfigMap"}
    found = []
    for manifest in manifests:
        labels = manifest["metadata"].get("labels", {})
        if manifest["kind"] == "Job":
            template = manifest["spec"]["template"]
            name = "Job" if manifest["metadata"]["labels"].get(COMPONENT) is None else "Job of workers"
            found.append((name, template["spec"], template["metadata"]["labels"], manifest["spec"]["completions"]))
        elif manifest["kind"] == "DaskJob":
            spec = manifest["spec"]
            own = labels | {"dask.org/cluster-name": manifest["metadata"]["name"]}
            parts = {"job-runner": spec["job"], **spec["cluster"]["spec"]}
            found += [
                (f"DaskJob {part}", parts[part]["spec"], own | {"dask.org/component": part}, parts[part].get("replicas", 1))
                for part in ("job-runner", "worker", "scheduler")
            ]
        elif manifest["kind"] == "Pod":
            found.append((f"Pod {manifest['metadata']['name']}", manifest["spec"], labels, 1))
        elif manifest["kind"] == "Deployment":
            template = manifest["spec"]["template"]
            name, replicas = f"Deployment {manifest['metadata']['name']}", manifest["spec"]["replicas"]
            found.append((name, template["spec"], template["metadata"]["labels"], replicas))
    return [Pod(name, spec, labels, _environment(spec, maps), count) for name, spec, labels, count in found]


def _environment(spec: Manifest, maps: dict[str, dict[str, str]]) -> dict[str, str]:
    container = spec["containers"][0]
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= maps.get(source.get("configMapRef", {}).get("name"), {})
    return found | {entry["name"]: entry["value"] for entry in container.get("env", []) if "value" in entry}


def problems(manifests: list[Manifest]) -> list[str]:
    """Return the settings that would not work or not be safe."""
    found: list[str] = []
    for pod in pods(manifests):
        checks = (*_security(pod), *_references(pod, manifests), *_settings(pod), *_network(pod, manifests))
        found += [f"{pod.name}: {problem}" for problem in checks]
    for manifest in manifests:
        if manifest["kind"] == "Job":
            found += [f"Job: {problem}" for problem in _job(manifest, manifests)]
    return found + list(_disruptions(manifests)) + list(_credentials(manifests)) + list(_enums(manifests))


def _security(pod: Pod) -> Iterator[str]:
    of_pod, of_container = pod.spec.get("securityContext", {}), pod.container.get("securityContext", {})
    capabilities = of_container.get("capabilities", {})
    checks = {
        "may run as root": of_pod.get("runAsNonRoot") is True and of_pod.get("runAsUser", 0) > 0,
        "no seccomp profile": of_pod.get("seccompProfile", {}).get("type") == "RuntimeDefault",
        "privileged": not of_container.get("privileged"),
        "may gain privileges": of_container.get("allowPrivilegeEscalation") is False,
        "the root is writable": of_container.get("readOnlyRootFilesystem") is True,
        "keeps capabilities": capabilities.get("drop") == ["ALL"] and not capabilities.get("add"),
        "shares the node's namespaces": not any(pod.spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")),
        "mounts the node's files": not any("hostPath" in volume for volume in pod.spec.get("volumes", [])),
        "opens a port of the node": not any("hostPort" in port for port in pod.container.get("ports", [])),
        "has a token of the cluster's API": pod.spec.get("automountServiceAccountToken") is False,
        "gets the addresses of all services": pod.spec.get("enableServiceLinks") is False,
        "the image has no version": re.search(r"@sha256:|:(?!latest$)[\w.-]+$", pod.container["image"]) is not None,
        "more than one container": len(pod.spec["containers"]) == 1 and not pod.spec.get("initContainers"),
    }
    yield from (problem for problem, holds in checks.items() if not holds)
    resources = pod.container.get("resources", {})
    if resources.get("limits") != resources.get("requests") or set(resources.get("limits", {})) != {"cpu", "memory", "ephemeral-storage"}:
        yield "the resources are not promised"
    read_only = {mount["name"] for mount in pod.container.get("volumeMounts", []) if mount.get("readOnly")}
    for volume in pod.spec.get("volumes", []):
        name = volume["name"]
        if "emptyDir" in volume and "sizeLimit" not in (volume["emptyDir"] or {}):
            yield f"the volume {name} may fill the node's disk"
        if (
            "secret" in volume and volume["secret"].get("defaultMode", 0o644) & 0o337
        ):  # 0440: the kubelet gives the group what the owner has
            yield f"others can read the secret {name}, or the pod can change it"
        if ("secret" in volume or "configMap" in volume) and name not in read_only:
            yield f"the volume {name} is writable"


def _disruptions(manifests: list[Manifest]) -> Iterator[str]:
    """Yield drains of nodes that stop all pods at once, or never end."""
    found = pods(manifests)
    budgets = [manifest["spec"] for manifest in manifests if manifest["kind"] == "PodDisruptionBudget"]
    kept = [budget for budget in budgets if all(_matches(budget["selector"].get("matchLabels"), pod.labels) for pod in found)]
    if len(budgets) != 1 or not kept:
        yield "no PodDisruptionBudget of all pods: a drain may stop them at once"
        return
    least, count = kept[0].get("minAvailable"), sum(pod.count for pod in found)
    if any(pod.name == "Job" for pod in found):
        count = 1 + int(found[0].settings.get("DASK_DFACT__EXPECTED_WORKERS", -1))  # further workers may be missing
    if least != count - 1:
        yield f"the PodDisruptionBudget keeps {least} of {count} pods, expected all but one"
    if kept[0].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
        yield "pods that do not start hold up a drain"


def _references(pod: Pod, manifests: list[Manifest]) -> Iterator[str]:
    there = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    volumes = {volume["name"] for volume in pod.spec.get("volumes", [])}
    mounted = {mount["name"] for mount in pod.container.get("volumeMounts", [])}
    if volumes != mounted:
        yield f"volumes and mounts differ: {sorted(volumes ^ mounted)}"
    named = [("ConfigMap", volume["configMap"]["name"]) for volume in pod.spec.get("volumes", []) if "configMap" in volume]
    named += [("ConfigMap", source["configMapRef"]["name"]) for source in pod.container.get("envFrom", []) if "configMapRef" in source]
    named.append(("ServiceAccount", pod.spec.get("serviceAccountName")))
    yield from (f"there is no {kind} {name}" for kind, name in named if (kind, name) not in there)
    # Claims may exist already, but then no other is created here.
    claims = {volume["persistentVolumeClaim"]["claimName"] for volume in pod.spec.get("volumes", []) if "persistentVolumeClaim" in volume}
    if (
        lost := {name for kind, name in there if kind == "PersistentVolumeClaim"} ^ claims
        if "PersistentVolumeClaim" in dict(there)
        else set()
    ):
        yield f"claims that are made and mounted differ: {sorted(lost)}"
    known: set[str] = set()
    for entry in pod.container.get("env", []):
        if unknown := set(re.findall(r"\$\(([^)]+)\)", entry.get("value", ""))) - known:
            yield f"{entry['name']} refers to {sorted(unknown)}, which is not defined before it"
        known.add(entry["name"])
        if (field := entry.get("valueFrom", {}).get("resourceFieldRef")) and field["containerName"] != pod.container["name"]:
            yield f"there is no container {field['containerName']}"
    ports = {port["name"] for port in pod.container.get("ports", [])} | {port["containerPort"] for port in pod.container.get("ports", [])}
    for probe in (pod.container.get(f"{kind}Probe", {}) for kind in ("liveness", "readiness", "startup")):
        for action in ("httpGet", "tcpSocket"):
            if action in probe and probe[action]["port"] not in ports:
                yield f"a probe of port {probe[action]['port']}, which is not open"


def _settings(pod: Pod) -> Iterator[str]:
    of = pod.settings

    def seconds(name: str) -> float:
        return float(parse_timedelta(of.get(f"DASK_{name}", "0s")))

    if seconds("DISTRIBUTED__COMM__TIMEOUTS__TCP") < 11:
        yield "Dask refuses a tcp timeout of less than 11 s"
    if seconds("DISTRIBUTED__SCHEDULER__WORKER_TTL") < 60:
        yield "no worker-ttl of a minute or more"
    if int(of.get("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", 3)) <= 3:
        yield "a task may lose too few workers"
    mounts = [mount["mountPath"] for mount in pod.container.get("volumeMounts", [])]
    for name, value in of.items():
        if value.startswith("/") and "TLS" in name and not any(value.startswith(f"{mount}/") for mount in mounts):
            yield f"{name} is {value}, where nothing is mounted"
    encrypted = of.get("DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION") == "true"
    address = of.get("DASK_SCHEDULER_ADDRESS")
    if address and not address.startswith("tls://" if encrypted else "tcp://"):
        yield f"the address {address} does not agree with the settings of TLS"
    preloads = [f"DASK_DISTRIBUTED__{process}__PRELOAD" for process in ("SCHEDULER", "WORKER")]
    if encrypted and not (of.get("DASK_DFACT__TLS_NAME") and all(of.get(name) == PRELOAD for name in preloads)):
        yield "names on certificates are not checked"
    if address and not address.endswith(f":{PORT}"):
        yield f"the address {address} is not of port {PORT}"
    if "tmp" not in {volume["name"] for volume in pod.spec.get("volumes", [])} or "/tmp" not in mounts:
        yield "there is no place to write to"


def _job(job: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    spec, name = job["spec"], job["metadata"]["name"]
    apart = {found.name: found for found in pods(manifests) if found.name.startswith("Job")}
    of_workers = COMPONENT in job["metadata"]["labels"]
    pod = apart["Job of workers" if of_workers else "Job"]
    of_pod, container, own = pod.spec, pod.container, {entry["name"]: entry for entry in pod.container["env"]}
    rules = spec.get("podFailurePolicy", {}).get("rules", [])
    codes = {code: rule["action"] for rule in rules if "onExitCodes" in rule for code in rule["onExitCodes"]["values"]}
    disrupted = [
        rule["action"] for rule in rules for condition in rule.get("onPodConditions", []) if condition["type"] == "DisruptionTarget"
    ]
    grace, stay = of_pod.get("terminationGracePeriodSeconds", 30), parse_timedelta(pod.settings.get("DASK_DFACT__LEAVE_TIMEOUT", "25s"))
    least = int(pod.settings.get("DASK_DFACT__EXPECTED_WORKERS", -1))
    size = spec["completions"] if of_workers else spec["completions"] - 1 if len(apart) == 1 else apart["Job of workers"].count
    tries = str(spec.get("backoffLimitPerIndex"))
    driver = name if not of_workers else own["JOB_NAME"].get("value")
    checks = {
        "is not indexed": spec.get("completionMode") == "Indexed",
        "its size is not that of the settings": spec["completions"] == spec["parallelism"] and 1 <= least <= size,
        "does not end with its driver": spec.get("successPolicy")
        == {"rules": [{"succeededCount": 1} if of_workers else {"succeededIndexes": "0"}]},
        "has no limit of tries": spec.get("backoffLimitPerIndex", 0) > 0 and spec.get("maxFailedIndexes") == 0,
        "may have two drivers": spec.get("podReplacementPolicy") == "Failed" and of_pod.get("restartPolicy") == "Never",
        "a lost node counts as a failure": disrupted == ["Ignore"],
        "a lost scheduler counts as a failure of the worker": codes.get(75) == "Ignore",
        "wrong usage is tried again": codes.get(2) == "FailJob",
        "exit codes of a container that is not there": all(
            rule["onExitCodes"].get("containerName") == container["name"] for rule in rules if "onExitCodes" in rule
        ),
        "never ends": spec.get("activeDeadlineSeconds", 0) > 0 and "ttlSecondsAfterFinished" in spec,
        "a worker that is stopped hands nothing over": pod.settings.get("DASK_DISTRIBUTED__WORKER__PRELOAD") == PRELOAD,
        "no time for a checkpoint": grace >= 300 and grace - 60 <= stay <= grace - 20,  # without workers no pass ends
        "waits for ever for a scheduler": float(pod.settings.get("DFACT_DEATH_TIMEOUT", 600)) <= 3600,
        "host names are too long": len(f"{name}-{spec['completions'] - 1}") <= 63,
        "has workers that would be drivers": not of_workers or own.get("DFACT_ROLE", {}).get("value") == "worker",
        "has workers that wait for ever for a driver": not of_workers or own.get("DFACT_NO_SCHEDULER_EXIT", {}).get("value", "75") != "75",
        "has workers that nobody dismisses": of_workers or ("DFACT_DISMISS_WORKERS" in own) is (len(apart) == 2),
        "counts its tries otherwise than its driver": own.get("DFACT_MAX_FAILURES", {"value": tries})["value"] == tries,
    }
    yield from (problem for problem, holds in checks.items() if not holds)
    service = next((m for m in manifests if m["kind"] == "Service" and m["metadata"]["name"] == of_pod.get("subdomain")), None)
    if service is None or service["metadata"]["name"] != driver:
        yield "no Service gives the pods their names"
        return
    ports = {port["name"] for port in container.get("ports", [])}
    if service["spec"].get("clusterIP") != "None" or not service["spec"].get("publishNotReadyAddresses"):
        yield "the Service does not name each pod from its start"
    if not _matches(service["spec"].get("selector"), pod.labels):
        yield "the Service selects other pods"
    if any(port["port"] != PORT or port.get("targetPort") not in ports for port in service["spec"]["ports"]):
        yield "the Service has a port that no pod has"


def _matches(selector: "dict[str, str] | None", labels: dict[str, str]) -> bool:
    return bool(selector) and all(labels.get(key) == value for key, value in (selector or {}).items())


def _network(pod: Pod, manifests: list[Manifest]) -> Iterator[str]:
    policies = [
        m["spec"] for m in manifests if m["kind"] == "NetworkPolicy" and _matches(m["spec"]["podSelector"].get("matchLabels"), pod.labels)
    ]
    for direction, peers in (("Ingress", "from"), ("Egress", "to")):
        of_direction = [policy for policy in policies if direction in policy.get("policyTypes", [])]
        if not of_direction:
            yield f"no NetworkPolicy limits its {direction}"
            continue
        rules = [rule for policy in of_direction for rule in policy.get(direction.lower(), [])]
        among = {
            port["port"]
            for rule in rules
            for peer in rule.get(peers, [])
            if _matches(peer.get("podSelector", {}).get("matchLabels"), pod.labels) and "namespaceSelector" not in peer
            for port in rule.get("ports", [])
        }
        if PORT not in among:
            yield f"pods of the job cannot reach each other: {direction}"
        if direction == "Ingress" and (among != {PORT} or any(not rule.get("from") for rule in rules)):
            yield "more than the job's own port is open, or to others"
        foreign = [rule for rule in rules if any("podSelector" not in peer for peer in rule.get(peers, []))]
        if direction == "Ingress" and any(
            [port["port"] for port in rule["ports"]] != [METRICS_PORT]
            or not all(peer.get("namespaceSelector", {}).get("matchLabels") for peer in rule["from"])
            for rule in foreign
        ):
            yield "more than metrics is open to other pods, or metrics to all"
        if direction == "Egress" and not any(port["port"] == 53 for rule in rules for port in rule.get("ports", [])):
            yield "names cannot be looked up"
        if any(not rule.get("ports") for rule in rules):
            yield f"all ports are open: {direction}"
    ports = {p["containerPort"] for p in pod.container.get("ports", [])}
    if int(pod.settings.get("DFACT_WORKER_PORT", PORT)) != PORT or not ports <= {PORT, METRICS_PORT}:
        yield "workers listen where nobody may reach them"
    is_served = pod.labels.get("dask.org/component") != "scheduler"
    if pod.settings.get("DASK_DFACT__METRICS_PORT") != str(METRICS_PORT) or (is_served and METRICS_PORT not in ports):
        yield "nobody can read its metrics"
    if not pod.settings.get("DASK_DFACT__RUN_ID"):
        yield "its logs have no id of the run"


_SECRETIVE = re.compile(
    r"SECRET|PASSWORD|TOKEN|CREDENTIAL|ACCESS_KEY|ACCOUNT_KEY|(?<!TLS__SCHEDULER)(?<!TLS__WORKER)(?<!TLS__CLIENT)__KEY$"
)
_SECRET = re.compile(r"-----BEGIN|AKIA[0-9A-Z]{16}|(secret|password|token)[\w-]*\s*[=:]", re.IGNORECASE)


def _credentials(manifests: list[Manifest]) -> Iterator[str]:
    for manifest in manifests:
        if manifest["kind"] == "Secret":
            yield "there is a Secret in the manifests"
        for name, text in manifest.get("data", {}).items() if manifest["kind"] == "ConfigMap" else ():
            if _SECRETIVE.search(name) or _SECRET.search(text):
                yield f"{name} looks like a credential"
    for pod in pods(manifests):
        if pod.labels.get("dask.org/component") == "scheduler" and any("secretRef" in part for part in pod.container.get("envFrom", [])):
            yield f"{pod.name}: has credentials of a store that it does not use"
        for entry in pod.container.get("env", []):
            if _SECRETIVE.search(entry["name"]) and "value" in entry:
                yield f"{pod.name}: {entry['name']} looks like a credential"


_ENUMS = {
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "restartPolicy": {"Always", "OnFailure", "Never"},
    "completionMode": {"Indexed", "NonIndexed"},
    "podReplacementPolicy": {"Failed", "TerminatingOrFailed"},
    "action": {"Ignore", "FailJob", "FailIndex", "Count"},
    "operator": {"In", "NotIn", "Exists", "Equal"},
    "effect": {"NoSchedule", "PreferNoSchedule", "NoExecute"},
    "protocol": {"TCP", "UDP"},
    "fsGroupChangePolicy": {"OnRootMismatch", "Always"},
    "policyTypes": {"Ingress", "Egress"},
    "unhealthyPodEvictionPolicy": {"AlwaysAllow", "IfHealthyBudget"},
    "accessModes": {"ReadWriteMany", "ReadWriteOnce", "ReadOnlyMany", "ReadWriteOncePod"},
}


def _enums(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _enums(entry, key)
    elif isinstance(value, list):
        for entry in value:
            yield from _enums(entry, name)
    elif name in _ENUMS and value not in _ENUMS[name]:
        yield f"{name} is {value}, expected one of {sorted(_ENUMS[name])}"
