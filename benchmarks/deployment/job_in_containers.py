"""A job as on Kubernetes, in containers on this machine; a worker and the driver are killed, and the result equals the local one.

python -m benchmarks.deployment.job_in_containers

The image is built of this source. `dfact deploy` writes the manifests for the job. The pods run as user 10001 on a
read-only root without capabilities, over TLS, with an S3-compatible store, each in its own network namespace. See
benchmarks/deployment/containers.py.
"""

import hashlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import answers, exit_code, report
from benchmarks.deployment.containers import IMAGE, Job, available, build_image
from benchmarks.faults.cluster_of_hosts import Certificates
from benchmarks.faults.namespaces import Hosts
from tests.batch.manifest_rules import DEPLOY, ROOT, problems, render

_CACHE = Path("/var/tmp/dfact-containers")
_KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
_KERNELS = {"OPENBLAS_CORETYPE": "Haswell"}  # the same products everywhere: by default OpenBLAS chooses kernels by processor
_ITERATIONS = 2000  # a minute, in which each pod is killed
_JOB = f"""\
[job]
state = "s3://studies/eqsq/state"

[[step]]
run = "fit icqf"
data = "s3://studies/eqsq/answers.zarr"
model = "s3://studies/eqsq/icqf8.model"
components = 8
max-iter = {_ITERATIONS}
tol = 0

[[step]]
run = "fit gom"
data = "s3://studies/eqsq/answers.zarr"
model = "s3://studies/eqsq/gom4.model"
components = 4
seed = 0
"""
_LABELS = ("title", "version", "revision", "base.name")
_CREATE_BUCKET = """
import sys, time, urllib.request as u
for wait in range(600):
    try:
        u.urlopen(u.Request(sys.argv[1], method="PUT"))
        break
    except u.URLError:  # the store is starting
        time.sleep(1)
else:
    sys.exit("the store does not start")
"""
_DESK = """
import json, sys
import dfact
from benchmarks.deployment.job_in_containers import digests
what = sys.argv[1]
if what == "import":
    dfact.import_array(__import__("numpy").load(sys.argv[2]), "s3://studies/eqsq/answers.zarr")
else:
    print("DIGESTS" + json.dumps(digests([dfact.load_model(f"s3://studies/eqsq/{name}") for name in ("icqf8.model", "gom4.model")])))
"""


def digests(models: list[Any]) -> list[str]:
    """Return a digest of all bits of each model."""
    parts = [(m.components_, m.factors_) if hasattr(m, "factors_") else (m.item_parameters_, m.memberships_) for m in models]
    return [hashlib.sha256(b"".join(np.ascontiguousarray(array[:]).tobytes() for array in arrays)).hexdigest() for arrays in parts]


def fit_alone(data: str) -> list[str]:
    """Fit the same models in one process, without a cluster."""
    import dfact

    dataset = dfact.open_dataset(data)
    return digests([dfact.ICQF(8, max_iter=_ITERATIONS, tol=0).fit(dataset), dfact.GradeOfMembership(4, random_state=0).fit(dataset)])


def local(folder: Path) -> list[str]:
    """Fit the same models in one container of the image, as other builds of the libraries differ in the last bits."""
    code = "import json; from benchmarks.deployment.job_in_containers import fit_alone; print('DIGESTS' + json.dumps(fit_alone('/data')))"
    mounts = [
        "--volume",
        f"{folder}:/data:ro",
        "--volume",
        f"{ROOT / 'benchmarks'}:/opt/benchmarks:ro",
        "--volume",
        f"{ROOT / 'tests'}:/opt/tests:ro",
        *(f"--env={name}={value}" for name, value in ({"PYTHONPATH": "/opt"} | _KERNELS).items()),
    ]
    run = ["podman", "run", "--rm", "--network", "none", *mounts, "--entrypoint", json.dumps(["python", "-c", code]), IMAGE]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return list(json.loads(done.stdout.split("DIGESTS")[1]))


