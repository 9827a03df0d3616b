"""Words of the commands by the kind of the data: genotypes have individuals and SNPs, measurements rows, tensors slices."""

import re
from html import unescape
from pathlib import Path

import pytest

import dfact
from dfact.cli.main import main
from dfact.data.dataset import kind_of, words_of
from dfact.data.examples.arrays import write_air, write_spectra

_OTHERS = r"participants?|items?|persons?|people|subjects?|respondents?"
_OF_PROGRAMS = r"|deviances?|objectives?|passes|memberships?|loadings? of each"


def read_page(path: Path) -> str:
    """Return the texts of a report, with the descriptions of its figures."""
    page = path.read_text()
    described = " ".join(re.findall(r'(?:alt|title|aria-label)="([^"]*)"', page))
    page = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", "\n", page)) + "\n" + described


def run(commands: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run commands, one a line; return what they print, with the texts of the files that they write."""
    texts = ""
    for line in commands.strip().splitlines():
        assert main(line.split()) == 0, line
        printed = capsys.readouterr()
        texts += printed.out + printed.err
    for path in Path().rglob("*"):
        if path.suffix == ".html":
            texts += read_page(path)
        elif path.suffix == ".csv" and not path.name.startswith("_"):
            texts += path.read_text().splitlines()[0]
    return texts


def found(words: str, texts: str) -> list[str]:
    return [line.strip()[:160] for line in texts.splitlines() if re.search(rf"\b({words})\b", line, re.IGNORECASE)]


GENOTYPES = """
import cohort.bed cohort.zarr
import newcomers.bed newcomers.zarr
info cohort.zarr
fit pca cohort.zarr pca.model -k 2 --scale binomial --plot pca.png
fit admixture cohort.zarr three.model -k 3
select admixture cohort.zarr best.model -k 2-3 --folds 2 --seed 0
select pca cohort.zarr scree.model -k 1-3 --scale binomial --seed 0
info pca.model
info three.model
stability three.model cohort.zarr --snp-blocks 10 --resamples 2 --seed 0
transform three.model newcomers.zarr new.Q
transform pca.model newcomers.zarr new.csv
export pca.model scores.csv --table factors
export pca.model weights.csv
export three.model three.csv --table factors
structure structure.png three.model
pong runs three.model --data cohort.zarr -k 2
report pca.model pca.html --data cohort.zarr
report best.model best.html --data cohort.zarr
update pca.model newcomers.zarr
report pca.model more.html
"""
MEASUREMENTS = """
import _air.csv air.zarr --id-column day --items NO,NO2,CO,soot,SO2,PM10,PM2.5,ozone,temperature,humidity,wind,sunshine
import _later.csv later.zarr --id-column day --items NO,NO2,CO,soot,SO2,PM10,PM2.5,ozone,temperature,humidity,wind,sunshine
info air.zarr
fit pca air.zarr pca.model -k 3 --scale standard
fit fa air.zarr fa.model -k 2
select pca air.zarr scree.model -k 1-4 --scale standard --seed 0
stability pca.model air.zarr --resamples 3 --seed 0
transform pca.model later.zarr new.csv
export pca.model loadings.csv
export pca.model scores.csv --table factors
info pca.model
info fa.model
report pca.model pca.html --data air.zarr
report fa.model fa.html --data air.zarr
update pca.model later.zarr
report pca.model more.html
"""
TENSOR = """
import-array spectra.npz spectra.zarr --object X
info spectra.zarr
fit cp spectra.zarr cp.model -k 3 --lam 1e-6 --seed 0
info cp.model
export cp.model modes.csv
export cp.model rows.csv --table factors
report cp.model cp.html --data spectra.zarr
"""


@pytest.mark.further
@pytest.mark.needs("genetics")
def test_words_of_genotypes(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    from dfact.genetics.examples import write_cohort

    write_cohort(Path())
    texts = run(GENOTYPES, capsys)
    assert found(_OTHERS + _OF_PROGRAMS, texts) == []
    for word in ("individuals", "SNPs", "ancestry proportions", "log likelihood", "CV error", "iterations"):
        assert word in texts
    assert '"SNP","PC1","PC2"' in texts
    assert '"row","population","PC1","PC2"' in texts


@pytest.mark.parametrize(
    ("write", "commands"),
    [pytest.param(write_air, MEASUREMENTS, marks=pytest.mark.needs("questionnaires")), (write_spectra, TENSOR)],
    ids=["measurements", "tensor"],
)
def test_words_of_other_data(
    write: object, commands: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert callable(write)
    write(Path())
    for path in Path().glob("*.csv"):
        path.rename(f"_{path.name}")
    assert found(_OTHERS + "|answers?", run(commands, capsys)) == []


def test_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("day,a,b\nx,1.5,2\ny,2.25,3\nz,4.75,1\n")
    (tmp_path / "b.csv").write_text("id,a,b\nx,1,2\ny,2,3\nz,4,1\n")
    air = dfact.import_table(tmp_path / "a.csv", tmp_path / "a.zarr", items=["a", "b"], id_column="day")
    answers = dfact.import_table(tmp_path / "b.csv", tmp_path / "b.zarr", items=["a", "b"], id_column="id")
    array = dfact.import_array([[1.0, 2.0], [2.0, 1.0]], tmp_path / "c.zarr")
    assert [kind_of(dataset) for dataset in (air, answers, array)] == ["measurements", "answers", "values"]
    assert [words_of(dataset).a_column for dataset in (air, answers, array)] == ["a measurement", "an item", "a column"]
    assert dfact.PCA(1).fit(answers).vocabulary.rows == "participants"
    assert dfact.PCA(1).fit(air).vocabulary.items == "measurements"
    model = dfact.PCA(1).fit(array)
    assert (model.data_kind_, model.vocabulary.rows, model.vocabulary.items) == (None, "rows", "columns")
    dfact.save_model(dfact.PCA(1).fit(air), tmp_path / "m")
    assert dfact.load_model(tmp_path / "m").data_kind_ == "measurements"
