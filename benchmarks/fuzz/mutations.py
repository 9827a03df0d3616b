"""Mutations of files: bytes, JSON documents, Zarr stores, and cells of tables."""

import gzip
import io
import json
import random
import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Change = Callable[[bytes, random.Random], bytes]
"""A function that returns a file's content with some mutations."""
Mutation = Callable[[Path, random.Random], bool]
"""A function that mutates files of a folder, and returns whether what is read must be unchanged."""


def mutate_bytes(data: bytes, rng: random.Random, filled: Sequence[int] = ()) -> bytes:
    """Return the bytes with one to three small mutations, at one of the positions ``filled`` if there are any.

    Half of the results have the same length, so that the rest of the file is where its header says.
    """
    out = bytearray(data)
    kinds = rng.choice([range(8), (0, 5, 6, 7)])
    for _ in range(rng.randint(1, 3)):
        at = min(rng.choice(filled), len(out)) if filled else rng.randrange(len(out) + 1)
        length = min(rng.choice([1, 1, 2, 8, 64]), len(out) - at)
        match rng.choice(kinds):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                del out[at:]
            case 2:
                out[at:at] = rng.randbytes(rng.choice([1, 4, 32]))
            case 3:
                del out[at : at + length]
            case 4:
                out[at:at] = out[at : at + length]
            case 5:
                out[at : at + length] = rng.choice([b"\0", b"\xff", b"\x7f"]) * length
            case 6:
                number = rng.choice([0, 1, 2, 255, 2**31 - 1, 2**32 - 1]).to_bytes(4, rng.choice(["little", "big"]))
                out[at : at + 4] = number[: len(out) - at]
            case _:
                out[at : at + length] = rng.randbytes(length)
    return bytes(out)


DEEP = "placeholder of deep nesting"
"""Placeholder of a value nested deeper than Python's own writer allows."""


def as_json(tree: Any, rng: random.Random) -> str:
    depth = rng.choice([5, 300, 5000])
    return json.dumps(tree).replace(f'"{DEEP}"', '[{"a":' * depth + "0" + "}]" * depth)


STRANGE: list[Callable[[random.Random], Any]] = [
    lambda rng: rng.choice([None, True, False, "", "x", "../other", "/etc/passwd", "\0", "é\ud800", "NaN", "9" * 400, "a" * 70000]),
    lambda rng: rng.choice([0, 1, -1, 2, 7, 255, 256, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63)]),
    lambda rng: rng.choice([0.5, -0.0, 1e308, -1e308, 1e-320, float("nan"), float("inf"), -float("inf")]),
    lambda rng: rng.choice([[], {}, [[]], [None], {"": None}, [1, "a"], [-1, -1], [2**40, 2**40], {"name": "pickle"}]),
    lambda _: DEEP,
]


def mutate_json(tree: Any, rng: random.Random) -> Any:
    """Change a value of a JSON document, or remove, double or rename an entry."""
    if isinstance(tree, (dict, list)) and tree and rng.random() < 0.8:
        key = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
        match rng.randrange(12):
            case 0:
                del tree[key]
            case 1 if isinstance(tree, dict):
                tree[rng.choice(["x", "", "../x", key + "_"])] = tree.pop(key)
            case 2 if isinstance(tree, list):
                tree.append(tree[key])
            case _:
                tree[key] = mutate_json(tree[key], rng)
        return tree
    if isinstance(tree, (int, float)) and not isinstance(tree, bool) and rng.random() < 0.5:
        return rng.choice([tree + 1, tree - 1, -tree, tree * 2, tree * 10**6, float(tree), str(tree)])
    return rng.choice(STRANGE)(rng)


_DOCUMENTS = ("zarr.json", ".zgroup", ".zarray", ".zattrs")  # of Zarr formats 3 and 2