_INSIDE = """
import importlib.util, json, os, sys
from importlib.metadata import distributions
import numba, numpy as np
import dfact
found = {"python": "%d.%d" % sys.version_info[:2], "packages": {d.name.lower().replace("_", "-"): d.version for d in distributions()}}
found["pip"] = importlib.util.find_spec("pip") is not None
sbom = json.load(open("/opt/dfact/sbom.cdx.json"))
found["sbom"] = {part["name"].lower().replace("_", "-"): part["version"] for part in sbom["components"]}
data = dfact.import_array(np.random.default_rng(0).integers(0, 4, (500, 20)).astype(np.float32), "/tmp/answers.zarr")
dfact.ICQF(3, max_iter=3).fit(data)
kernels = [value for module in list(sys.modules.values()) if getattr(module, "__name__", "").startswith("dfact.kernels.")
           for value in vars(module).values() if isinstance(value, numba.core.dispatcher.Dispatcher) and value.signatures]
found["loaded"] = sum(sum(kernel.stats.cache_hits.values()) for kernel in kernels)
found["compiled"] = sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels)
print("FOUND" + json.dumps(found))
"""


def check_image() -> tuple[list[dict[str, Any]], list[tuple[str, bool]]]:
    """Check what the image contains: the locked packages, its parts list, labels, no installer, and kernels that are compiled."""
    hardened = ["--read-only", "--read-only-tmpfs=false", "--tmpfs", "/tmp:rw,size=1g,mode=1777", "--network", "none"]
    run = ["podman", "run", "--rm", *hardened, "--entrypoint", json.dumps(["python", "-c", _INSIDE]), IMAGE]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout.split("FOUND")[1])
    lock = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (DEPLOY / "container" / "requirements.lock").read_text(), re.MULTILINE))
    own = {name: text for name, text in found["packages"].items() if name != "dfact"}
    inspected = subprocess.run(["podman", "image", "inspect", IMAGE], capture_output=True, text=True, check=True)
    labels = json.loads(inspected.stdout)[0]["Labels"]
    text = f"Python {found['python']}, {len(own)} packages, {found['loaded']} kernels loaded, {found['compiled']} compiled"
    return [{"what": "image", "then": text}], [
        ("the image's packages are those of the lock", own.items() <= lock.items() and len(own) > 30),
        ("its parts list names them", own.items() <= found["sbom"].items()),
        ("it has no pip", not found["pip"] and "pip" not in own),
        ("a fit compiles no kernel", found["compiled"] == 0 < found["loaded"]),
        ("its labels name version, revision and base", all(labels.get(f"org.opencontainers.image.{n}") for n in _LABELS)),
    ]


