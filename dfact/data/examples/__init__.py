"""The example data that ships with the package."""

import csv
from importlib.resources import files
from pathlib import Path

__all__ = ["ipip_ascado", "ipip_ascado_items", "ipip_ascado_items_file"]


def ipip_ascado() -> Path:
    """Return the path of a csv file with the answers of 1005 participants to 40 items.

    The items belong to four IPIP scales: AS assertiveness, SC social confidence, AD adventurousness, DO dominance.
    Answers are 1 to 5, 0 = missing; further columns are age and gender (1 male, 2 female, 3 other, 0 not given).

    Source: raw data published by openpsychometrics.org for general public edification, anonymous,
    from participants who consented to research use; the IPIP items are in the public domain.

    Returns
    -------
    Path
        A file of the installed package.

    Examples
    --------
    >>> import dfact
    >>> dataset = dfact.import_table(dfact.examples.ipip_ascado(), "as.zarr", items="AS*", missing=0, empty_rows="drop")
    >>> dataset.shape
    (1004, 10)
    """
    return Path(str(files(__name__) / "ipip_ascado.csv"))


def ipip_ascado_items() -> dict[str, str]:
    """Return the text of each item of :func:`ipip_ascado`; the questionnaire puts "I" before it.

    Returns
    -------
    dict
        Texts by item.

    Examples
    --------
    >>> import dfact
    >>> dfact.examples.ipip_ascado_items()["AS1"]
    'Express myself easily.'
    """
    lines = ipip_ascado_items_file().read_text().splitlines()
    return {row["item"]: row["text"] for row in csv.DictReader(lines)}


def ipip_ascado_items_file() -> Path:
    """Return the path of a csv file with these texts, and the scale and key (1 or −1) of each item.

    Returns
    -------
    Path
        A file of the installed package.

    Examples
    --------
    >>> import dfact, pandas as pd
    >>> list(pd.read_csv(dfact.examples.ipip_ascado_items_file()))
    ['item', 'text', 'scale', 'key']
    """
    return Path(str(files(__name__) / "ipip_ascado_items.csv"))


def __dir__() -> list[str]:
    return __all__
