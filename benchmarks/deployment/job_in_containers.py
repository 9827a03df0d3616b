"""A job as on Kubernetes, in containers on this machine; a worker and the driver are killed, and the result equals the local one.

python -m benchmarks.deployment.job_in_containers

The image is built of this source. `dfact deploy` writes the manifests for the job. The pods run as user 10001 on a
read-only root without capabilities, over TLS, with an S3-compatible store, each in its own network namespace. See
benchmarks/deployment/containers.py.
"""

import hashlib
import json
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
from tests.deployment.manifest_rules import DEPLOY, problems, render

_CACHE = Path("/var/tmp/dfact-containers")
_KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
_KERNELS = {"OPENBLAS_CORETYPE": "Haswell"}  # the same products everywhere: by default OpenBLAS chooses kernels by processor
_ITERATIONS = 250
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
        f"{DEPLOY.parent / 'benchmarks'}:/opt/benchmarks:ro",
        "--volume",
        f"{DEPLOY.parent / 'tests'}:/opt/tests:ro",
        *(f"--env={name}={value}" for name, value in ({"PYTHONPATH": "/opt"} | _KERNELS).items()),
    ]
    run = ["podman", "run", "--rm", "--network", "none", *mounts, "--entrypoint", json.dumps(["python", "-c", code]), IMAGE]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return list(json.loads(done.stdout.split("DIGESTS")[1]))


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
    own = Certificates.make(hosts.folder / "certificates")
    files = {"ca.crt": own.authority, "tls.crt": own.certificate, "tls.key": own.key}
    secrets = {"dfact-tls": {name: Path(file).read_text() for name, file in files.items()}, "dfact-s3": _KEYS}
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
    size = ["--workers", "2", "--cpu", "1", "--image", IMAGE, "--manifests", str(DEPLOY / "kubernetes")]
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
    thresholds = [("the pods are hardened", safe), *equal]
    report("job_in_containers", [{"what": row["what"], "then": row["then"]} for row in rows], thresholds)
    sys.exit(exit_code(thresholds))


if __name__ == "__main__":
    main()
