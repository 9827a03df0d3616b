"""``dfact deploy``: Kubernetes manifests for a job file, with memory from the plan."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from dfact.batch.job_file import JobError, read_job
from dfact.batch.kubernetes import PlannedWorkers, find_deployment_problems, pod_memory
from dfact.batch.kustomization import MANIFESTS, Deployment, write_manifests
from dfact.cli.options import example, overwrite_option
from dfact.cli.types import PodSize, path_type
from dfact.errors import StoreError


def _print_slurm_script(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(MANIFESTS / "slurm" / "job.sbatch")
        context.exit()


@click.command(
    epilog=example(
        "dfact deploy job.toml deployed --image registry.example.com/dfact:0.1.0",
        "    --workers 4 --memory 8GiB",
        "kubectl apply -k deployed",
    )
)
@click.argument("job", type=path_type)
@click.argument("folder", type=path_type)
@click.option("--image", required=True, help="Container image with its version or digest; see deploy/container/Containerfile.")
@click.option("--workers", type=click.IntRange(min=1), default=2, help="Number of worker pods, besides one pod for scheduler and driver.")
@click.option(
    "--min-workers",
    type=click.IntRange(min=1),
    help="Minimum number of workers that must have joined before the driver starts; the others join the fit later.",
    show_default="--workers",
)
@click.option("--cpu", type=click.IntRange(min=1), default=2, help="Number of cores of each pod; workers run as many threads.")
@click.option(
    "--memory",
    metavar="SIZE",
    type=PodSize(),
    help="Memory of each pod, such as 8GiB.",
    show_default="the plan's, if this machine can read the data",
)
@click.option(
    "--disk", metavar="SIZE", type=PodSize(), default="20GiB", help="Size of each pod's /tmp, for state that does not fit in memory."
)
@click.option("--driver-cpu", type=click.IntRange(min=1), help="Number of cores of the driver's pod.", show_default="--cpu")
@click.option("--driver-memory", metavar="SIZE", type=PodSize(), help="Memory of the driver's pod.", show_default="--memory")
@click.option(
    "--volume-claim",
    "claim",
    metavar="NAME",
    help="PersistentVolumeClaim that all pods mount at /data; the job's paths must lie below /data.",
)
@click.option(
    "--env", "environment", multiple=True, metavar="NAME=VALUE", help="Environment variable of the pods, such as AWS_REGION=eu-central-1."
)
@click.option("--namespace", default="default", help="Kubernetes namespace of the job.")
@click.option("--name", help="Name of the job, unique in its namespace.", show_default="name of the job file")
@click.option("--no-tls", is_flag=True, help="Connect the pods without encryption, for clusters with a private network.")
@click.option("--node-selector", multiple=True, metavar="KEY=VALUE", help="Label of the nodes that pods may run on.")
@click.option("--toleration", "tolerations", multiple=True, metavar="TAINT", help="Taint that pods tolerate, such as spot=true:NoSchedule.")
@click.option("--priority-class", "priority", metavar="NAME", help="PriorityClass of the pods.")
@click.option(
    "--spread",
    multiple=True,
    metavar="KEY",
    help="Node label, such as kubernetes.io/hostname, over whose values pods are spread.",
)
@click.option("--pull-secret", metavar="NAME", help="Secret with the credentials for the image's registry.")
@click.option(
    "--slurm-script",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_slurm_script,
    help="Print the path of the batch script for Slurm, and exit.",
)
@click.option("--queue", metavar="NAME", help="LocalQueue of Kueue, which admits the job when its quota has room.")
@overwrite_option
@click.pass_context
def deploy(
    context: click.Context,
    job: Path,
    folder: Path,
    workers: int,
    min_workers: int | None,
    cpu: int,
    memory: int | None,
    disk: int,
    driver_cpu: int | None,
    driver_memory: int | None,
    claim: str | None,
    name: str | None,
    no_tls: bool,
    overwrite: bool,
    image: str,
    environment: Sequence[str],
    namespace: str,
    node_selector: Sequence[str],
    tolerations: Sequence[str],
    priority: str | None,
    spread: Sequence[str],
    pull_secret: str | None,
    queue: str | None,
) -> None:
    """Write Kubernetes manifests that run a job file.

    Writes a kustomization with a copy of the job file JOB to FOLDER: one pod runs scheduler and driver, the others are
    workers. Pods can read and write URLs (s3://…, gs://…, az://…) and, with --volume-claim, paths below /data. If this machine
    can read the data, the memory of the pods is taken from the plan, and a job that cannot fit is refused.
    """
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, expected an empty folder or none; choose another one")
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise StoreError(f"{folder} is not empty, expected an empty folder or none; choose another one or pass --overwrite")
    least = min_workers or workers
    if least > workers:
        raise click.UsageError(f"--min-workers is {least}, expected at most {workers}, the value of --workers; lower it or raise --workers")
    commands = context.find_root().command
    assert isinstance(commands, click.Group), "dfact's commands"
    try:
        steps, table = read_job(job, commands)
        if problems := [*find_deployment_problems(steps, table, claim)]:
            raise JobError(job, problems)
    except JobError as error:
        raise click.UsageError(str(error)) from error
    pods = PlannedWorkers(least, cpu, 0, disk)  # the plan must hold for those that are there
    pods = replace(pods, memory=pod_memory(steps, pods, memory), count=workers)
    driver = (driver_cpu or cpu, driver_memory or pods.memory) if driver_cpu or driver_memory else None
    deployment = Deployment(
        image=image,
        name=name or job.stem,
        namespace=namespace,
        workers=pods,
        min_workers=least,
        driver=driver,
        claim=claim,
        environment=environment,
        tls=not no_tls,
        node_selector=node_selector,
        tolerations=tolerations,
        priority=priority,
        spread=spread,
        pull_secret=pull_secret,
        queue=queue,
    )
    components = deployment.components(steps, table)
    write_manifests(folder, job, components, deployment.kustomization(components))
    cores, size = driver or (cpu, pods.memory)
    click.echo(
        f"Wrote manifests to {folder}: a driver with {cores} cores and {size >> 20} MiB, "
        f"and {workers} workers with {cpu} cores and {pods.memory >> 20} MiB each."
    )
    if deployment.tls:
        click.echo(f"The job needs a Secret dfact-tls-{deployment.name} with certificates for the DNS name {deployment.tls_name}.")
    click.echo(f"Review and apply them:\n  kubectl kustomize {folder}\n  kubectl apply -k {folder}")
