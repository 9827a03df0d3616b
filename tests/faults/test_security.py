"""Data of others runs no code and reaches nothing outside its store."""

import ast
import hashlib
import io
import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

import dfact
from dfact.cli.main import main
from dfact.imports.readers.arrays.numpy_files import read_array_file
from dfact.imports.readers.base import Format, ReadOptions
from dfact.imports.readers.formats import formats
from dfact.models.persistence import annotate_model
from dfact.storage.groups import ATTRIBUTE
from dfact.storage.input_files import InputFolder, open_input
from dfact.storage.replacement import host
from tests.cases import unseal
from tests.conftest import planted_answers

SOURCES = sorted(Path(dfact.__file__).parent.rglob("*.py"))
N, M = 30, 5
NAMES = ["../../x", "a/b", "a", "", ".", "..", "con", "x" * 5000, "a\0b", "a\nb", "été", "Age", "age", "/etc/passwd", "a//b", "a/c/0"]
NAMES += ["c:\\x", "100%", "a.", " ", "zarr.json", "\x1b[2J"]


class Trap:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def runs_data(node: ast.AST) -> bool:
    """Whether the statement could run data as code."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
        return bool({"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"} & {name.split(".")[0] for name in names})
    if isinstance(node, ast.Call):
        called, text = ast.unparse(node.func), ast.unparse(node)
        if called in {"eval", "exec", "compile", "__import__", "os.system", "pd.eval", "pd.read_pickle", "yaml.load"}:
            return True
        return "shell=True" in text or (called == "np.load" and "allow_pickle=False" not in text)
    return False


@pytest.mark.parametrize(
    "code", ["import pickle", "from joblib import load", "eval('1')", "np.load(path)", "subprocess.run(command, shell=True)"]
)
def test_code_that_runs_data_is_recognized(code: str) -> None:
    assert any(map(runs_data, ast.walk(ast.parse(code))))


@pytest.mark.further
def test_no_data_is_run_as_code() -> None:
    assert len(SOURCES) > 100
    nodes = ((path, node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text())))
    assert [f"{path.name}: {ast.unparse(node)}" for path, node in nodes if runs_data(node)] == []


def test_pickles_in_numpy_files_are_refused(tmp_path: Path) -> None:
    trap = np.array([[Trap(tmp_path / "sprung")]], dtype=object)
    np.save(tmp_path / "a.npy", trap)
    np.savez(tmp_path / "a.npz", x=trap)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    for name in ("a.npy", "a.npz", "b.npy"):
        with pytest.raises(dfact.DataError, match="file of numbers"):
            read_array_file(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def planted_dataset(path: Path) -> dfact.Dataset:
    """A dataset without a seal, as a stranger can write one."""
    dfact.import_array(planted_answers(N, M, 2, 0).astype(np.uint8), path, row_labels=[f"p{i}" for i in range(N)])
    unseal(path)
    return dfact.open_dataset(path)


def test_store_with_pickles_is_refused(tmp_path: Path) -> None:
    """Zarr format 2 has a codec that unpickles; the test does not depend on the versions that would run it."""
    planted_dataset(tmp_path / "good.zarr")
    attributes = zarr.open_group(tmp_path / "good.zarr", mode="r").attrs.asdict()
    old = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "<f8", "filters": None, "fill_value": 0, "order": "C"}
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / ".zarray").write_text(json.dumps({**old, "compressor": {"id": "pickle", "protocol": 5}}))
    (evil / "0").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    complete = tmp_path / "complete.zarr"
    for name in ("values", "column", "observed", "row"):
        shutil.copytree(evil, complete / name)
        mixed = tmp_path / f"{name}.zarr"  # within a group of format 3
        planted_dataset(mixed)
        shutil.rmtree(mixed / name)
        shutil.copytree(evil, mixed / name)
        with pytest.raises(dfact.StoreError):
            np.asarray(dfact.open_dataset(mixed).row_labels)
    (complete / ".zgroup").write_text('{"zarr_format": 2}')
    (complete / ".zattrs").write_text(json.dumps(attributes))
    with pytest.raises(dfact.StoreError, match="is not a Zarr group"):
        dfact.open_dataset(complete)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("names", [*(pytest.param(NAMES[i::5], marks=pytest.mark.further) for i in range(5)), NAMES], ids=len)
def test_names_stay_in_their_store(names: list[str], tmp_path: Path) -> None:
    levels = np.random.default_rng(0).choice(["u/../..", "\0"], (N, len(names)))
    frame = pd.DataFrame(levels, columns=names)
    columns, rows = [*names, *map(str, range(M))], [*names, *map(str, range(N))][:N]
    X = planted_answers(N, len(columns), 2, 0)
    path = tmp_path / "in" / "d.zarr"
    dfact.import_array(X, path, column_labels=columns, row_labels=rows, confounders=frame)
    dataset = dfact.open_dataset(path)
    assert dataset.confounders is not None
    assert list(dataset.confounders) == names
    np.testing.assert_array_equal(dataset.confounders.to_numpy(str), levels)
    assert (list(dataset.column_labels), list(dataset.row_labels)) == (columns, rows)
    model = dfact.ICQF(2, max_iter=2).fit(dataset)
    dfact.save_model(model, tmp_path / "in" / "m.model")
    assert list(dfact.load_model(tmp_path / "in" / "m.model").column_labels_) == columns
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == ["d.zarr", "m.model"]


def test_labels_that_are_no_unicode_are_refused(tmp_path: Path) -> None:
    X = planted_answers(N, M, 2, 0)
    odd = "half a pair \ud800"
    for given in ({"column_labels": [odd, *"abcd"]}, {"row_labels": [odd, *map(str, range(N - 1))]}):
        with pytest.raises(dfact.DataError, match="expected valid Unicode"):
            dfact.import_array(X, tmp_path / "d.zarr", **given)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.further
@pytest.mark.parametrize("name", ["confounder_arrays", "row_labels", "shape", "dtype", "empty_rows", "n_empty_rows"])
def test_missing_attributes_of_a_dataset_are_refused(tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame({"age": np.arange(N) + 0.5, "sex": ["f", "m"] * (N // 2)})
    written = dfact.import_array(planted_answers(N, M, 2, 0), tmp_path / "d.zarr", confounders=frame)
    pd.testing.assert_frame_equal(dfact.open_dataset(tmp_path / "d.zarr").confounders, written.confounders)
    unseal(tmp_path / "d.zarr")
    document = tmp_path / "d.zarr" / "zarr.json"
    tree = json.loads(document.read_text())
    del tree["attributes"][ATTRIBUTE][name]
    document.write_text(json.dumps(tree))
    with pytest.raises(dfact.StoreError, match=f"d.zarr is damaged: '{name}'; import it again"):
        dfact.open_dataset(tmp_path / "d.zarr")


@pytest.mark.further
@pytest.mark.parametrize("outside", ["../other", "../d.zarr/values", "/etc", "x/../../d.zarr/values", "..\\d.zarr\\values"])
def test_model_with_arrays_outside_its_store_is_refused(outside: str, tmp_path: Path) -> None:
    dataset = planted_dataset(tmp_path / "d.zarr")
    dfact.save_model(dfact.ICQF(2, max_iter=2).fit(dataset), tmp_path / "m.model")
    document = tmp_path / "m.model" / "zarr.json"
    tree = json.loads(document.read_text())
    found = tree["attributes"][ATTRIBUTE]
    found["model"]["fitted"]["components_"]["array"] = outside
    found["digest"] = hashlib.blake2b(json.dumps(found["model"], sort_keys=True).encode(), digest_size=16).hexdigest()
    document.write_text(json.dumps(tree))
    with pytest.raises(dfact.StoreError, match="is damaged"):
        dfact.load_model(tmp_path / "m.model")


@pytest.mark.parametrize("change", [{"fit": 1}, {"__class__": 1}, {"_private_": 1}, {"loadings_": 1}, {"components_": {"part": "Popen"}}])
def test_model_with_unknown_attributes_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    dfact.save_model(dfact.ICQF(2, max_iter=2).fit(planted_answers(N, M, 2, 0)), tmp_path / "m.model")
    document = tmp_path / "m.model" / "zarr.json"
    tree = json.loads(document.read_text())
    found = tree["attributes"][ATTRIBUTE]
    found["model"]["fitted"].update(change)
    found["digest"] = hashlib.blake2b(json.dumps(found["model"], sort_keys=True).encode(), digest_size=16).hexdigest()
    document.write_text(json.dumps(tree))
    with pytest.raises(dfact.StoreError, match="does not fit this dfact"):
        dfact.load_model(tmp_path / "m.model")


def edit(path: Path, change: Any) -> None:
    tree = json.loads(path.read_text())
    tree.pop("consolidated_metadata", None)
    change(tree)
    path.write_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("array", "shape"), [("values", [1 << 50, M]), ("values", [N, 1 << 50]), ("column", [1 << 50]), ("observed", [1 << 50]), ("row", [-1])]
)
def test_false_sizes_are_not_allocated(array: str, shape: list[int], tmp_path: Path) -> None:
    planted_dataset(tmp_path / "d.zarr")

    def grow(tree: Any) -> None:
        tree["shape"] = tree["chunk_grid"]["configuration"]["chunk_shape"] = shape

    edit(tmp_path / "d.zarr" / array / "zarr.json", grow)
    with pytest.raises(dfact.StoreError):
        dfact.open_dataset(tmp_path / "d.zarr")


@pytest.mark.further
@pytest.mark.parametrize(
    "change",
    [
        {"missing_code": "x"},
        {"missing_code": True},
        {"missing_code": 10**30},
        {"confounders": 5},
        {"confounders": ["age"]},
        {"dropped_rows": -1},
        {"empty_rows": [10**9]},
        {"n_empty_rows": float("nan")},
        {"fingerprint": None},
        {"kind": []},
    ],
)
def test_invalid_attributes_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    planted_dataset(tmp_path / "d.zarr")
    edit(tmp_path / "d.zarr" / "zarr.json", lambda tree: tree["attributes"][ATTRIBUTE].update(change))
    with pytest.raises(dfact.StoreError):
        dfact.open_dataset(tmp_path / "d.zarr")


def test_deeply_nested_metadata_is_refused(tmp_path: Path) -> None:
    planted_dataset(tmp_path / "d.zarr")
    (tmp_path / "d.zarr" / "column" / "zarr.json").write_text("[" * 100_000)
    with pytest.raises(dfact.StoreError, match="'column'"):
        dfact.open_dataset(tmp_path / "d.zarr")


@pytest.mark.further
@pytest.mark.parametrize("name", ["column", "row"])
def test_damaged_labels_are_refused(name: str, tmp_path: Path) -> None:
    dataset = planted_dataset(tmp_path / "d.zarr")
    chunk = next(path for path in (tmp_path / "d.zarr" / name).rglob("*") if path.is_file() and path.name != "zarr.json")
    original = chunk.read_bytes()
    for at in range(0, len(original), 7):
        chunk.write_bytes(original[:at] + bytes([original[at] ^ 1]) + original[at + 1 :])
        with pytest.raises(dfact.StoreError):
            np.asarray(dfact.open_dataset(tmp_path / "d.zarr").row_labels)
    chunk.unlink()
    with pytest.raises(dfact.StoreError):
        dfact.open_dataset(tmp_path / "d.zarr")
    assert dataset.shape == (N, M)


def test_missing_row_labels_are_reported(tmp_path: Path) -> None:
    planted_dataset(tmp_path / "d.zarr")
    (tmp_path / "d.zarr" / "row" / "zarr.json").unlink()
    with pytest.raises(dfact.StoreError, match="lacks its array 'row'"):
        dfact.open_dataset(tmp_path / "d.zarr")


def test_parquet_file_with_invalid_names_is_refused(tmp_path: Path) -> None:
    table = pd.DataFrame({"Q0": [1, 2], "Q1": [2, 1]})
    table.to_parquet(tmp_path / "t.parquet")
    original = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(original.replace(b"Q0", b"\xff0"))
    with pytest.raises(dfact.DfactError):
        dfact.import_table(tmp_path / "t.parquet", tmp_path / "d.zarr", items=["Q1"])


def test_invalid_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.ones((30, 5)))
    original = path.read_bytes()
    directory = original.rindex(b"PK\x01\x02")
    for offset, value in ((10, 99), (8, 1)):  # an unknown compression; encrypted
        path.write_bytes(original[: directory + offset] + bytes([value]) + original[directory + offset + 1 :])
        with pytest.raises(dfact.DataError, match="file of numbers"):
            read_array_file(path)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 5)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(1200))
    with pytest.raises(dfact.DataError, match="for which the file is too short"):
        read_array_file(path)


@pytest.mark.parametrize("linked", ["values/c/0/0", "column/c", "row/zarr.json", "observed"])
def test_links_out_of_a_store_are_refused(linked: str, tmp_path: Path) -> None:
    planted_dataset(tmp_path / "d.zarr")
    inside = tmp_path / "d.zarr" / linked
    shutil.move(inside, tmp_path / "outside")
    inside.symlink_to(tmp_path / "outside")

    def read_all() -> None:
        dataset = dfact.open_dataset(tmp_path / "d.zarr")
        np.asarray(dataset.row_labels)
        dfact.ICQF(2, max_iter=2).fit(dataset)

    with pytest.raises(dfact.StoreError, match="is a link that leads out of its folder"):
        read_all()


def write_folder(kind: str, path: Path) -> list[str]:
    """Write a folder of this format, and return the names of a file and of a folder in it that a stranger could replace by links."""
    if kind == "parquet":
        (path / "wave=1").mkdir(parents=True)
        pd.DataFrame({"A1": [1.0, 2.0], "A2": [2.0, 3.0]}).to_parquet(path / "wave=1" / "part.parquet")
        return ["wave=1/part.parquet", "wave=1"]
    if kind == "Zarr":
        group = zarr.open_group(path, mode="w")
        group.create_array("X", data=np.eye(3), dimension_names=["r", "c"])
        group.create_array("r", data=np.arange(3))
        return ["r/c/0", "r/zarr.json", "r"]
    from tests.genetics.test_genotypes import write_vcf_zarr

    write_vcf_zarr(path, np.zeros((4, 3, 2), np.int8), np.array([["T", "C"]] * 4), 3)
    return ["sample_id/c/0", "sample_id/zarr.json", "call_genotype"]


@pytest.mark.parametrize("each", [each for each in formats() if each.folders], ids=lambda each: each.name)
def test_links_out_of_a_folder_are_refused_by_every_reader(each: Format, tmp_path: Path) -> None:
    suffix = each.suffixes[0]
    for number, linked in enumerate(write_folder(each.name, tmp_path / f"names{suffix}")):
        folder = tmp_path / f"{number}{suffix}"
        write_folder(each.name, folder)
        shutil.move(folder / linked, tmp_path / f"outside{number}")
        (folder / linked).symlink_to(tmp_path / f"outside{number}")
        with pytest.raises(
            dfact.StoreError, match=f"{number}{suffix}/{linked} is a link that leads out of its folder; replace it with a copy"
        ):
            each.open(open_input(folder), ReadOptions())
        (folder / linked).unlink()
        shutil.move(tmp_path / f"outside{number}", folder / f"kept{number}")
        (folder / linked).symlink_to(folder / f"kept{number}")
        each.open(open_input(folder), ReadOptions())


@pytest.mark.needs("genetics")
def test_links_of_a_vcf_zarr_store_are_checked_again_when_it_is_read(tmp_path: Path) -> None:
    from dfact.genetics.vcf_zarr import VCFZarr

    [label, *_] = write_folder("VCF Zarr", tmp_path / "a.vcz")
    found = open_input(tmp_path / "a.vcz")
    (tmp_path / "secret").write_bytes((tmp_path / "a.vcz" / label).read_bytes())
    (tmp_path / "a.vcz" / label).unlink()
    (tmp_path / "a.vcz" / label).symlink_to(tmp_path / "secret")
    assert isinstance(found, InputFolder)
    with pytest.raises(dfact.StoreError, match="leads out of its folder"):
        VCFZarr(found)


def test_links_to_a_store_and_within_it_are_followed(tmp_path: Path) -> None:
    planted_dataset(tmp_path / "d.zarr")
    shutil.move(tmp_path / "d.zarr" / "row", tmp_path / "d.zarr" / "kept")
    (tmp_path / "d.zarr" / "row").symlink_to("kept")
    (tmp_path / "link.zarr").symlink_to(tmp_path / "d.zarr")
    assert list(dfact.open_dataset(tmp_path / "link.zarr").row_labels)[:2] == ["p0", "p1"]


def test_a_result_is_not_written_through_a_link(tmp_path: Path) -> None:
    dataset = planted_dataset(tmp_path / "d.zarr")
    model = dfact.ICQF(2, max_iter=2).fit(dataset)
    dfact.save_model(model, tmp_path / "m.model")
    own = tmp_path / "own"
    own.mkdir()
    (own / "letter").write_text("mine")
    (tmp_path / f"new.model.incomplete-{host()}.{os.getpid()}.1.1").symlink_to(own)
    dfact.save_model(model, tmp_path / "new.model")
    assert not (tmp_path / "new.model").is_symlink()
    dfact.load_model(tmp_path / "new.model")
    shutil.move(tmp_path / "m.model" / "zarr.json", own)
    (tmp_path / "m.model" / "zarr.json").symlink_to(own / "zarr.json")
    before = (own / "zarr.json").read_bytes()
    with pytest.raises(dfact.StoreError):
        annotate_model(tmp_path / "m.model", model, "stability_")
    assert (own / "zarr.json").read_bytes() == before
    assert sorted(path.name for path in own.iterdir()) == ["letter", "zarr.json"]


CONTROLS = ["\x1b]0;title\x07", "\x1b[2J", "a\rb", "\x9b31m", "two\nlines", "\u2028x", "\u202egnp.exe", "é"]
"""Labels that would control a terminal, forge a line of a log or be shown in another order."""


@pytest.mark.needs("questionnaires")
@pytest.mark.further
@pytest.mark.filterwarnings("ignore:the correlation with the rest of the scale")
@pytest.mark.filterwarnings("always:the anchor of F")  # printed, with the labels of the groups
def test_control_characters_of_labels_are_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)  # as on a terminal; click removes sequences elsewhere
    data, model = str(tmp_path / "d.zarr"), str(tmp_path / "m.model")
    answers = planted_answers(160, len(CONTROLS), 2, 0)
    frame = pd.DataFrame({"group\x1b[2J": ["a\x1b[31m", "b\x9b1m"] * 80})
    dfact.import_array(answers, data, column_labels=CONTROLS, row_labels=[f"{CONTROLS[i % 8]}{i}" for i in range(160)], confounders=frame)
    scales = "item,scale\n" + "".join(f'"{item}","s\x1b[2J{i % 2}"\n' for i, item in enumerate(CONTROLS))
    (tmp_path / "scales.csv").write_text(scales, newline="")
    (tmp_path / "job.toml").write_text(f'[job]\nstate = "{tmp_path}/state"\n[[step]]\nrun = "describe"\ndata = "{data}"\nout = "d.html"\n')
    by = ["--by", "group\x1b[2J", "--resamples", "30", "--no-test"]
    for code, arguments in (
        (0, ["info", data]),
        (0, ["fit", "icqf", data, model, "-k", "2", "--max-iter", "3"]),
        (0, ["info", model]),
        (0, ["describe", data]),
        (0, ["describe", data, "--items", str(tmp_path / "scales.csv")]),
        (0, ["compare", model, data, *by]),
        (0, ["run", str(tmp_path / "job.toml")]),
        (1, ["info", data, "--items", "\x1b*"]),
        (1, ["--debug", "info", str(tmp_path / "\x1b[2J")]),
        (1, ["compare", model, data, "--by", "\x1b[2J"]),
    ):
        assert main(arguments) == code, arguments
    told = capsys.readouterr()
    assert r"\x1b[2J" in told.out
    assert r"\x1b[2J" in told.err
    assert r"items for group\x1b[2J=b\x9b1m" in told.err
    assert "é" in told.out
    assert [line for line in (told.out + told.err).split("\n") if not line.isprintable()] == []
