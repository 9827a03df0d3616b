"""Real data that ships with the package."""

import csv
from importlib.resources import files
from pathlib import Path


def ipip_ascado() -> Path:
    """1005 participants, 40 items of four IPIP scales (AS assertiveness, SC social confidence, AD
    adventurousness, DO dominance), answers 1 to 5, 0 = missing; age and gender (1 male, 2 female,
    3 other, 0 not given).

    Source: raw data published by openpsychometrics.org for general public edification, anonymous,
    from participants who consented to research use; the IPIP items are in the public domain.
    """
    return Path(str(files(__name__) / "ipip_ascado.csv"))


def ipip_ascado_items() -> dict[str, str]:
    """The text of each item of :func:`ipip_ascado`; participants read "I" before it."""
    lines = ipip_ascado_items_file().read_text().splitlines()
    return {row["item"]: row["text"] for row in csv.DictReader(lines)}


def ipip_ascado_items_file() -> Path:
    """The same as a table, which ``dfact report --items`` takes."""
    return Path(str(files(__name__) / "ipip_ascado_items.csv"))
