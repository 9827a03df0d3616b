"""The released Dask operator with dfact's DaskJob, against an API server in memory: python -m benchmarks.deployment.dask_operator

The operator runs in its own virtual environment, as its dependencies conflict with dfact's. It creates and removes objects
as in a cluster, but nothing runs. The created objects are checked by the rules for manifests.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import exit_code, report, wait_until
from tests.batch.manifest_rules import DEPLOY, OPERATOR, VERSIONS, Manifest, problems, render, schema_problems

_PLACE = Path("/var/tmp/dfact-operator")
_PORT = 18001
_DASK = "/apis/kubernetes.dask.org/v1/namespaces/research"


def environment() -> Path:
    """Return the folder of the operator's commands."""
    commands = _PLACE / "bin"
    if not (commands / "kopf").exists():
        venv.create(_PLACE, with_pip=True, clear=True)
        subprocess.run([commands / "pip", "install", "--quiet", OPERATOR], check=True)
    return commands


def ask(method: str, path: str, body: Any = None) -> Any:
    """Send a request to the API."""
    data = None if body is None else json.dumps(body).encode()
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    request = urllib.request.Request(f"http://127.0.0.1:{_PORT}{path}", data, {"Content-Type": kind}, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def items(path: str) -> list[Manifest]:
    """Return all objects of a kind."""
    return list(ask("GET", path)["items"])


def story() -> tuple[list[dict[str, Any]], list[tuple[str, bool]]]:
    """Run a DaskJob from its creation to its end."""
    rendered = render(DEPLOY / "kubernetes" / "daskjob")
    job = next(manifest for manifest in rendered if manifest["kind"] == "DaskJob")
    core, deployments = "/api/v1/namespaces/research", "/apis/apps/v1/namespaces/research/deployments"
    ask("POST", f"{_DASK}/daskjobs", job)
    replicas = job["spec"]["cluster"]["spec"]["worker"]["replicas"]
    wait_until(
        lambda: len(items(deployments)) == 1 + replicas and len(items(f"{core}/pods")) == 1,
        "a scheduler, the workers and the runner",
        not_yet=(OSError,),
    )
    created = [{"apiVersion": "apps/v1", "kind": "Deployment"} | found for found in items(deployments)]
    created += [{"apiVersion": "v1", "kind": kind} | found for kind in ("Pod", "Service") for found in items(f"{core}/{kind.lower()}s")]
    rows = [{"kind": found["kind"], "name": found["metadata"]["name"]} for found in created]
    bare = [_without_the_servers(found) for found in created]
    wrong = problems([manifest for manifest in rendered if manifest["kind"] != "DaskJob"] + bare)
    refused = [problem for version in VERSIONS for problem in schema_problems(bare, version, {})]
    runner = f"{core}/pods/{job['metadata']['name']}-runner"
    thresholds = [("what it created is safe and agrees", not wrong), ("Kubernetes would take what it created", not refused)]
    print(*wrong, *refused, sep="\n")
    ask("PATCH", runner, {"status": {"phase": "Running"}})
    wait_until(lambda: items(f"{_DASK}/daskjobs")[0]["status"]["jobStatus"] == "Running", "the job runs", not_yet=(OSError,))
    ask("PATCH", runner, {"status": {"phase": "Succeeded"}})
    wait_until(lambda: items(f"{_DASK}/daskjobs")[0]["status"]["jobStatus"] == "Successful", "the job is done", not_yet=(OSError,))
    wait_until(lambda: not items(deployments) and not items(f"{_DASK}/daskclusters"), "the cluster is gone", not_yet=(OSError,))
    return rows, [*thresholds, ("with the runner's success the job is done and the cluster gone", True)]


def _without_the_servers(found: Manifest) -> Manifest:
    """Return the object as it was sent, without fields that the server adds."""
    own = ("uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")
    meta = {name: value for name, value in found["metadata"].items() if name not in own}
    return {name: value for name, value in found.items() if name != "status"} | {"metadata": meta}


def main() -> None:
    commands = environment()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config"
        context = {"name": "here", "context": {"cluster": "here", "user": "here", "namespace": "research"}}
        known = {
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{_PORT}"}}],
            "users": [{"name": "here", "user": {}}],
        }
        config.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "here", "contexts": [context], **known}))
        server = subprocess.Popen([commands / "python", Path(__file__).with_name("kubernetes_api.py"), str(_PORT)])
        with (Path(folder) / "operator.log").open("w+") as log:
            run = [commands / "kopf", "run", "-m", "dask_kubernetes.operator.controller", "--standalone", "--all-namespaces"]
            operator = subprocess.Popen(run, env=os.environ | {"KUBECONFIG": str(config)}, stdout=log, stderr=log)
            try:
                wait_until(lambda: bool(items("/api/v1/namespaces")), "the API", not_yet=(OSError,))
                rows, thresholds = story()
            except Exception:
                log.seek(0)
                print(log.read()[-6000:])
                raise
            finally:
                for process in (operator, server):
                    process.kill()
                    process.wait()
    report("dask_operator", rows, thresholds)
    sys.exit(exit_code(thresholds))


if __name__ == "__main__":
    main()
