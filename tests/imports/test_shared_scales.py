"""Codes in doubt of real tables: at most two of their scales get a question that they do not need."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dfact import DfactError
from dfact.imports.coding.doubtful_codes import doubtful_labels, far_codes, far_of_counts
from dfact.imports.coding.no_answer import sounds_like_no_answer
from dfact.imports.readers.base import Table, Variable
from dfact.imports.readers.columnar.columns import read_cells
from dfact.imports.readers.formats import open_source, open_table
from dfact.imports.tables.items import valid_levels
from tests.conftest import REAL_DATA

NO_TABLES = (".md", ".json", ".npz", ".R", ".py", ".crc", ".html", ".r", ".tab", "_SUCCESS", "metadata", "dictionary.csv")
NO_ANSWERS = {
    "21000-0.0": (-3, -1),  # UK Biobank's codes
    "21000-2.0": (-1,),
    "20008-0.0": (-3, -1),
}


def tables() -> Iterator[tuple[Path, Table]]:
    folders = [REAL_DATA / name for name in ("questionnaires", "inputs", "psychometrics")]
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        if not path.name.endswith(NO_TABLES) and "phesant" not in path.parts and "oracles" not in path.parts:  # lists of codes; results
            try:
                yield path, open_table(open_source(path))
            except DfactError:  # arrays, files that are broken on purpose
                continue


def counts(table: Table, variable: Variable) -> Counter[float]:
    found = Counter[float]()
    for cells in read_cells(table, [variable.name], [], ["NA", "", ".", "None"]):
        values, n = np.unique(cells.numbers[~np.isnan(cells.numbers)], return_counts=True)
        found.update({code: k for code, k in zip(values.tolist(), n.tolist(), strict=True) if code not in variable.missing})
    return found


@pytest.mark.further
def test_scales_of_real_tables_get_no_needless_question() -> None:
    if not REAL_DATA.is_dir():
        pytest.skip("the real data is not next to the project")
    scales, measured, needless = set[tuple[tuple[float, str], ...]](), 0, []
    for path, table in tables():
        for name in table.columns:
            variable = table.variables.get(name, Variable(name))
            levels = tuple(valid_levels(variable)) if variable.labels else ()
            if levels:
                if levels not in scales and any(not sounds_like_no_answer(dict(levels)[code]) for code in doubtful_labels(dict(levels))):
                    needless.append((path.name, name))
                scales.add(levels)
            elif variable.type == "number" and not variable.excluded:
                try:
                    found = counts(table, variable)
                except DfactError:  # texts
                    continue
                measured += 1
                if far_of_counts(found) - {*NO_ANSWERS.get(name, ())}:
                    needless.append((path.name, name))
    assert len(scales) >= 25
    assert measured >= 400
    assert len(needless) <= 2, needless


@pytest.mark.further
def test_items_of_a_panel_get_no_needless_question() -> None:
    path = REAL_DATA / "tensors" / "gss_panel06.npz"
    if not path.exists():
        pytest.skip("the real data is not next to the project")
    X = np.load(path)["X"]
    columns = [np.unique(column[column >= 0], return_counts=True) for column in np.moveaxis(X, 1, 0)]
    columns = [(values, n) for values, n in columns if len(values) > 1]
    ends = np.array([(values[0], values[-1]) for values, _ in columns], np.float64)
    needless = [values for values, _ in columns if far_codes(values.astype(np.float64), ends)]
    assert len(columns) > 1000
    assert not needless
