"""Targets: files of statistical programs and of spreadsheets, which say what their columns are."""

# ruff: noqa: ARG001  # every reader takes the same arguments
import gzip
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

import dfact
from benchmarks.fuzz.datasets import check_dataset
from benchmarks.fuzz.mutations import Change, mutate_any, mutate_archive, mutate_bytes, mutate_file, mutate_packed
from benchmarks.fuzz.tables import IMPORT, check_table
from benchmarks.fuzz.target import M, N, Target, answers
from dfact.formats.statistical import readstat

Reference = Callable[[Path], pd.DataFrame]
"""A reader that shares no code with dfact; it may raise any error for what it cannot read."""
LABELS = {0: "never", 1: "seldom", 2: "sometimes", 3: "often", 4: "always", -9: "refused"}
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "inputs" / "sas"
"""Folder with files that no program here can write."""


def described_target(
    name: str,
    save: Callable[[Path], None],
    reference: Reference | None,
    change: Change = mutate_bytes,
    options: dict[str, Any] | None = None,
    **columns: str,
) -> Target:
    """Return a target in a format that describes its columns; ``columns`` are arguments of :func:`check_table`."""

    def read(folder: Path, out: Path, same: bool) -> None:
        with mock.patch.multiple(readstat, _PART_ENTRIES=250, _BATCH_ENTRIES=120):
            dataset = dfact.import_table(folder / name, out / "d.zarr", **IMPORT | (options or {}))
        check_dataset(dataset, None)
        frame = loaded(reference, folder / name) if reference else None
        if frame is not None:
            check_table(dataset, frame.to_dict("records"), list(frame), **columns)

    return Target(lambda folder: save(folder / name), mutate_file(name, change), read)


def loaded(reference: Reference, path: Path) -> pd.DataFrame | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return reference(path)
        except Exception:
            return None


def numeric_answers() -> pd.DataFrame:
    return answers().astype({f"Q{j}": np.float64 for j in range(M)})


def save_sav(path: Path, **how: Any) -> None:
    import pyreadstat

    labels, missing = {f"Q{j}": LABELS for j in range(3)}, {f"Q{j}": [-9] for j in range(M)}
    pyreadstat.write_sav(
        numeric_answers(),
        path,
        column_labels=[f"Question {name}" for name in answers()],
        variable_value_labels=labels,
        missing_ranges=missing,
        variable_measure={f"Q{j}": "ordinal" for j in range(3)},
        **how,
    )


def load_spss(path: Path) -> pd.DataFrame:
    import pyreadstat

    reader = pyreadstat.read_por if path.suffix == ".por" else pyreadstat.read_sav
    return reader(path, disable_datetime_conversion=True)[0]


def save_por(path: Path) -> None:
    import pyreadstat

    pyreadstat.write_por(numeric_answers().rename(columns=str.upper), path)


def save_dta(path: Path, version: int) -> None:
    import pyreadstat

    table = numeric_answers()
    table["Q5"] = table["Q5"].astype(object).where(table["Q5"] != 4, "a")
    labels: Any = {"Q0": LABELS, "Q5": {1: "seldom", 2: "sometimes", 3: "often", 0: "never", "a": "refused"}}
    tags = {"Q5": ["a"]}
    pyreadstat.write_dta(table, path, version=version, variable_value_labels=labels, missing_user_values=tags)


def load_dta(path: Path) -> pd.DataFrame:
    frame = pd.read_stata(path, convert_dates=False, convert_categoricals=False)
    # Files of version 8 do not name their encoding: Stata for Windows wrote cp1252, which pandas reads as Latin-1.
    return frame.assign(id=frame["id"].str.encode("latin-1").str.decode("cp1252")) if path.read_bytes()[:1] == b"q" else frame


def save_xpt(path: Path, version: int) -> None:
    import pyreadstat

    pyreadstat.write_xport(numeric_answers(), path, file_format_version=version)


def load_xpt(path: Path) -> pd.DataFrame:
    import pyreadstat

    return pyreadstat.read_xport(path, disable_datetime_conversion=True)[0]


def save_r(path: Path, **form: Any) -> None:
    from tests.formats.test_r import Vector, data_frame, texts, write

    table = answers()
    labels = Vector(np.array([float(code) for code in LABELS]), names=texts(*LABELS.values()))
    cells: dict[str, Any] = {name: table[name].to_numpy() for name in ("id", "age")}
    for j in range(M):
        codes = table[f"Q{j}"].to_numpy()
        described = {"label": texts(f"Question {j}"), "labels": labels, "na_values": np.array([-9.0])}
        described["class"] = texts("haven_labelled", "double")
        cells[f"Q{j}"] = Vector(codes.astype(np.float64), **described) if j < 3 else codes.astype(np.int32)
    levels = {"levels": texts("m", "f"), "class": texts("factor")}
    cells["sex"] = Vector((1 + (table["sex"] == "f")).to_numpy(np.int32), **levels)
    frame = data_frame(np.arange(1, N + 1, dtype=np.int32), **cells)
    write(path, {"answers": frame} if path.suffix == ".rda" else frame, **form)


