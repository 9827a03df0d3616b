"""The same answers give the same dataset from every format that can hold them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyreadstat
import pytest
from pyarrow import feather

import dfact
from dfact.data.codebook import Codebook, Item

LEVELS = ["Never", "Several days", "More than half the days", "Nearly every day"]
WORDINGS = {"q1": "Little interest or pleasure", "q2": "Feeling down", "q3": "Trouble sleeping"}


def answers(seed: int) -> pd.DataFrame:
    """Draw answers 1 to 4 and 9, which is refused; the first rows hold every level."""
    rng = np.random.default_rng(seed)
    values = rng.choice([1.0, 2.0, 3.0, 4.0, 9.0], (60, 3), p=[0.3, 0.3, 0.2, 0.1, 0.1])
    values[:4] = np.arange(1.0, 5)[:, None]
    return pd.DataFrame(values, columns=list(WORDINGS))


def as_texts(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.map(lambda code: None if code == 9 else LEVELS[int(code) - 1])


def labelled(write: Callable[..., None], **options: object) -> Callable[[pd.DataFrame, Path], None]:
    labels = dict(enumerate(LEVELS, 1))

    def save(frame: pd.DataFrame, path: Path) -> None:
        write(
            frame,
            str(path),
            column_labels=list(WORDINGS.values()),
            variable_value_labels={name: labels | {9: "Refused"} for name in frame},
            **options,
        )

    return save


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    return as_texts(frame).astype(pd.CategoricalDtype(LEVELS, ordered=True))


DECLARED = {"missing_ranges": {name: [9] for name in WORDINGS}}
DESCRIBED: dict[str, tuple[Callable[[pd.DataFrame, Path], None], dict[str, object]]] = {
    "t.sav": (labelled(pyreadstat.write_sav, **DECLARED), {}),
    "t.zsav": (labelled(pyreadstat.write_sav, compress=True, **DECLARED), {}),
    "t.dta": (labelled(pyreadstat.write_dta), {"missing": 9}),
}
BARE: dict[str, tuple[Callable[[pd.DataFrame, Path], None], dict[str, object]]] = {
    "t.parquet": (lambda frame, path: ordered(frame).to_parquet(path), {}),
    "t.feather": (lambda frame, path: feather.write_feather(pa.Table.from_pandas(ordered(frame)), path), {}),
    "t.csv": (lambda frame, path: as_texts(frame).to_csv(path, index=False), {"levels": LEVELS}),
    "t.tsv.gz": (lambda frame, path: as_texts(frame).to_csv(path, index=False, sep="\t", na_rep="NA"), {"levels": "<".join(LEVELS)}),
}


def imported(frame: pd.DataFrame, name: str, folder: Path) -> dfact.Dataset:
    save, options = (DESCRIBED | BARE)[name]
    save(frame, folder / name)
    return dfact.import_table(folder / name, folder / f"{name}.zarr", items="q*", **options)


@pytest.mark.further
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.needs("formats")
def test_values_levels_and_wordings_are_those_of_every_format(seed: int, tmp_path: Path) -> None:
    frame = answers(seed)
    datasets = {name: imported(frame, name, tmp_path) for name in DESCRIBED | BARE}
    assert len({dataset.fingerprint for dataset in datasets.values()}) == 1
    levels = tuple(enumerate(LEVELS, 1))
    for names, wordings in ((DESCRIBED, WORDINGS), (BARE, {})):
        expected = Codebook(tuple(Item(name, wordings.get(name, ""), levels) for name in WORDINGS)).fingerprint
        assert {datasets[name].codebook.fingerprint for name in names} == {expected}
    refused = (frame == 9).sum().tolist()
    for name in DESCRIBED:
        assert [item.missing[0].count for item in datasets[name].codebook] == refused
        assert [item.missing[0].label for item in datasets[name].codebook] == ["Refused"] * 3
    for name in BARE:
        assert [item.n_empty + sum(missing.count for missing in item.missing) for item in datasets[name].codebook] == refused
