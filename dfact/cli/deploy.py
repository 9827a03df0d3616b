"""``dfact deploy``: manifests of Kubernetes for a job file, sized by the memory plan."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dfact.cli.options import example, overwrite_option, path_type
from dfact.errors import StoreError
from dfact.jobs.job_file import JobError, read_job
from dfact.jobs.kubernetes import (
    _COMPONENTS,
    PlannedWorkers,
    _image,
    _job_and_settings,
    _memory,
    _named,
    _patches,
    _problems,
    _relative,
    _setting,
    _write,
)
from dfact.storage.location import parse_location

if TYPE_CHECKING:
    pass


@click.command(
    epilog=example("dfact deploy job.toml deployed --image registry.example.com/dfact:0.1.0 --workers 4\nkubectl apply -k deployed")
)
@click.argument("job", type=path_type)
@click.argument("folder", type=path_type)
@click.option("--image", required=True, help="The image, with its version or digest; see deploy/container/Containerfile.")
@click.option("--workers", type=click.IntRange(min=1), default=2, help="Number of pods that compute; one more drives them.")
@click.option("--cpu", type=click.IntRange(min=1), default=2, help="Cores, and so threads, of a pod.")
@click.option("--memory", metavar="SIZE", help="Memory of a pod.", show_default="what the plan needs, where the data can be read from here")
@click.option(
    "--volume-claim", metavar="NAME", help="Volume that all pods write to, a PersistentVolumeClaim; paths of the job below /data are there."
)
@click.option("--env", "settings", multiple=True, metavar="NAME=VALUE", help="Environment of the pods, such as AWS_REGION=eu-central-1.")
@click.option("--namespace", default="default", help="Where the job runs.")
@click.option("--name", help="Name of the job; others may run beside it.", show_default="the file's")
@click.option("--no-tls", is_flag=True, help="Without encryption: for clusters whose network nobody else can use.")
@click.option(
    "--manifests", type=path_type, default=Path("deploy/kubernetes"), help="Folder of dfact's source that the manifests build on."
)
@overwrite_option
@click.pass_context
def deploy(
    context: click.Context,
    job: Path,
    folder: Path,
    image: str,
    workers: int,
    cpu: int,
    memory: str | None,
    claim: str | None,
    settings: Sequence[str],
    namespace: str,
    name: str | None,
    no_tls: bool,
    manifests: Path,
    overwrite: bool,
) -> None:
    """Write manifests that run a job file on Kubernetes.

    FOLDER gets a kustomization with the job file, JOB, in it: one pod with scheduler and driver, the others workers. The pods
    see addresses (s3://…, gs://…) and, with --volume-claim, paths below /data. Where the data can be read from here the pods get the
    memory that its plan needs, and what cannot fit is refused.
    """
    if not (manifests / "base" / "kustomization.yaml").is_file():
        raise click.UsageError(f"--manifests is {manifests}, expected the folder deploy/kubernetes of dfact's source")
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise StoreError(f"{folder} is not empty; choose another folder, or --overwrite")
    commands = context.find_root().command
    assert isinstance(commands, click.Group), "dfact's commands"
    try:
        steps, table = read_job(job, commands)
        places = [
            *(place for step in steps for place in (*step.inputs, *step.outputs)),
            parse_location(str(table.get("state", "job.state"))),
        ]
        if problems := [*_problems(steps, table, claim)]:
            raise JobError(job, problems)
    except JobError as error:
        raise click.UsageError(str(error)) from error
    pods = PlannedWorkers(workers, cpu, 0)
    pods = replace(pods, memory=_memory(steps, pods, memory))
    parts = ([] if no_tls else ["tls"]) + (["pvc"] if claim else [])
    parts += sorted({_COMPONENTS[place.split(":", 1)[0]] for place in places if isinstance(place, str)})
    environment = dict(_setting(text) for text in settings) | {"DASK_DFACT__EXPECTED_WORKERS": str(workers)}
    patches = _patches(pods, claim, environment.get("AWS_ENDPOINT_URL"))
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        **_named(name or job.stem),
        "resources": [_relative(manifests / "base", folder)],
        "components": [_relative(manifests / "components" / part, folder) for part in parts],
        "images": [_image(image)],
        **_job_and_settings(environment),
        "patches": [{"path": name} for name in patches],
    }
    _write(folder, job, {"kustomization.yaml": kustomization} | patches)
    click.echo(f"Written to {folder}: 1 + {workers} pods of {cpu} cores and {pods.memory >> 20} MiB. Look at it and run it with")
    click.echo(f"  kubectl kustomize {folder}\n  kubectl apply -k {folder}")
