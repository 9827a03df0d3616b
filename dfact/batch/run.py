"""``dfact run``."""

from contextlib import chdir
from pathlib import Path

import click

from dfact.batch.job_file import JobError, read_job
from dfact.batch.record import Record
from dfact.batch.runner import find_problems, job_log, run_steps
from dfact.cli.options import cluster, example, metrics_option, metrics_server
from dfact.cli.types import path_type
from dfact.settings import use_run_id
from dfact.storage.location import parse_location


@click.command(epilog=example("dfact run job.toml --dry-run"))
@click.argument("job", type=path_type)
@click.option("--dry-run", is_flag=True, help="Check the job, print its pending steps with their memory and estimated time, and exit.")
@click.option("--log", "log_format", type=click.Choice(["text", "json"]), default="text", help="Format of the log lines on stderr.")
@click.option(
    "--run-id",
    metavar="TEXT",
    help="Id of the run in logs, metrics and the record.",
    show_default="DASK_DFACT__RUN_ID, else new",
)
@metrics_option
@click.pass_context
def run(context: click.Context, job: Path, dry_run: bool, log_format: str, run_id: str | None) -> None:
    """Run the steps of a job file, JOB.

    A job is a TOML file with a table [[step]] for each command. Options have the same names as on the command line.
    Relative paths start from the folder of the file.

    \b
        [job]
        memory-limit = "8GiB"  # for all steps that accept it; scheduler is possible, too

    \b
        [[step]]
        run = "import"
        source = "dfact-demo/survey.csv"
        dest = "survey.zarr"
        items = ["Q*"]
        id-column = "person"
        missing = [0, -9]

    \b
        [[step]]
        run = "fit icqf"
        data = "survey.zarr"
        model = "survey.model"
        components = 6

    The whole job is checked before the first step starts. When the same job runs again, steps that are done are skipped, an
    interrupted step resumes from its checkpoint, and a step runs again if its settings or inputs have changed. The record of
    the steps and the checkpoints are stored next to the file as JOB.state, or at the location "state" in [job], which may be
    in an object store.

    Exit codes: 0 done; 1 a step failed, or would fail; 2 the job file is invalid; 130 and 143 stopped by SIGINT and SIGTERM,
    with a checkpoint.
    """  # noqa: D301  # click reads the escape, which a raw string would print
    commands = context.find_root().command
    assert isinstance(commands, click.Group), "dfact's commands"
    try:
        steps, settings = read_job(job, commands)
        with chdir(job.absolute().parent):
            record = Record(parse_location(str(settings.get("state", f"{job.name}.state"))))
            if problems := [*find_problems(steps, record)]:
                raise JobError(job, problems)
            if dry_run:
                from dfact.batch.estimate import print_estimate

                if not print_estimate(steps, record.pending(steps), cluster):
                    raise click.ClickException(f"{job} would fail, for the reasons above; correct them and check again.")
                return
            with use_run_id(run_id), job_log(log_format) as log, metrics_server(settings.get("metrics-port")):
                run_steps(steps, record, log)
    except JobError as error:
        raise click.UsageError(str(error)) from error
