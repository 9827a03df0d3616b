"""The demos, each run once in a process, whose files guides and examples of help use; commands parsed and not run."""

import io
import shlex
import shutil
from contextlib import chdir, redirect_stdout
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks.faults.fits import forked_workers
from dfact.cli.demo_kinds import KINDS
from dfact.cli.demonstration import FOLDER
from dfact.cli.main import cli, main

LEFT = {kind: {*each.files, *each.companions, *each.scripts, *each.results} for kind, each in KINDS.items()}
"""Names of what each demo leaves in its folder."""


@cache
def run_demo(kind: str) -> tuple[TemporaryDirectory[str], str]:
    """Run a demo once; return its folder and what it prints."""
    folder, printed = TemporaryDirectory(), io.StringIO()
    with chdir(folder.name), redirect_stdout(printed), forked_workers():
        assert main(["demo", kind]) == 0
    return folder, printed.getvalue()


def demo(kind: str = "questionnaire") -> None:
    """Leave the files of a demo in this folder, and print its output."""
    made, printed = run_demo(kind)
    shutil.copytree(made.name, ".", dirs_exist_ok=True)
    click.echo(printed)


def leave_files(text: str) -> None:
    """Leave the files of demos that a text names in this folder."""
    for kind, names in LEFT.items():
        if any(f"{FOLDER}/{name}" in text and not Path(FOLDER, name).exists() for name in names):
            demo(kind)


def parsed(line: str) -> click.Context:
    """Parse a command of dfact without running it."""
    _, *words = shlex.split(line)
    command: click.Command = cli
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    return command.make_context(command.name, words, parent=click.Context(cli))