def mutate_store(folder: Path, rng: random.Random) -> bool:
    """Change a file of a Zarr store; return whether its values must be unchanged if it can still be read.

    Half of the stores with a seal lose it first, as it finds every other change.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    document = folder / "zarr.json"
    root = json.loads(document.read_text()) if document.exists() else {}
    if root.get("attributes", {}).get("dfact", {}).pop("seal", None) is None:
        return _mutate_file_of_store(files, rng)
    if rng.random() < 0.5:
        document.write_text(json.dumps(root))
        return _mutate_file_of_store(files, rng)
    before = document.read_bytes()
    same = _mutate_file_of_store(files, rng)
    return same or (document.exists() and document.read_bytes() == before)


def _mutate_file_of_store(files: list[Path], rng: random.Random) -> bool:
    documents = [path for path in files if path.name in _DOCUMENTS]
    chunks = [path for path in files if path.name not in _DOCUMENTS]
    match rng.randrange(10):
        case 0:
            rng.choice(files).unlink()
        case 1:
            first, second = rng.sample(files, 2)
            first_bytes, second_bytes = first.read_bytes(), second.read_bytes()
            first.write_bytes(second_bytes)
            second.write_bytes(first_bytes)
            return False  # minima and maxima have the same shape
        case 2:
            rng.choice(files).write_bytes(b"")
        case 3 | 4 | 5 if chunks:
            chunk = rng.choice(chunks)
            chunk.write_bytes(mutate_bytes(chunk.read_bytes(), rng))
        case 6:
            document = rng.choice(documents)
            document.write_bytes(mutate_bytes(document.read_bytes(), rng))
            return False
        case _:
            document = rng.choice([documents[0], *documents])
            tree = json.loads(document.read_text())
            if rng.random() < 0.7:
                tree.pop("consolidated_metadata", None)  # a copy for xarray, which would take precedence
            document.write_text(as_json(mutate_json(tree, rng), rng))
            return False
    return True


CELLS = ["", " ", "1e400", "-1e400", "1e-400", "NaN", "inf", "-inf", "nan", "NA", "-9", "0x10", "1_000", "1,5", "9" * 400, "1e308", "3.5"]
CELLS += ['"', '""', '"a', "a\nb", "\0", "é", "'", "=1+1", "\r", "-0", "2147483648", "16777217", "1e20", "x" * 140000, "١", "True", " 2 "]


def mutate_text(data: bytes, rng: random.Random, delimiter: str, encoding: str = "utf-8") -> bytes:
    """Change cells, lengths of rows, the encoding or quotes; or mutate the bytes."""
    rows = [line.split(delimiter) for line in data.decode(encoding).splitlines()]
    ending = "\n"
    for _ in range(rng.randint(1, 3)):
        row = rng.choice([rng.randrange(len(rows)), rng.randrange(len(rows)), 0])
        cell = rng.randrange(len(rows[row])) if rows[row] else 0
        match rng.randrange(13):
            case 0:
                rows[row].insert(cell, rng.choice(CELLS))
            case 1:
                del rows[row][cell : cell + rng.choice([1, 100])]
            case 2:
                rows.insert(row, list(rows[rng.randrange(len(rows))]))
            case 3 if len(rows) > 1:
                del rows[row : row + rng.choice([1, 1, 1000])]
                rows = rows or [[""]]
            case 4:
                encoding = rng.choice(["utf-8-sig", "utf-16", "utf-32", "latin-1", "utf-7"])
            case 5:
                ending = rng.choice(["\r\n", "\r", "\n\n", "\0\n", "\x0b"])
            case 6:
                return mutate_bytes(data, rng)
            case 7 if rows[row]:
                rows[row][cell] = f'"{rows[row][cell]}"'
            case _ if rows[row]:
                rows[row][cell] = rng.choice(CELLS)
    return ending.join(delimiter.join(row) for row in rows).encode(encoding, "replace")


def mutate_packed(unpack: Callable[[bytes], bytes], pack: Callable[[bytes], bytes], change: Change = mutate_bytes) -> Change:
    """Return a mutation of compressed content, which mutates the compressed bytes at times."""

    def mutate(data: bytes, rng: random.Random) -> bytes:
        return pack(change(unpack(data), rng)) if rng.random() < 0.7 else mutate_bytes(data, rng)

    return mutate


def mutate_archive(data: bytes, rng: random.Random) -> bytes:
    """Change, remove, double or rename a file of a zip archive; or mutate the bytes of the archive."""
    if rng.random() < 0.2:
        return mutate_bytes(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    i = rng.randrange(len(entries))
    name, content = entries[i]
    match rng.randrange(12):
        case 0:
            del entries[i]
        case 1:
            entries.append((rng.choice([entry for entry, _ in entries]) + rng.choice(["", "2"]), content))
        case 2:
            entries[i] = name.swapcase(), content
        case 3 | 4 | 5:
            entries[i] = name, _mutate_markup(content, rng)
        case _:
            entries[i] = name, mutate_bytes(content, rng)
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore", UserWarning)  # of names that occur twice
        for name, content in entries:
            archive.writestr(name, content)
    return out.getvalue()


MARKUP = ["", "-1", "0", "1", "7", "99", "4294967296", "9" * 30, "1e400", "nan", "x", "ZZZ1", "XFD1048576", "A0", "é", "&amp;", "&lt;", "s"]
"""Values of attributes and of elements, among them numbers and references of cells that no sheet has."""


def _mutate_markup(content: bytes, rng: random.Random) -> bytes:
    """Replace an attribute's value or an element's text, or remove, double or unclose a tag."""
    found = list(re.finditer(rb'(?<==")[^"]*(?=")|(?<=>)[^<>]+(?=<)|<[^>]*>', content))
    if not found:
        return mutate_bytes(content, rng)
    match = rng.choice(found)
    text = rng.choice([b"", match[0] * 2, match[0][:-1]]) if match[0].startswith(b"<") else rng.choice(MARKUP).encode()
    return content[: match.start()] + text + content[match.end() :]


def mutate_file(name: str, change: Change) -> Mutation:
    """Return a mutation of one file of the folder; a file with the suffix .gz is decompressed for it."""

    def mutate(folder: Path, rng: random.Random) -> bool:
        path = folder / name
        mutated = mutate_packed(gzip.decompress, gzip.compress, change) if name.endswith(".gz") else change
        path.write_bytes(mutated(path.read_bytes(), rng))
        return False

    return mutate


def mutate_any(*mutations: Mutation) -> Mutation:
    """Return a mutation that applies one of these."""
    return lambda folder, rng: rng.choice(mutations)(folder, rng)
