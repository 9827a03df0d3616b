"""``dfact run``."""

from contextlib import chdir
from pathlib import Path

import click

from dfact.cli.options import example, path_type
from dfact.jobs.job_file import JobError, read_job
from dfact.jobs.record import Record
from dfact.jobs.runner import _logger, _problems, _run
from dfact.storage.location import parse_location


@click.command(epilog=example("dfact run job.toml --dry-run"))
@click.argument("job", type=path_type)
@click.option("--dry-run", is_flag=True, help="Check the job, tell what would be done, in what memory and about how long, and stop.")
@click.option("--log", "log_format", type=click.Choice(["text", "json"]), default="text", help="How lines of the log look.")
@click.pass_context
def run(context: click.Context, job: Path, dry_run: bool, log_format: str) -> None:
    r"""Run the steps of a job file, JOB.

    A job is a TOML file with a table [[step]] for each command, whose options have the names they have on the command line,
    and whose paths are seen from the file's folder:

    \b
        [job]
        memory-limit = "8GiB"            # for all steps that take it; so is scheduler

    \b
        [[step]]
        run = "import"
        source = "survey.csv"
        dest = "survey.zarr"
        items = ["Q*"]

    \b
        [[step]]
        run = "fit icqf"
        data = "survey.zarr"
        model = "survey.model"
        components = 6

    All of it is checked before anything starts. What is finished is not done again by the same job, what was interrupted
    goes on from its checkpoint, and steps that changed are done anew with those that read something else now. The record of that
    and the checkpoints lie beside the file, as JOB.state, or at the place "state" in [job], such as one in an object store.

    Ends with 0: done; 1: a step has failed, or would; 2: the job is wrong; 130 and 143: stopped by SIGINT and SIGTERM, with a checkpoint.
    """
    commands = context.find_root().command
    assert isinstance(commands, click.Group), "dfact's commands"
    try:
        steps, settings = read_job(job, commands)
        with chdir(job.absolute().parent):
            record = Record(parse_location(str(settings.get("state", f"{job.name}.state"))))
            problems = [problem for step in steps for problem in _problems(step, record, steps)]
            if problems:
                raise JobError(job, problems)
            if dry_run:
                from dfact.jobs.estimate import tell

                if not tell(steps, record.compare(steps)):
                    raise click.exceptions.Exit(1)
                return
            _run(steps, record, _logger(log_format))
    except JobError as error:
        raise click.UsageError(str(error)) from error
