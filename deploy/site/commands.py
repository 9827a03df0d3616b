"""Pages of the commands, as sources for Sphinx: what ``--help`` prints, with headings and lists in place of columns."""

import inspect
import re
import textwrap
from collections.abc import Iterator

import click

from dfact.cli.main import cli


def _plain(text: str) -> str:
    """Return a text with the characters escaped that mark up reStructuredText."""
    return re.sub(r"([\\*`_|])", r"\\\1", text)


def _parts(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; those that click leaves unwrapped, and indented ones, as literal blocks."""
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        literal = part.lstrip().startswith("\b")
        body = part.replace("\b\n", "").rstrip()
        title, _, rest = body.partition("\n")
        if literal and re.fullmatch(r"\S.*:", title) and rest:
            yield f"{_plain(title)}:\n\n{textwrap.indent(textwrap.dedent(rest), '    ')}"
        elif literal or body.startswith(" "):
            yield f"::\n\n{textwrap.indent(textwrap.dedent(body), '    ')}"
        else:
            yield _plain(" ".join(body.split()))


def _section(context: click.Context, marks: str) -> Iterator[str]:
    """Yield the parts of a command and of the commands below it."""
    command, path = context.command, context.command_path
    yield f"{path}\n{marks[0] * len(path)}"
    yield from _parts(command.help or "")
    yield f"::\n\n    {path} {' '.join(command.collect_usage_pieces(context))}"
    records = [record for parameter in command.get_params(context) if (record := parameter.get_help_record(context))]
    described = [f"``{names}``\n    {_plain(' '.join(text.split()))}" for names, text in records if text]
    if described:
        yield "\n\n".join(described)
    yield from _parts(command.epilog or "")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.commands[name]
            yield from _section(click.Context(below, context, name, **below.context_settings), marks[1:])


def commands() -> dict[str, str]:
    """Return a page for each command of the shell, and their index, by the names of their files."""
    title = "Reference of the commands"
    parts = [f"{title}\n{'=' * len(title)}", "``dfact COMMAND --help`` prints the same."]
    root = click.Context(cli, info_name="dfact", **cli.context_settings)
    names = cli.list_commands(root)
    parts += [f":doc:`dfact-{name}`\n   {_plain(cli.commands[name].get_short_help_str(200))}" for name in names]
    parts += [".. toctree::\n   :hidden:", "\n".join(f"   dfact-{name}" for name in names)]
    pages = {"index.rst": "\n\n".join(parts) + "\n"}
    for name in names:
        context = click.Context(cli.commands[name], root, name, **cli.commands[name].context_settings)
        pages[f"dfact-{name}.rst"] = "\n\n".join(_section(context, "=-~")) + "\n"
    return pages