class Desk:
    """A host of the user, which reaches the store."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.endpoint = f"http://{hosts.address('store')}:9000"
        self.settings = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"} | _KERNELS

    def run(self, *command: str, seconds: float = 600) -> str:
        log = self.hosts.folder / "desk.log"
        log.unlink(missing_ok=True)
        given = [f"{name}={value}" for name, value in (self.settings | _KEYS).items()]
        process = self.hosts.run("desk", ["env", *given, *command], log=log)
        if process.wait(timeout=seconds) != 0:
            raise RuntimeError(f"{' '.join(command)[:200]}: {log.read_text()[-3000:]}")
        return log.read_text()


def story(hosts: Hosts, data: Path) -> list[dict[str, Any]]:
    """Run the job from the manifests to the models; return a row for each event."""
    desk = Desk(hosts)
    hosts.run("store", [sys.executable, "-m", "moto.server", "-H", hosts.address("store"), "-p", "9000"], log=hosts.folder / "store.log")
    desk.run(sys.executable, "-c", _CREATE_BUCKET, f"{desk.endpoint}/studies")
    desk.run(sys.executable, "-c", _DESK, "import", str(data))
    (hosts.folder / "eqsq.toml").write_text(_JOB)
    manifests = _deploy(desk)
    own = Certificates.make(hosts.folder / "certificates", "dfact-eqsq")
    files = {"ca.crt": own.authority, "tls.crt": own.certificate, "tls.key": own.key}
    secrets = {"dfact-tls-eqsq": {name: Path(file).read_text() for name, file in files.items()}, "dfact-s3-eqsq": _KEYS}
    rows = []
    with Job(manifests, hosts, secrets) as job:
        began = time.monotonic()
        job.until(["fit: "])
        rows.append(_hardened(job))
        for index in (1, 2):  # one worker has the only partition
            time.sleep(3)
            job.kill(index)
            job.until(["fit: "])
        time.sleep(4)
        job.kill(0)
        job.until(["Resuming from step"])
        resumed = next(line for line in job.log(0).splitlines() if "Resuming from step" in line)
        rows.append({"what": "driver killed", "then": json.loads(resumed)["message"]})
        job.tell(rows[-1]["then"])
        job.until(None)
        rows.append({"what": "job", "then": f"done after {time.monotonic() - began:.0f} s, pods started for each index: {job.starts}"})
        (hosts.folder / "driver.log").write_text(job.log(0))
    found = json.loads(desk.run(sys.executable, "-c", _DESK, "digests").split("DIGESTS")[1])
    return [*rows, {"what": "models", "then": "", "digests": found}]


def _deploy(desk: Desk) -> Any:
    """Return the checked manifests that `dfact deploy` writes."""
    folder = desk.hosts.folder / "deployed"
    settings = [part for name, value in desk.settings.items() for part in ("--env", f"{name}={value}")]
    size = ["--workers", "2", "--cpu", "1", "--image", IMAGE]
    print(desk.run(sys.executable, "-m", "dfact.cli.main", "deploy", str(desk.hosts.folder / "eqsq.toml"), str(folder), *size, *settings))
    manifests = render(folder)
    if found := problems(manifests):
        raise RuntimeError(f"the manifests have problems: {found}")
    return manifests


def _hardened(job: Job) -> dict[str, Any]:
    """Check the limits of a pod's process in the kernel, and the folders that the pod may write to."""
    process = job.inspect(1)["State"]["Pid"]
    child = subprocess.run(["pgrep", "--parent", str(process)], capture_output=True, text=True, check=True).stdout.split()[0]
    status = dict(line.split(":", 1) for line in Path(f"/proc/{child}/status").read_text().splitlines())
    found = {name: status[name].split()[0] for name in ("Uid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")}
    root = next(line for line in Path(f"/proc/{child}/mounts").read_text().splitlines() if line.split()[1] == "/")
    found["root"] = "read-only" if root.split()[3].split(",")[0] == "ro" else "writable"
    job.tell(f"pod 1: {found}")
    return {"what": "pod 1", "then": json.dumps(found), **found}


def main() -> None:
    possible, reason = available()
    if not possible:
        sys.exit(reason)
    began = time.monotonic()
    build_image(_CACHE)
    print(f"built {IMAGE} in {time.monotonic() - began:.0f} s", flush=True)
    facts, held = check_image()
    print(facts, held, flush=True)
    import dfact

    with Hosts(["store", "desk", "0", "1", "2"]) as hosts:
        array = hosts.folder / "answers.npy"
        np.save(array, answers("eqsq"))
        rows = story(hosts, array)
        dfact.import_array(np.load(array), hosts.folder / "answers.zarr")
        expected = local(hosts.folder / "answers.zarr")
    secure = rows[0]
    safe = (secure["Uid"], int(secure["CapEff"], 16), secure["NoNewPrivs"], secure["Seccomp"], secure["root"]) == (
        "10001",
        0,
        "1",
        "2",
        "read-only",
    )
    equal = [
        (f"{name}: the result equals the local one", one == other)
        for name, one, other in zip(("icqf", "gom"), rows.pop()["digests"], expected, strict=True)
    ]
    thresholds = [*held, ("the pods are hardened", safe), *equal]
    report("job_in_containers", [{"what": row["what"], "then": row["then"]} for row in [*facts, *rows]], thresholds)
    sys.exit(exit_code(thresholds))


if __name__ == "__main__":
    main()
