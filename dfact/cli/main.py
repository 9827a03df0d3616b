"""``dfact``: the group of all commands, their errors and warnings, and exit codes.

Commands import the library when they run, so that ``dfact --help`` is fast.
"""

import gc
import io
import sys
import traceback
import warnings
from typing import Any, TextIO

import click

import dfact
from dfact.catalogue import INSTALLED, MISSING, load
from dfact.cli.data import import_array_command, import_command, import_triplets_command, indicators, join, stack_groups_command
from dfact.cli.demo import demo
from dfact.cli.export import export
from dfact.cli.extensions import MODEL_PREFIX, extension_command, extension_model_command, list_extensions
from dfact.cli.help import help_command, name_guides
from dfact.cli.info import info
from dfact.cli.model_commands import fit_command, model_specs, select_command
from dfact.cli.report import plot, report
from dfact.cli.stability import stability
from dfact.cli.transform import transform
from dfact.cli.update import update
from dfact.errors import DfactError, StoppedError
from dfact.monitoring.logs import verbose_logging
from dfact.progress import hidden_progress
from dfact.signals import handle_signals
from dfact.text import escape_control, escape_lines


class Commands(click.Group):
    """A group that prints only the message of a DfactError, unless --debug asks for the traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            for each in MISSING:
                if error.option_name in each.options:
                    raise click.UsageError(each.missing(error.option_name), error.ctx) from error
            raise
        except DfactError as error:
            if ctx.params["debug"]:
                click.echo(escape_lines(traceback.format_exc()), err=True, nl=False)
                raise click.exceptions.Exit(1) from error
            raise click.ClickException(str(error)) from error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command of dfact's own, else one that another package adds."""
        found = super().get_command(ctx, cmd_name) or extension_command(cmd_name)
        for each in MISSING if found is None else ():
            if cmd_name in each.commands:
                raise click.UsageError(each.missing(f"dfact {cmd_name}"))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, those of other packages without importing them."""
        super().format_commands(ctx, formatter)
        list_extensions(formatter, lambda name: "." not in name)


class ModelCommands(click.Group):
    """The group ``fit`` or ``select``, with the models that other packages add."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a model of dfact's own, else of one that another package adds."""
        found = super().get_command(ctx, cmd_name) or extension_model_command(str(self.name), cmd_name)
        for each in MISSING if found is None else ():
            if any(cmd_name == entry.command for entry in each.models):
                raise click.UsageError(each.missing(f"dfact {self.name} {cmd_name}"))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the models, those of other packages without importing them."""
        super().format_commands(ctx, formatter)
        list_extensions(formatter, lambda name: name.startswith(MODEL_PREFIX))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(dfact.__version__)
@click.option("--debug", is_flag=True, help="Print the traceback of an error.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress; results, warnings and errors stay.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each iteration in place of a progress bar.")
@click.pass_context
def cli(context: click.Context, debug: bool, quiet: bool, verbose: bool) -> None:
    """Interpretable factors and classes of questionnaires, on one machine or on a Dask cluster.

    Try an example with real answers:

        dfact demo
    """
    del debug  # Commands.invoke reads it
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")
    if quiet:
        context.with_resource(hidden_progress("all"))
    if verbose:
        context.with_resource(hidden_progress("iterations"))
        context.with_resource(verbose_logging(in_job=context.invoked_subcommand == "run"))


@click.group(cls=ModelCommands)
def fit() -> None:
    """Fit a model to a dataset."""


@click.group(cls=ModelCommands)
def select() -> None:
    """Choose the parameters of a model from the data."""


for command in (
    demo,
    import_command,
    import_array_command,
    import_triplets_command,
    indicators,
    stack_groups_command,
    join,
    info,
    fit,
    select,
    stability,
    transform,
    update,
    export,
    plot,
    report,
    help_command,
):
    cli.add_command(command)
for each in INSTALLED:
    for name in each.commands.values():
        cli.add_command(load(name))
for spec in model_specs():
    fit.add_command(fit_command(spec))
    if spec.select is not None:
        select.add_command(select_command(spec, spec.select))
name_guides(cli)


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 invalid usage, 3 drift found, 130 or 143 stopped by SIGINT or SIGTERM.

    On a signal, fits with a checkpoint stop after the current pass, other commands at once. A second signal stops any command.
    """
    gc.set_threshold(100_000, 20, 20)  # the default collects a hundred times while modules are imported: a tenth of a small command
    with warnings.catch_warnings(), handle_signals():
        warnings.showwarning = _show_warning
        try:
            # click returns an exit code itself only for --help and --version.
            return int(cli.main(arguments, prog_name="dfact", standalone_mode=False) or 0)
        except click.ClickException as error:
            shown = io.StringIO()
            error.show(shown)
            click.echo(escape_lines(shown.getvalue()), nl=False, err=True)  # labels of a file could control the terminal
            return error.exit_code
        except StoppedError as error:
            return _stopped(error)
        except RuntimeError as error:
            if isinstance(error.__context__, StoppedError):  # a signal may interrupt threading.Condition as it takes its lock again
                return _stopped(error.__context__)
            raise


def _stopped(error: StoppedError) -> int:
    """Say where a signal stopped the command, and return its exit code."""
    click.echo(f"Stopped: {error}.", err=True)
    return 128 + error.signal


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    """Replace ``warnings.showwarning``: print the message on one line, without source code."""
    del category, filename, lineno, file, line
    click.echo(f"Warning: {escape_control(message)}", err=True)


if __name__ == "__main__":
    sys.exit(main())
