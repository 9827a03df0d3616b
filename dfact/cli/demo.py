"""``dfact demo``: example data of one kind, and the first commands of its guide."""

import json
import runpy
import shlex
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click

from dfact.catalogue import MISSING
from dfact.cli.demo_kinds import KINDS
from dfact.cli.demonstration import FOLDER
from dfact.cli.options import example
from dfact.cli.types import path_type
from dfact.errors import StoreError

_WIDTH = 100
_COMPILING = """\
The first run compiles some functions for this machine, which takes ten seconds or more. Later runs start at once."""


class _Kind(click.Choice[str]):
    """A kind of demo; a slice that is not installed is named for its kinds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return a kind that is there."""
        for each in MISSING:
            if value in each.demos:
                raise click.UsageError(each.missing(f"dfact demo {value}"), ctx)
        return super().convert(value, param, ctx)


def _help() -> str:
    width = max(map(len, KINDS)) + 2
    kinds = "\n".join(f"{kind:<{width}}{demo.phrase}" for kind, demo in KINDS.items())
    return f"""Write example data, and run the first commands of its guide.

KIND is one of the following, by default the first. The demo prints each command before it runs, and leaves its files in a folder.
The examples of all commands use these files. A kind that needs an extra of dfact names it; install it with: pip install 'dfact[EXTRA]'

\b
{kinds}
"""


@click.command(epilog=example("dfact demo", "dfact demo tensor"), help=_help())
@click.argument("kind", type=_Kind(list(KINDS)), default=next(iter(KINDS)))
@click.option("--output", metavar="DIR", type=path_type, default=Path(FOLDER), help="Folder for the files that the demo writes.")
@click.pass_context
def demo(context: click.Context, kind: str, output: Path) -> None:
    """Write the files of a kind, print and run its commands, and name its guide."""
    from dfact.imports.readers.base import require_modules
    from dfact.text import align_columns

    chosen = KINDS[kind]
    for each in MISSING:  # before anything is written
        if each.name in chosen.slices:
            raise click.UsageError(f"dfact demo {kind}: {each.missing('what it shows')}")
    require_modules(f"dfact demo {kind}", chosen.modules, chosen.extra)
    _check_folder(output)
    output.mkdir(parents=True, exist_ok=True)
    resolve_name(chosen.write)(output)
    for name, script in chosen.scripts.items():
        (output / name).write_text(_script_in(script, output))
    click.echo(f"{chosen.summary}\n{_COMPILING}\n\nFiles written to {output}")
    click.echo(align_columns([(f"  {name}", text) for name, text in chosen.files.items()]))
    for step in chosen.steps:
        arguments = [*_in_folder(step.command, output), *(["--overwrite"] if step.writes else ())]
        click.echo(f"\n{step.text}\n\n{_shown(arguments)}\n")
        _run(context.find_root(), arguments)
    click.echo(f"\nThe next command of the guide, which 'dfact help {chosen.guide}' prints:\n\n{_shown(_in_folder(chosen.next, output))}")


def _script_in(script: str, output: Path) -> str:
    """Return a script with its paths in the folder of the output."""
    script = script.replace(f'"{FOLDER}/answers.zarr"', json.dumps(str(output / "answers.zarr")))
    return script.replace(f'FOLDER = "{FOLDER}"', f"FOLDER = {json.dumps(str(output))}")


def _check_folder(output: Path) -> None:
    """Raise StoreError for a folder that holds anything but the files of demos."""
    if not output.exists():
        return
    stores = {name for demo in KINDS.values() for name in demo.results if name.endswith(".zarr")}
    files = {name for demo in KINDS.values() for name in (*demo.files, *demo.companions, *demo.scripts)}
    found = {path.name for path in output.iterdir()} if output.is_dir() else {output.name}
    if not (output.is_dir() and (found & stores or found <= files)):
        raise StoreError(
            f"{output} contains other files, expected an empty folder or that of an earlier demo; choose another with --output"
        )


def _in_folder(command: str, output: Path) -> list[str]:
    """Return the words of a command, with its paths in the folder of the output."""
    words = shlex.split(command)
    return [str(output / word.removeprefix(f"{FOLDER}/")) if word.startswith(f"{FOLDER}/") else word for word in words]


def _shown(words: list[str]) -> str:
    """Return a command to be copied, broken before options where it is long."""
    parts: list[str] = []
    for word in words:
        if word.startswith("-") or not parts:
            parts.append(shlex.quote(word))
        else:
            parts[-1] += f" {shlex.quote(word)}"
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) < _WIDTH:
            lines[-1] += f" {part}"
        else:
            lines.append(f"    {part}")
    return " \\\n".join(f"  {line}" for line in lines)


def _run(root: click.Context, words: list[str]) -> None:
    """Run a command of dfact or a Python script in this process."""
    program, *arguments = words
    if program == "python":
        runpy.run_path(str(Path(arguments[0]).resolve()), run_name="__main__")  # workers import it by its path
        return
    assert isinstance(root.command, click.Group), "dfact's commands"
    debug = ["--debug"] if root.params.get("debug") else []
    if code := root.command.main([*debug, *arguments], prog_name="dfact", standalone_mode=False):
        raise click.exceptions.Exit(code)