def load_r(path: Path) -> pd.DataFrame:
    import rdata
    from rdata.conversion import DEFAULT_CLASS_MAP

    def labelled(codes: Any, attributes: Any) -> Any:
        return np.where(np.isin(codes, attributes.get("na_values", [])), np.nan, codes)  # damage may declare any code as missing

    read = rdata.read_rda if path.suffix == ".rda" else rdata.read_rds
    found = read(path, constructor_dict={**DEFAULT_CLASS_MAP, "haven_labelled": labelled})
    frame = found["answers"] if path.suffix == ".rda" else found
    return frame.astype({"id": object})


def rows_of_answers() -> list[list[Any]]:
    table = answers()
    return [list(table), *(list(row) for row in table.itertuples(index=False))]


def save_xlsx(path: Path) -> None:
    from tests.formats.test_spreadsheet import write_xlsx

    write_xlsx(path, {"Answers": rows_of_answers(), "Other": []})


def save_ods(path: Path) -> None:
    from tests.formats.test_spreadsheet import write_ods

    write_ods(path, rows_of_answers())


def load_sheet(path: Path) -> pd.DataFrame:
    """Return the first sheet, unless its header is no longer in its first row."""
    frame = pd.read_excel(path, engine="calamine", dtype={"id": object}, keep_default_na=False, na_values=[""])
    if list(frame) != list(answers()):
        raise ValueError("another header")
    return frame[~frame.isna().all(axis=1)]


def load_sas(path: Path) -> pd.DataFrame:
    """Return the table, unless pandas finds other columns: it takes damaged names from elsewhere in the file."""
    frame = pd.read_sas(path, encoding="latin-1")
    if list(frame) != ["id", "workshop", "gender", "q1", "q2", "q3", "q4"]:
        raise ValueError("other columns")
    return frame


def catalogue_target() -> Target:
    """Return the target of a SAS file with the catalogue of its labels, either of which may be damaged."""
    names = ("hadley.sas7bdat", "hadley_formats.sas7bcat")
    filled = {name: np.flatnonzero(np.frombuffer((SHARED / name).read_bytes(), np.uint8)).tolist() for name in names}

    def make(folder: Path) -> None:
        for name in names:
            shutil.copy(SHARED / name, folder / name)

    def damage(name: str) -> Change:
        def change(data: bytes, rng: random.Random) -> bytes:
            return mutate_bytes(data, rng, filled[name])

        return change

    def read(folder: Path, out: Path, same: bool) -> None:
        path, labels = (folder / name for name in names)
        said: dict[str, Any] = {"items": "q*", "confounders": ["workshop", "gender"], "empty_rows": "drop"}
        with mock.patch.multiple(readstat, _PART_ENTRIES=14, _BATCH_ENTRIES=8):
            dataset = dfact.import_table(path, out / "d.zarr", labels=labels, **said)
        check_dataset(dataset, None)
        frame = loaded(load_sas, path)
        if frame is not None:
            check_table(dataset, frame.to_dict("records"), list(frame), items="q*", id_column="")

    return Target(make, mutate_any(*(mutate_file(name, damage(name)) for name in (names[0], *names))), read)


POR = {"id_column": "ID", "confounders": ["AGE", "SEX"]}
DESCRIBED_TARGETS = {
    "sav": described_target("t.sav", save_sav, load_spss),
    "compressed sav": described_target("t.sav", lambda path: save_sav(path, row_compress=True), load_spss),
    "zsav": described_target("t.zsav", lambda path: save_sav(path, compress=True), load_spss),
    "por": described_target("t.por", save_por, load_spss, options=POR, id_column="ID"),
    "dta 8": described_target("t.dta", lambda path: save_dta(path, 8), load_dta),
    "dta": described_target("t.dta", lambda path: save_dta(path, 15), load_dta),
    "xpt 5": described_target("t.xpt", lambda path: save_xpt(path, 5), load_xpt),
    "xpt 8": described_target("t.xpt", lambda path: save_xpt(path, 8), load_xpt),
    **({"sas7bdat": catalogue_target()} if SHARED.is_dir() else {}),
    "rds": described_target("t.rds", lambda path: save_r(path, compression="gzip"), load_r, mutate_packed(gzip.decompress, gzip.compress)),
    "rda": described_target("t.rda", lambda path: save_r(path, compression=None, format_version=2), load_r),
    "rda text": described_target("t.rda", lambda path: save_r(path, compression=None, file_format="ascii"), load_r),
    "xlsx": described_target("t.xlsx", save_xlsx, load_sheet, mutate_archive),
    "xlsm": described_target("t.xlsm", save_xlsx, load_sheet, mutate_archive),
    "ods": described_target("t.ods", save_ods, load_sheet, mutate_archive),
}
