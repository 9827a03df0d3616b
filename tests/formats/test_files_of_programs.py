"""Files of which one part is odd, as programs write them."""

import zlib
from base64 import b64decode
from pathlib import Path

import numpy as np
import pandas as pd
import pyreadstat
import pytest

import dfact
from dfact import DataError, ParameterError
from dfact.imports.readers.formats import open_array, open_table
from tests.formats.test_r import Vector, texts, write
from tests.imports.test_import_table import answers_of

LABEL_RECORDS = (
    "eNrtmE1oHVUUx8/c+U5q8xqfRQVLENS0ddH2WenCNqkgLlxVlBbbzWuS15Qm9vUlVurG8SM7RVEMjLiw6LogQinoIgqCixHduU3FhSBCESsujOP/njlz32Ru"
    "A6l0Ucs7yf04v7n3zv3fc+e+N++H77etXvzs/qtUs0Pk0j95TEGFOUhR6TQI1/NcV8syRsoH9r+yOEIgA5++uCsLDyN+Ot5PkqKfvYM0yoE+sf+3PQck/sfU"
    "27hG9CDne+ke+lbH/NV3nWJT+HS4d7o9d5tc+FJt9sJ2+njdUAE91549O98uu2whfcXpd1mlJje8no9VHpCVsXX8jwG/VdyhG63z7qL9X3W+cwP+6AZ81wY8"
    "viEfKucT9fn7yqNG4ua63JYEXI4mHpd3JyGXlBCXzcTP36OfqHio9NnJp6dk+ihlgkqikWRJwjnpysrKCoqE0jSntNVB04wytO/gL9cNO/CznPvlMmYxXiLD"
    "JcUN0Ub3y9A/z1NK4ecp+mLcPEup1cmplWXgaK1TitTB8J2UlpeXCQ2olQK08I+UcgJroS/AElbpd0/fcIszSzPUpmkap3lapCnUe7SASL1FHlbTob/pGRpG"
    "S51covnuKeRTF+bQffr0QhdP7GxX13vtRdRfXkT93MLMFOrnF5C15wFOzbR7KKbavZM5Tq+IPvD0s0v0DconUOrQFSdeY92Jt4vPs93IHXqd60k/uvSQDh6W"
    "6zVc+cpr6ukRDgYu3uDWb3L+sOnzy8Qjlfq4qV+b2FmpX8Q5CkVUHDoKp+sxOZhWJ8rSoedxBX3UViYh53qR1lgN0Qjna7ItR3i0wlPwlPFceK7xPHie8Xx4"
    "vvECeIHxQnih8SJ4kfFieLHxhuDxnTBXx8yMaP9kQRxD7hWiDJkW4pYkOS5Ez7TFNiJEz/bP8RPvfH3dExKU5KU9QkIzcjmfyJBrEwWJDWlIr6EaUZYKZalQ"
    "lgplqVCWCsUqCguFaBVLvx65ssPfK6SuQlkqlKVCWSpcVvFdpu1xIY7Vpq/iuBCjYvKoEM+Ms1WIVoFAYO2VEK1Cx2b8o31CwtqcXUuFa6lwKyqKNh6r6LAV"
    "sfCsWHh9FWNdIfVYeKzi0+7BoR8/iYRoFVd26LWPhWgV53STbktIaM0nqkXHq6goR66r8FkFb4TPi/XxKyrGhBgVyXkhRsXqjJD+joqF+OX+WRoWUt9RvrWj"
    "fEuFb6nwKyqIScAqPkxh9+0TUo9FUInFnJD+jnpBiFbRvPT01VeagRCtgsGlYSFBGZ0DjwmpxyKwVASWimBdLA6pUbrMh+lk5YvFA3JGyssOyUfGwAY2sIHd"
    "gfYsncXfIr6oP0UvouzRhZvqvx3ndflbgrPJPuXvRdqO4u49OkMneR5nbnr+o/iUqf6esemOjVu3hv/p/nR73N/h9wR+5eJvWL68EYUSJ53WBj+T3bH2L7PW"
    "eQs="
)
"""A workbook by R's WriteXLS, whose texts are label records of UTF-16."""


