"""The codebook of an instrument: texts and groups of its items."""

import csv
from pathlib import Path

from dfact.errors import DataError


def read_items(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Read the texts and the groups of items, by item, from a csv file; empty cells are left out.

    Raises DataError unless the file has a column ``item`` and a column ``text`` or ``group``.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}; expected a csv file with columns item and text, group or both") from error
    columns = list(rows[0]) if rows else []
    if "item" not in columns or not {"text", "group"} & set(columns):
        raise DataError(f"{path} has columns {columns}, expected item and text, group or both")
    texts, groups = ({row["item"]: row[name] for row in rows if row.get(name)} for name in ("text", "group"))
    return texts, groups
