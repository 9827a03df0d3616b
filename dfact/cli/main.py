"""``dfact``: the commands, and how errors, warnings and an interrupt end them.

dfact's modules are imported inside the commands, so that ``dfact --help`` need not wait for them.
"""

import sys
import warnings
from typing import Any, TextIO

import click

import dfact
from dfact.cli.cp import fit_cp, select_cp
from dfact.cli.data import import_array_command, import_command, import_triplets_command, join
from dfact.cli.demo import demo
from dfact.cli.deploy import deploy
from dfact.cli.emf import fit_emf, select_emf
from dfact.cli.export import export
from dfact.cli.fit import fit
from dfact.cli.help import help_command
from dfact.cli.info import info
from dfact.cli.report import report
from dfact.cli.run import run
from dfact.cli.select import select
from dfact.cli.stability import stability
from dfact.cli.transform import transform
from dfact.errors import DfactError, StoppedError
from dfact.signals import handle_signals


class Commands(click.Group):
    """Shows an error that dfact raised on purpose as its message alone, unless asked for the traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DfactError as error:
            if ctx.params["debug"]:
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(dfact.__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Interpretable factors and classes of questionnaires, on one machine or on a Dask cluster.

    A first look, with real answers that come with dfact:

        dfact demo
    """


for command in (
    demo,
    import_command,
    import_array_command,
    import_triplets_command,
    join,
    info,
    fit,
    select,
    stability,
    transform,
    run,
    deploy,
    export,
    report,
    help_command,
):
    cli.add_command(command)
fit.add_command(fit_emf)
fit.add_command(fit_cp)
select.add_command(select_emf)
select.add_command(select_cp)


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns 0: done, 1: refused or failed, 2: wrong usage, 130 or 143: stopped by SIGINT or SIGTERM.

    What keeps a checkpoint stops behind the pass at hand, anything else at once, and so does all at the second signal.
    """
    with warnings.catch_warnings(), handle_signals():
        warnings.showwarning = _show_warning
        try:
            # Only with help and version does click return a number itself.
            return int(cli.main(arguments, prog_name="dfact", standalone_mode=False) or 0)
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except StoppedError as error:
            click.echo(f"Stopped: {error}.", err=True)
            return 128 + error.signal


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    """In place of ``warnings.showwarning``: one line for people, not a line of our source."""
    del category, filename, lineno, file, line
    click.echo(f"Warning: {message}", err=True)


if __name__ == "__main__":
    sys.exit(main())