def test_label_records_of_old_workbooks(tmp_path: Path) -> None:
    path = tmp_path / "x.xls"
    path.write_bytes(zlib.decompress(b64decode(LABEL_RECORDS)))
    table = open_table(path)
    assert table.columns == ["mpg", "cyl", "disp", "hp", "drat", "wt", "qsec", "vs", "am", "gear", "carb"]
    answers = answers_of(dfact.import_table(path, tmp_path / "d.zarr", items=["mpg", "cyl"]))
    assert answers.shape == (6, 2)
    np.testing.assert_allclose(answers[:3], [[21, 6], [21, 6], [22.8, 4]], rtol=1e-6)


def transport(folder: Path, members: dict[str, pd.DataFrame | None]) -> Path:
    """Write a transport file with several datasets; None stands for one without columns."""
    content = b""
    for name, frame in members.items():
        own = pd.DataFrame({"x": [1.0]}) if frame is None else frame
        pyreadstat.write_xport(own, folder / "one.xpt", file_format_version=5, table_name=name)
        one = (folder / "one.xpt").read_bytes()
        if frame is None:
            columns = one[560:640].replace(b"0000000001", b"0000000000")
            one = one[:560] + columns + b"HEADER RECORD*******OBS     HEADER RECORD!!!!!!!" + b"0" * 30 + b"  "
        content += one[240:] if content else one
    (folder / "t.xpt").write_bytes(content)
    return folder / "t.xpt"


def test_an_empty_dataset_does_not_block_the_others(tmp_path: Path) -> None:
    first, second = pd.DataFrame({"V1": [1.0, 2, 3], "V2": [4.0, 5, 5]}), pd.DataFrame({"W1": [5.0, 6, 7], "W2": [2.0, 1, 1]})
    path = transport(tmp_path, {"FIRST": first, "EMPTY": None, "SECOND": second})
    with pytest.raises(ParameterError, match=r"3 datasets \(FIRST, EMPTY, SECOND\), expected one; choose one with object= \(--object\)"):
        dfact.import_table(path, tmp_path / "d.zarr", items="V*")
    with pytest.raises(DataError, match="the dataset EMPTY is empty, expected columns and rows; choose another one"):
        dfact.import_table(path, tmp_path / "d.zarr", items="V*", object="EMPTY")
    for name, frame in (("FIRST", first), ("SECOND", second)):
        dataset = dfact.import_table(path, tmp_path / "d.zarr", items="*", object=name, overwrite=True)
        np.testing.assert_array_equal(answers_of(dataset), frame)


def test_a_damaged_dataset_does_not_block_the_others(tmp_path: Path) -> None:
    first = pd.DataFrame({"V1": [1.0, 2, 3], "V2": [4.0, 5, 5], "V3": [1.0, 1, 2]})
    path = transport(tmp_path, {"FIRST": first, "SECOND": first})
    content = path.read_bytes()
    path.write_bytes(content[:-80] + b"\x41" * 80)
    np.testing.assert_array_equal(answers_of(dfact.import_table(path, tmp_path / "d.zarr", items="*", object="FIRST")), first)
    with pytest.raises(DataError, match=r"the dataset SECOND ends within row .*; the file is damaged or incomplete: export it again"):
        dfact.import_table(path, tmp_path / "e.zarr", items="*", object="SECOND")


@pytest.mark.parametrize(("classes", "held"), [(("factor",), "a factor"), (("Date",), "dates"), (("POSIXct", "POSIXt"), "dates")])
def test_factors_and_dates_of_r_with_dimensions_are_no_numbers(classes: tuple[str, ...], held: str, tmp_path: Path) -> None:
    levels = {"levels": texts("no", "yes")} if "factor" in classes else {}
    codes = np.array([1, 2, 2, 1], np.int32)
    write(tmp_path / "t.rds", Vector(codes, dim=np.array([2, 2], np.int32), **{"class": texts(*classes)}, **levels))
    for read in (open_array, open_table):
        with pytest.raises(DataError, match=rf"t \(matrix, 2 × 2\) holds {held}, expected numbers or text; save a data frame"):
            read(tmp_path / "t.rds")
