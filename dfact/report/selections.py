"""What a selection found, as text."""

import pandas as pd

from dfact.report.tables import indented, table_text
from dfact.selection.result import Selection

_FORMATS = {"seconds": "{:.2f}", "passes": "{:d}", "n": "{:d}", "zeros": "{:d}", "rank": "{:d}"}


def selection_text(selection: Selection) -> str:
    """The candidates with their scores, the best of them marked."""
    table = selection.table.copy()
    for name in table:
        table[name] = table[name].map(_FORMATS.get(str(name), "{:.6f}").format)
    table = table.reset_index()
    best = (table[list(selection.best_params)] == pd.Series(selection.best_params)).all(axis=1)
    for name in selection.best_params:
        table[name] = table[name].map("{:g}".format) if table[name].dtype.kind == "f" else table[name]
    return indented(table_text(table.assign(**{"": best.map({True: "best", False: ""})}), header=True))
