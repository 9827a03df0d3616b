"""dfact import-array reads Zarr stores of other programs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import dfact
from dfact.cli.main import main
from dfact.imports.readers.base import ReadOptions
from dfact.imports.readers.formats import open_array, open_labels
from tests.suites.array_file import draw, expected

SHAPE = (30, 6, 5)


@pytest.mark.further
@pytest.mark.parametrize(("zarr_format", "dtype"), [(2, np.float64), (3, np.int16)])
def test_array_without_a_name_gives_the_same_dataset(
    zarr_format: int, dtype: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    X = draw(np.random.default_rng(zarr_format), SHAPE, dtype)
    source = tmp_path / "x.zarr"
    zarr.create_array(source, data=X, chunks=(7, 6, 5), zarr_format=zarr_format)  # type: ignore[arg-type]  # from the parameters
    assert main(["import-array", str(source), str(tmp_path / "found.zarr")]) == 0
    assert dfact.open_dataset(tmp_path / "found.zarr").fingerprint == expected(X, tmp_path)
    found = dfact.import_array(open_array(source).transpose(), tmp_path / "turned.zarr", empty_rows="drop")
    assert found.fingerprint == expected(X.T, tmp_path, empty_rows="drop")
    with pytest.raises(dfact.ParameterError, match="holds one array without a name, expected none; omit --object"):
        open_array(source, ReadOptions(object="X"))
    capsys.readouterr()


def test_arrays_of_xarray_have_their_coordinates_and_missing_codes(tmp_path: Path) -> None:
    X = draw(np.random.default_rng(0), SHAPE, np.int16)
    labels = [[f"{'rcs'[mode]}{i} é" for i in range(size)] for mode, size in enumerate(SHAPE)]
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)
    array = group.create_array("X", data=np.where(X == 7, -9, X), attributes={"_ARRAY_DIMENSIONS": ["r", "c", "s"], "missing_value": -9})
    for name, texts in zip("rcs", labels, strict=True):
        group.create_array(name, data=np.array(texts, "<U8" if name == "r" else np.dtypes.StringDType()))
    found = dfact.import_array(open_array(tmp_path / "x.zarr"), tmp_path / "found.zarr")
    assert [list(found.row_labels), list(found.column_labels), *map(list, found.mode_labels)] == labels
    options = {"row_labels": labels[0], "column_labels": labels[1], "mode_labels": labels[2:]}
    assert found.fingerprint == expected(np.where(X == 7, -9, X), tmp_path, missing=-9, **options)
    assert open_labels(tmp_path / "x.zarr", "c") == labels[1]
    array.attrs["scale_factor"] = 0.1
    with pytest.raises(dfact.DataError, match=r"X of x.zarr is packed \(scale_factor\), expected plain numbers; open it with xarray"):
        open_array(tmp_path / "x.zarr")


def test_one_of_several_arrays_is_named_and_a_lost_or_damaged_one_is_reported(tmp_path: Path) -> None:
    X = draw(np.random.default_rng(0), SHAPE, np.float32)
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    for name, values in (("X", X), ("Y", X[:3])):
        group.create_array(name, data=values, chunks=values.shape)
    with pytest.raises(dfact.ParameterError, match=r"x.zarr holds 2 arrays \(X 30×6×5, Y 3×6×5\), expected one; choose one with object"):
        open_array(tmp_path / "x.zarr")
    found = dfact.import_array(open_array(tmp_path / "x.zarr", ReadOptions(object="X")), tmp_path / "found.zarr")
    assert found.fingerprint == expected(X, tmp_path)
    for chunk in (path for path in (tmp_path / "x.zarr" / "X" / "c").rglob("*") if path.is_file()):
        chunk.write_bytes(chunk.read_bytes()[:20])
    with pytest.raises(dfact.DfactError, match="cannot read"):
        dfact.import_array(open_array(tmp_path / "x.zarr", ReadOptions(object="X")), tmp_path / "damaged.zarr")
    (tmp_path / "x.zarr" / "X" / "zarr.json").write_text("{")
    with pytest.raises(dfact.DfactError, match="cannot read"):
        open_array(tmp_path / "x.zarr")
    (tmp_path / "folder").mkdir()
    with pytest.raises(dfact.DataError, match=r"is a folder without files of an array \(\.zarr\)"):
        open_array(tmp_path / "folder")


def test_a_dataset_is_refused(tmp_path: Path) -> None:
    dfact.import_array(np.eye(3), tmp_path / "d.zarr", missing=None)
    with pytest.raises(dfact.DataError, match=r"d\.zarr holds a dfact dataset, expected an array of another program"):
        open_array(tmp_path / "d.zarr")
