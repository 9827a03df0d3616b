"""``dfact help``: the guides, as text for a terminal."""

import re
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable

import click

from dfact.catalogue import BY_COMMAND, CATALOGUE, INSTALLED, MISSING
from dfact.cli.demo_kinds import KINDS
from dfact.cli.options import example

_WIDTH = 110
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
_GUIDE = re.compile(r"(?:\.\./.*guides/)?([\w-]+)\.md")
"""A link to a guide, of the core or of a slice."""
_ITALIC, _ESCAPED = re.compile(r'(?<![\w*`"])\*([^\s*]+)\*'), re.compile(r"\\([\[\]])")
_IMAGE = re.compile(r'<img[^>]*alt="([^"]*)"[^>]*>')
_GUIDES = {
    "demo": "questionnaires",
    "export": "formats",
    "import": "import",
    "import-array": "import",
    "import-triplets": "import",
    "indicators": "import",
    "info": "import",
    "join": "import",
    "report": "tour",
    "select": "selection",
    "stability": "stability",
    "plot": "tensors",
    "stack-groups": "tensors",
    "transform": "import",
    "update": "updates",
}
"""Guides of the commands of the core that do not belong to one model."""


def _guides() -> dict[str, Traversable]:
    """Return the file of each guide of the core and of the installed slices, in the order of their names."""
    package = files("dfact")
    found = {file.name.removesuffix(".md"): file for file in (package / "guides").iterdir() if file.name.endswith(".md")}
    found |= {name: package / each.name / "guides" / f"{name}.md" for each in INSTALLED for name in each.guides}
    return dict(sorted(found.items()))


def _guide_of() -> dict[str, str]:
    """Return the guide of each command, class and kind of demo, by its name in lower case."""
    found = {kind: demo.guide for kind, demo in KINDS.items()} | {f"demo {kind}": demo.guide for kind, demo in KINDS.items()}
    found |= {entry.name.lower(): entry.guide for entry in CATALOGUE}
    for command, entry in BY_COMMAND.items():
        found |= dict.fromkeys((command, f"fit {command}", f"select {command}"), entry.guide)
    found |= _GUIDES
    for each in INSTALLED:
        found |= each.topics
    return found


def _missing(key: str) -> str | None:
    """Return what to tell a user who asks for a topic of a slice that is not installed; None for other topics."""
    for each in MISSING:
        if key in each.guides:
            return each.missing(f"the guide {key!r}")
        models = {name.lower() for entry in each.models for name in (entry.name, entry.command) if name}
        if key.removeprefix("fit ").removeprefix("select ").removeprefix("demo ") in {*each.topics, *each.demos, *models}:
            return each.missing(f"the guide of {key!r}")
    return None


def name_guides(root: click.Group) -> None:
    """End the help of each command with its guide."""
    guides = _guide_of()
    for name, command in _commands(root):
        if name in guides:
            command.epilog = f"{command.epilog or ''}\n\nGuide: dfact help {guides[name]}"


def _commands(group: click.Group, *names: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands below a group with their names, such as ``fit icqf``."""
    for name, command in group.commands.items():
        yield " ".join([*names, name]), command
        if isinstance(command, click.Group):
            yield from _commands(command, *names, name)


@click.command("help", epilog=example("dfact help memory", "dfact help fit cp", "dfact help PCA"))
@click.argument("topic", nargs=-1)
@click.pass_context
def help_command(context: click.Context, topic: tuple[str, ...]) -> None:
    """Print a guide.

    TOPIC is the name of a guide, or of a command, a class or a kind of demo that a guide is about. Without TOPIC, lists the guides.
    """
    guides, guide_of, root = _guides(), _guide_of(), context.find_root().command
    assert isinstance(root, click.Group), "dfact's commands"
    commands = dict(_commands(root))
    name = " ".join(topic)
    key = name.removeprefix("dfact ").removeprefix("dfact.").lower()
    if not topic:
        click.echo("Guides, printed by: dfact help TOPIC\n")
        width = max(map(len, guides)) + 2
        for each, file in guides.items():
            title = file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
            click.echo(f"  {each:<{width}}{title}")
        click.echo("\nTOPIC may also be a command, a class, or a kind of demo, such as: fit cp, PCA, words")
        click.echo("Options of a command: dfact COMMAND --help")
    elif (guide := key if key in guides else guide_of.get(key)) in guides:
        click.echo("\n".join(_as_text(guides[guide].read_text(encoding="utf-8"))))
    elif (told := _missing(guide or key)) is not None:
        raise click.ClickException(told)
    elif key in commands:
        click.echo(commands[key].get_help(click.Context(commands[key], info_name=key, parent=context.find_root())))
    else:
        [closest] = get_close_matches(key, [*guides, *guide_of, *commands], n=1, cutoff=0)
        expected = f"a command, a class, a kind of demo, or one of the guides {', '.join(guides)}"
        raise click.UsageError(f"TOPIC is {name!r}, expected {expected}; did you mean {closest!r}?")


def _as_text(markdown: str) -> Iterator[str]:
    """Yield the lines of a guide: headings underlined, code indented, tables as columns or lists, links and pictures as text."""
    for kind, lines in _parts(markdown):
        if kind == "code":
            yield from (f"    {line}" if line else "" for line in lines)
        elif kind == "table":
            yield from _table([[_plain(cell.strip()) for cell in line.strip("|").split("|")] for line in lines])
        elif kind == "heading":
            [line] = lines
            marks, _, title = line.partition(" ")
            yield from (title, ("=" if marks == "#" else "-") * len(title))
        elif kind == "text":
            indent = "  " if re.match(r"- |\d\. ", lines[0]) else ""
            yield from _wrap(_plain(" ".join(line.strip() for line in lines)), "", indent)
        else:
            yield from lines


def _parts(markdown: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts of a page with their kinds: heading, text (a paragraph or an item of a list), table, code, verbatim."""
    kind, lines, code = "", list[str](), False
    for line in markdown.splitlines():
        fence = line.startswith("```")
        found = "code" if code else "" if fence else _kind(line)
        if lines and (found != kind or re.match(r"- |\d\. |#", line)) and not (code and kind == "code"):
            yield kind, lines
            lines = []
        if not fence:
            kind = found
            lines.append(line)
        elif code and lines:
            yield "code", lines
            lines = []
        code ^= fence
    yield kind, lines


def _kind(line: str) -> str:
    if line.startswith("#"):
        return "heading"
    if line.startswith("|"):
        return "table"
    return "text" if line and not line.startswith("    ") else "verbatim"


def _plain(text: str) -> str:
    plain = _IMAGE.sub(r"[Picture: \1]", _LINK.sub(_link, text)).replace("**", "")
    return _ESCAPED.sub(r"\1", _ITALIC.sub(r"\1", plain))


def _link(found: re.Match[str]) -> str:
    text, target = found.groups()
    if target.startswith("https:"):
        return f"{text} ({target})"
    guide = _GUIDE.fullmatch(target)
    return text if guide is None else f"{text} (dfact help {guide[1]})"


def _table(rows: list[list[str]]) -> Iterator[str]:
    """Yield a narrow table in columns, a wide one as a list: the first cell, and the others below it, named if there are several."""
    names, _, *rows = rows
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    if sum(widths) + 2 * len(widths) <= _WIDTH:
        for row in [names] * any(names) + rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        return
    for first, *others in rows:
        yield from _wrap(first, "- ", "  ")
        for name, cell in zip(names[1:], others, strict=True):
            if cell:
                yield from _wrap(f"{name}: {cell}" if len(others) > 1 else cell, "    ", "    ")


def _wrap(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False)
