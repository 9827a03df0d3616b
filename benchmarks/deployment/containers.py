"""Pods as containers on one machine: the image without a registry, and a Job's pods, hardened by their manifests.

Each pod is a container in its own network namespace. The work of Kubernetes for a Job is done here in few lines:
variables, volumes, names, and the policies for failures. It needs Linux, root, podman, buildah, runc and debootstrap.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.faults.namespaces import Hosts
from benchmarks.faults.namespaces import available as namespaces_available
from tests.batch.manifest_rules import DEPLOY, ROOT, Manifest

BASE, IMAGE = "localhost/dfact-base:trixie", "localhost/dfact:0.1.0"
_UID = "3f0c9d5e-0d1f-4a52-9f0e-6b1d2c7a8e90"  # as the API would give the Job
_TOOLS = ("podman", "buildah", "runc", "debootstrap", "kubectl")
_SPACE = 8 << 30  # for base, wheels, layers and image
_PATIENCE = 1800  # seconds after which a job hangs: on a busy machine the imports alone take minutes
_CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def available() -> tuple[bool, str]:
    """Return whether containers can run on this machine and, if not, the reason."""
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        packages = "podman buildah runc debootstrap netavark aardvark-dns catatonit conmon iptables"
        return False, f"not installed: {', '.join(missing)}; apt-get install --no-install-recommends {packages}, and kubectl"
    if (free := shutil.disk_usage("/var/lib").free) < _SPACE:
        return False, f"{free >> 30} GiB of disk are free, {_SPACE >> 30} are needed"
    return namespaces_available()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)[:200]}: {done.stderr.strip()[-1500:]}")
    return done.stdout.strip()


def _configure(folder: Path) -> None:
    """Configure podman for the child processes not to raise limits, which not every root may do."""
    (folder / "containers.conf").write_text(_CONFIGURATION)
    os.environ["CONTAINERS_CONF"] = str(folder / "containers.conf")


def build_image(folder: Path) -> None:
    """Build the image of this source without the network, from a base and wheels fetched before. Unchanged layers are reused."""
    folder.mkdir(parents=True, exist_ok=True)
    _configure(folder)
    if subprocess.run(["podman", "image", "exists", BASE], check=False, capture_output=True).returncode != 0:
        root = folder / "root"
        _run("debootstrap", "--variant=minbase", "--include=ca-certificates,python3,tini", "trixie", str(root))
        _run("sh", "-c", f"tar -C {root} -c . | podman import - {BASE}")
        shutil.rmtree(root)
    digest = _run("podman", "image", "inspect", "--format", "{{.Digest}}", BASE)
    wheels = folder / "wheels"
    version = _run("podman", "run", "--rm", "--network", "none", BASE, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(wheels),
        "--only-binary",
        ":all:",
        "--python-version",
        version,
    ]
    for lock in ("requirements.lock", "build.lock"):
        _run(*pip, "--require-hashes", "--requirement", str(DEPLOY / "container" / lock))
    revision = _run("git", "-C", str(ROOT), "rev-parse", "HEAD")
    arguments = [f"BASE={BASE.rpartition(':')[0]}@{digest}", "PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheels", f"REVISION={revision}"]
    build = [
        "buildah",
        "bud",
        "--layers",
        "--runtime",
        "runc",
        "--isolation",
        "oci",
        "--network",
        "none",
        "--volume",
        f"{wheels}:/wheels:ro",
    ]
    given = [part for argument in arguments for part in ("--build-arg", argument)]
    _run(*build, *given, "--tag", IMAGE, "--file", str(DEPLOY / "container" / "Containerfile"), str(ROOT))


@dataclass
class Job:
    """A rendered Job, run as by the Job controller and the kubelets: start its pods, and replace those that fail."""

    manifests: list[Manifest]
    hosts: Hosts
    """With a host for each index, of its number as name."""
    secrets: dict[str, dict[str, str]]
    """Of which the manifests know the names alone."""
    starts: list[int] = field(default_factory=list)
    """How many pods each index has had."""
    failures: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._job = next(manifest for manifest in self.manifests if manifest["kind"] == "Job")
        self._spec = self._job["spec"]
        self._began = time.monotonic()
        _configure(self.hosts.folder)

    @property
    def name(self) -> str:
        return str(self._job["metadata"]["name"])

    def __enter__(self) -> Self:
        count = self._spec["completions"]
        self.starts, self.failures = [0] * count, [0] * count
        for index in range(count):
            self.start(index)
        return self

    def __exit__(self, *_: object) -> None:
        for index in range(self._spec["completions"]):
            with contextlib.suppress(RuntimeError):  # it has been removed already
                _run("podman", "rm", "--force", "--time", "1", self._container(index))

    def _container(self, index: int) -> str:
        return f"{self.hosts.folder.name}-{index}"

    def tell(self, what: str) -> None:
        """Record and print an event."""
        self.events.append(f"{time.monotonic() - self._began:6.1f} s  {what}")
        print(self.events[-1], flush=True)

    def start(self, index: int) -> None:
        """Start the pod of an index as a container with the limits of its manifest."""
        pod = self._spec["template"]["spec"]
        box, security = pod["containers"][0], pod["securityContext"]
        command = ["podman", "run", "--detach", "--name", self._container(index), "--network", self.hosts.network(str(index))]
        command += ["--hostname", f"{self.name}-{index}", "--user", f"{security['runAsUser']}:{security['runAsGroup']}"]
        names = [f"--add-host={self.name}-{i}.{pod['subdomain']}:{self.hosts.address(str(i))}" for i in range(len(self.starts))]
        command += names
        if security["seccompProfile"]["type"] == "RuntimeDefault":
            command += ["--security-opt", "seccomp=/usr/share/containers/seccomp.json"]
        own = box["securityContext"]
        command += [f"--cap-drop={name}" for name in own["capabilities"]["drop"]]
        command += ["--read-only", "--read-only-tmpfs=false"] if own["readOnlyRootFilesystem"] else []
        command += [] if own["allowPrivilegeEscalation"] else ["--security-opt", "no-new-privileges"]
        limits = box["resources"]["limits"]
        command += ["--memory", limits["memory"], "--memory-swap", limits["memory"], "--cpus", limits["cpu"]]
        command += [part for name, value in self._environment(index).items() for part in ("--env", f"{name}={value}")]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for mount in box["volumeMounts"]:
            command += self._mount(mount, volumes[mount["name"]], security["fsGroup"])
        self.starts[index] += 1
        _run(*command, "--entrypoint", json.dumps(box["command"]), box["image"])

    def _mount(self, mount: Manifest, volume: Manifest, group: int) -> list[str]:
        if "emptyDir" in volume:
            return ["--tmpfs", f"{mount['mountPath']}:rw,size=1g,mode=1777"]
        folder = self.hosts.folder / volume["name"]
        if not folder.exists():
            folder.mkdir()
            of_map = "configMap" in volume
            data = self._map(volume["configMap"]["name"]) if of_map else self.secrets[volume["secret"]["secretName"]]
            for name, text in data.items():
                (folder / name).write_text(text)
                (folder / name).chmod(0o644 if of_map else volume["secret"]["defaultMode"])
                os.chown(folder / name, 0, group)
        return ["--volume", f"{folder}:{mount['mountPath']}:ro"]

    def _map(self, name: str) -> dict[str, str]:
        return next(m["data"] for m in self.manifests if m["kind"] == "ConfigMap" and m["metadata"]["name"] == name)

    def _environment(self, index: int) -> dict[str, str]:
        """Return the environment as the kubelet does: variables may refer to earlier ones."""
        box = self._spec["template"]["spec"]["containers"][0]
        found: dict[str, str] = {}
        for source in box["envFrom"]:
            found |= self._map(source["configMapRef"]["name"]) if "configMapRef" in source else self.secrets[source["secretRef"]["name"]]
        own: dict[str, str] = {"JOB_COMPLETION_INDEX": str(index)}
        for entry in box["env"]:
            source = entry.get("valueFrom", {})
            if "resourceFieldRef" in source:
                value = str(box["resources"]["limits"][source["resourceFieldRef"]["resource"].split(".")[1]])
            elif "fieldRef" in source:
                labels = {"batch.kubernetes.io/job-name": self.name, "batch.kubernetes.io/controller-uid": _UID}
                value = {f"metadata.labels['{name}']": label for name, label in labels.items()}[source["fieldRef"]["fieldPath"]]
            else:
                value = re.sub(r"\$\((\w+)\)", lambda name: own.get(name[1], name[0]), entry["value"])
            own[entry["name"]] = value
        return found | own

    def kill(self, index: int, signal: str = "KILL") -> None:
        """Kill the pod as if its node were lost, or by another signal."""
        _run("podman", "kill", "--signal", signal, self._container(index))
        self.tell(f"{signal} to pod {index}")

    def log(self, index: int) -> str:
        """Return the log of the current pod of an index."""
        done = subprocess.run(
            ["podman", "logs", self._container(index)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.stdout

    def inspect(self, index: int) -> dict[str, Any]:
        """Return podman's description of the container."""
        return dict(json.loads(_run("podman", "inspect", self._container(index)))[0])

    def control(self) -> bool | None:
        """Check the pods once: return True when the job is done, None before; raise RuntimeError when it has failed."""
        for index in range(len(self.starts)):
            state = self.inspect(index)["State"]
            if state["Running"] or state["Status"] not in ("exited", "stopped"):
                continue
            code, lasts = state["ExitCode"], self.log(index)[-3000:]
            if code == 0 and index == 0:
                self.tell("pod 0 is done")
                return True
            action = self._action(code)
            self.tell(f"pod {index} has ended with {code}: {action}")
            self.failures[index] += action == "Count"
            if action == "FailJob" or self.failures[index] > self._spec["backoffLimitPerIndex"]:
                raise RuntimeError(f"the job has failed with pod {index}: {lasts}")
            _run("podman", "rm", "--force", self._container(index))
            self.start(index)
        return None

    def _action(self, code: int) -> str:
        for rule in self._spec["podFailurePolicy"]["rules"]:
            if code in rule.get("onExitCodes", {}).get("values", []):
                return str(rule["action"])
        return "Count"

    def until(self, met: "Sequence[str] | None", seconds: float = _PATIENCE) -> None:
        """Check the pods until the driver's log contains one of the words, or the job is done."""
        end = time.monotonic() + seconds
        while not self.control():
            if met is not None and any(word in self.log(0) for word in met):
                return
            if time.monotonic() > end:
                raise TimeoutError(f"not within {seconds} s: {self.log(0)[-3000:]}")
            time.sleep(0.2)
        if met is not None:
            raise RuntimeError(f"done before any of {met}: {self.log(0)[-3000:]}")
