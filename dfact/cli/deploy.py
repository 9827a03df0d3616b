"""``dfact deploy``: Kubernetes manifests for a job file, with memory from the plan."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from dfact.cli.options import example, overwrite_option
from dfact.cli.types import path_type
from dfact.errors import StoreError
from dfact.jobs.job_file import JobError, read_job
from dfact.jobs.kubernetes import PlannedWorkers, find_deployment_problems, make_kustomization, pod_memory, write_manifests


@click.command(
    epilog=example("dfact deploy job.toml deployed --image registry.example.com/dfact:0.1.0 --workers 4\nkubectl apply -k deployed")
)
@click.argument("job", type=path_type)
@click.argument("folder", type=path_type)
@click.option("--image", required=True, help="Container image with its version or digest; see deploy/container/Containerfile.")
@click.option("--workers", type=click.IntRange(min=1), default=2, help="Number of worker pods, beside one pod for scheduler and driver.")
@click.option("--cpu", type=click.IntRange(min=1), default=2, help="Number of cores of each pod; workers run as many threads.")
@click.option(
    "--memory",
    metavar="SIZE",
    help="Memory of each pod, such as 8GiB.",
    show_default="the plan's, if this machine can read the data",
)
@click.option(
    "--volume-claim", metavar="NAME", help="PersistentVolumeClaim that all pods mount at /data; the job's paths must lie below /data."
)
@click.option(
    "--env", "environment", multiple=True, metavar="NAME=VALUE", help="Environment variable of the pods, such as AWS_REGION=eu-central-1."
)
@click.option("--namespace", default="default", help="Kubernetes namespace of the job.")
@click.option("--name", help="Name of the job, unique in its namespace.", show_default="name of the job file")
@click.option("--no-tls", is_flag=True, help="Connect the pods without encryption, for clusters with a private network.")
@click.option(
    "--manifests", type=path_type, default=Path("deploy/kubernetes"), help="Folder of dfact's source with the manifests to build on."
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
    volume_claim: str | None,
    environment: Sequence[str],
    namespace: str,
    name: str | None,
    no_tls: bool,
    manifests: Path,
    overwrite: bool,
) -> None:
    """Write Kubernetes manifests that run a job file.

    Writes a kustomization with a copy of the job file JOB to FOLDER: one pod runs scheduler and driver, the others are
    workers. Pods can read and write URLs (s3://…, gs://…) and, with --volume-claim, paths below /data. If this machine can
    read the data, the memory of the pods is taken from the plan, and a job that cannot fit is refused.
    """
    if not (manifests / "base" / "kustomization.yaml").is_file():
        raise click.UsageError(f"--manifests is {manifests}, expected the folder deploy/kubernetes of dfact's source")
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, expected an empty folder or none; choose another one")
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise StoreError(f"{folder} is not empty, expected an empty folder or none; choose another one or pass --overwrite")
    commands = context.find_root().command
    assert isinstance(commands, click.Group), "dfact's commands"
    try:
        steps, table = read_job(job, commands)
        if problems := [*find_deployment_problems(steps, table, volume_claim)]:
            raise JobError(job, problems)
    except JobError as error:
        raise click.UsageError(str(error)) from error
    pods = PlannedWorkers(workers, cpu, 0)
    pods = replace(pods, memory=pod_memory(steps, pods, memory))
    files = make_kustomization(
        steps,
        table,
        folder,
        manifests,
        pods,
        image=image,
        namespace=namespace,
        name=name or job.stem,
        claim=volume_claim,
        environment=environment,
        tls=not no_tls,
    )
    write_manifests(folder, job, files)
    click.echo(f"Wrote the manifests of 1 + {workers} pods with {cpu} cores and {pods.memory >> 20} MiB each to {folder}.")
    click.echo(f"Review and apply them:\n  kubectl kustomize {folder}\n  kubectl apply -k {folder}")
