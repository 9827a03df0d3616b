"""Labels as users have them: in place of codes, as the index of a frame, and in AnnData's stores."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

import dfact
from dfact import DataError
from dfact.imports.readers.base import ReadOptions
from dfact.imports.readers.formats import open_array
from tests.imports.test_import_table import answers_of

DICTIONARY = (
    'Variable / Field Name,Form Name,Section Header,Field Type,Field Label,"Choices, Calculations, OR Slider Labels"\n'
    'id,f,,text,ID,\nmood,f,,radio,Mood,"1, Low | 2, So so | 3, High"\nsmoker,f,,yesno,Smoker,\n'
    'meds,f,,checkbox,Medication,"1, Aspirin | 2, None"\npain,f,,radio,Pain,"0, No | 1, Some | 9, Refused"\n'
)
CODES = "id,mood,smoker,meds___1,meds___2,pain\na,1,0,1,0,0\nb,3,1,0,1,1\nc,2,1,0,0,9\n"
LABELS = (
    "id,mood,smoker,meds___1,meds___2,pain\na,Low,No,Checked,Unchecked,No\n"
    "b,High,Yes,Unchecked,Checked,Some\nc,So so,Yes,Unchecked,Unchecked,Refused\n"
)


@pytest.mark.needs("formats")
def test_an_export_with_labels_is_that_with_codes(tmp_path: Path) -> None:
    (tmp_path / "dictionary.csv").write_text(DICTIONARY)
    datasets = []
    for name, content in (("codes", CODES), ("labels", LABELS)):
        (tmp_path / f"{name}.csv").write_text(content)
        settings: dict[str, Any] = {"dictionary": tmp_path / "dictionary.csv", "missing": {"pain": 9}}
        datasets.append(dfact.import_table(tmp_path / f"{name}.csv", tmp_path / f"{name}.zarr", **settings))
    np.testing.assert_array_equal(*map(answers_of, datasets))
    assert list(datasets[1].row_labels) == ["a", "b", "c"]
    assert datasets[0].codebook["mood"].levels == datasets[1].codebook["mood"].levels


@pytest.mark.needs("formats")
def test_a_text_that_is_no_label_is_refused_beside_labels(tmp_path: Path) -> None:
    (tmp_path / "dictionary.csv").write_text(DICTIONARY)
    (tmp_path / "t.csv").write_text(LABELS.replace("High", "Hihg"))
    with pytest.raises(DataError, match=r"line 3, column 'mood' holds 'Hihg', which is none of the levels; the closest is 'High'"):
        dfact.import_table(tmp_path / "t.csv", tmp_path / "d.zarr", items=["mood"], dictionary=tmp_path / "dictionary.csv")


def test_the_index_of_a_frame_holds_the_ids(tmp_path: Path) -> None:
    frame = pd.DataFrame({"q": [1, 2, 3], "index": [3, 2, 1]}, index=["x", "y", "z"])
    dataset = dfact.import_table(frame, tmp_path / "d.zarr", items="*")
    assert list(dataset.row_labels) == ["x", "y", "z"]
    np.testing.assert_array_equal(answers_of(dataset), frame)
    for index in ([5, 6, 7], ["x", "x", "y"]):
        plain = dfact.import_table(frame.set_axis(index), tmp_path / "e.zarr", items="*", overwrite=True)
        np.testing.assert_array_equal(answers_of(plain), frame)
    named = dfact.import_table(frame.rename_axis("who"), tmp_path / "f.zarr", items=["q"], id_column="who")
    assert list(named.row_labels) == ["x", "y", "z"]


def test_dense_arrays_of_anndata_and_their_names(tmp_path: Path) -> None:
    values = np.random.default_rng(4).integers(0, 9, (6, 5)).astype(np.float32)
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2, attributes={"encoding-type": "anndata", "encoding-version": "0.1.0"})
    for axis, prefix, n in (("obs", "cell", 6), ("var", "gene", 5)):
        frame = group.create_group(axis, attributes={"_index": "names"})
        frame.create_array("names", data=np.array([f"{prefix}{i}" for i in range(n)], "U8"))
    group.create_array("X", data=values)
    group.create_group("layers").create_array("counts", data=values + 1)
    group.create_group("sparse", attributes={"encoding-type": "csr_matrix"})
    for name, right in ((None, values), ("layers/counts", values + 1)):
        array = open_array(tmp_path / "a.zarr", ReadOptions(object=name))
        np.testing.assert_array_equal(array.values.read(0, 6), right)
        assert [list(labels)[-1] for labels in array.labels if labels is not None] == ["cell5", "gene4"]
    with pytest.raises(DataError, match=r"AnnData store and holds csr matrix as 'sparse', expected a dense array; save it as .h5ad"):
        open_array(tmp_path / "a.zarr", ReadOptions(object="sparse"))
