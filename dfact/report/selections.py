"""What a selection found, as text."""

import pandas as pd

from dfact.report.tables import indented, table_text
from dfact.selection.result import Selection


def selection_text(selection: Selection) -> str:
    """The candidates with their scores, the best of them marked."""
    table = selection.table.map("{:.6f}".format).reset_index()
    best = (table[list(selection.best_params)] == pd.Series(selection.best_params)).all(axis=1)
    return indented(table_text(table.assign(**{"": best.map({True: "best", False: ""})}), header=True))
