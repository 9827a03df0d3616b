"""Options of ``dfact import`` about answers: levels, codes of single items, recoding."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def _each(
    parse: Callable[[dict[str, Any], str], None],
) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], dict[str, Any] | None]:
    """Return the callback of a repeatable option whose values add to one dict; None without a value."""

    def callback(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, Any] | None:
        parsed: dict[str, Any] = {}
        for value in values:
            parse(parsed, value)
        return parsed or None

    return callback


def _codes(parsed: dict[str, Any], value: str) -> None:
    """Parse [ITEM=]CODE,…: codes after ITEM= belong to the item, codes before any item to all items."""
    name = "*"
    for entry in value.split(","):
        item, equals, code = entry.partition("=")
        name = item.strip() if equals else name
        parsed.setdefault(name, []).append((code if equals else entry).strip())


def _empty(parsed: dict[str, Any], value: str) -> None:
    """Parse [ITEMS=]ANSWER."""
    items, equals, answer = value.rpartition("=")
    for item in items.split(",") if equals else ["*"]:
        parsed[item.strip()] = answer.strip()


def _recoded(parsed: dict[str, Any], value: str) -> None:
    """Parse ITEMS:OLD=NEW,…"""
    items, colon, pairs = value.partition(":")
    try:
        codes = {float(old): float(new) for old, new in (pair.split("=") for pair in pairs.split(","))}
    except ValueError:
        codes = {}
    if not colon or not codes:
        raise click.BadParameter(f"{value!r} is not a list of codes to replace, expected such as VIGFREQW:95=0")
    for item in items.split(","):
        parsed.setdefault(item.strip(), {}).update(codes)


def _ordered(parsed: dict[str, Any], value: str) -> None:
    """Parse [ITEMS:]A<B<C, or the path of a csv file with the columns text and code."""
    items, colon, levels = value.partition(":")
    if not colon or "<" in items:
        items, levels = "*", value
    table = Path(levels.strip())
    for item in items.split(","):
        parsed[item.strip()] = _read_levels(table) if table.suffix == ".csv" else levels.strip()


def _read_levels(path: Path) -> dict[str, float]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return {row["text"]: float(row["code"]) for row in csv.DictReader(file)}
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, ValueError) as error:
        raise click.BadParameter(f"cannot read levels from {path}: {error}; expected a csv file with the columns text and code") from error


levels_option = click.option(
    "--levels",
    multiple=True,
    metavar="[ITEMS:]A<B<C",
    callback=_each(_ordered),
    show_default=False,
    help="Order of text answers, from the lowest to the highest, or a csv file with the columns text and code; repeatable.",
)
recode_option = click.option(
    "--recode",
    multiple=True,
    metavar="ITEMS:OLD=NEW,...",
    callback=_each(_recoded),
    show_default=False,
    help="Codes to replace, before missing codes are applied; repeatable.",
)
missing_option = click.option(
    "--missing",
    multiple=True,
    metavar="[ITEM=]CODES",
    callback=_each(_codes),
    show_default=False,
    help="Codes of missing answers, such as -9 or race=6; empty cells and codes that the file declares are always missing. Repeatable or "
    "separated by commas.",
)
confounder_missing_option = click.option(
    "--confounder-missing",
    multiple=True,
    metavar="[NAME=]CODES",
    callback=_each(_codes),
    show_default=False,
    help="Codes of missing confounders, such as -9 or age=98; empty cells are always missing. Repeatable or separated by commas.",
)
not_missing_option = click.option(
    "--not-missing",
    multiple=True,
    metavar="[ITEM=]CODES",
    callback=_each(_codes),
    show_default=False,
    help="Codes that are answers, although the file, or their label, sign or distance, suggests that they are missing."
    " Repeatable or separated by commas.",
)
empty_cells_option = click.option(
    "--empty-cells",
    multiple=True,
    metavar="[ITEMS=]ANSWER",
    callback=_each(_empty),
    show_default=False,
    help="Answer that an empty cell is, such as 0 for boxes of which only those that are ticked have a 1; repeatable.",
)
