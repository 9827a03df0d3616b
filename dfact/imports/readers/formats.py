"""The reader of a table, an array or genotypes, chosen by the suffix of its file and checked against its first bytes."""

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from math import prod
from os import PathLike
from typing import Any

import numpy as np

from dfact.catalogue import INSTALLED, MISSING
from dfact.data.sources.array import LabelledArray
from dfact.data.sources.frames import collected
from dfact.errors import DataError, ParameterError
from dfact.extensions import extensions, load_extension
from dfact.imports import readers
from dfact.imports.readers.base import Content, Format, Input, ReadOptions, Table, require_modules
from dfact.imports.readers.frames import ArrowStream, InputFrame, open_frame
from dfact.storage.input_files import InputFolder, open_input

TableSource = str | PathLike[str] | ArrowStream
"""A path or URL, or a data frame."""
_IGNORED = (".crc",)
"""Suffixes of files that Spark and Hadoop write next to their parts."""

_OTHER_SIGNATURES = (
    (b"SR\0", "an IDL save file"),
    (b"PK\x03\x04", "a zip archive or a workbook"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\xd0\xcf\x11\xe0", "an old Office file"),
    (b"%PDF", "a PDF file"),
    (b"<htm", "a web page"),
    (b"<!DO", "a web page"),
)
_NAMES: dict[Content, tuple[str, str]] = {
    "table": ("a table", "dfact import"),
    "array": ("an array", "dfact import-array"),
    "genotypes": ("genotypes", "dfact import, or dfact.import_genotypes"),
}
"""Each content in messages, and what imports it."""
_ARCHIVE, _OF_WORKBOOKS = b"PK\x03\x04", (b"[Content_Types].xml", b"docProps/", b"xl/", b"application/vnd.oasis")
_SURE_BYTES = 4
_LONGEST_SIGNATURE = 520  # MATLAB puts 512 bytes before the signature of HDF5


@cache
def formats() -> tuple[Format, ...]:
    """Return the formats of all modules in this folder and below, and of slices, in the order of the modules' names."""
    names = [module.name for module in pkgutil.walk_packages(readers.__path__, f"{readers.__name__}.")]
    names += [name for each in INSTALLED for name in each.readers]
    modules = map(importlib.import_module, sorted(names, key=lambda name: name.rpartition(".")[2]))
    return tuple(each for module in modules for each in getattr(module, "FORMATS", ()))


def other_formats() -> tuple[Format, ...]:
    """Return the formats that other packages add; they are asked only for files that no format here reads."""
    found = [load_extension(each) for each in extensions("dfact.readers").values()]
    return tuple(each for formats_of_package in found for each in formats_of_package)


def open_source(source: TableSource) -> Input | InputFrame:
    """Open a data frame, a file or a folder of files, whose content is not read yet; raises StoreError if there is no such file."""
    source = collected(source)
    return InputFrame(source) if isinstance(source, ArrowStream) else open_input(source)


def open_table(source: str | PathLike[str] | Input | InputFrame, options: ReadOptions | None = None) -> Table:
    """Open a table: a data frame, or a file in the format that its suffix names.

    Raises
    ------
    StoreError
        There is no such file, or it cannot be read.
    ParameterError
        The suffix names no format of tables, or an option does not apply to the format.
    DataError
        The content is not of this format, or is damaged.
    """
    options = options or ReadOptions()
    if isinstance(source, InputFrame):
        if given := _given(options):
            raise ParameterError(f"{given[0]} is {getattr(options, given[0])!r} for a data frame, which takes no options; leave it out")
        return open_frame(source)
    chosen, table = open_content(open_input(source), options, "table")
    if not isinstance(table, Table):
        raise TypeError(f"a format of tables opened {table!r}")
    table.format = chosen.name
    return table


def open_array(source: str | PathLike[str] | Input, options: ReadOptions | None = None) -> LabelledArray:
    """Open an array, in the format that its suffix names; raises what :func:`open_table` raises."""
    _, array = open_content(open_input(source), options or ReadOptions(), "array")
    if not isinstance(array, LabelledArray):
        raise TypeError(f"a format of arrays opened {array!r}")
    return array


def holds_genotypes(source: str | PathLike[str]) -> bool:
    """Check whether the suffix belongs to a format of genotypes, without opening the file."""
    name = str(source).rstrip("/").lower()
    known = any(name.endswith(each.suffixes) for each in formats())
    return any(each.holds == "genotypes" and name.endswith(each.suffixes) for each in (formats() if known else other_formats()))


def open_labels(source: str | PathLike[str], name: str) -> list[str]:
    """Read the array ``name`` of a file as labels; raises what :func:`open_table` raises."""
    values = open_array(source, ReadOptions(object=name)).values
    if len(values.shape) != 1 and max(values.shape, default=0) != prod(values.shape):
        raise DataError(f"{name!r} of {source} has shape {values.shape}, expected one label for each row or column")
    return [str(label) for label in np.ravel(values if isinstance(values, np.ndarray) else values.read(0, values.shape[0]))]


def import_command(name: str, stem: str) -> str:
    """Return the command that imports a file of this name as the dataset ``stem``.zarr, by its ending; a table if no format has it."""
    matching = [(len(suffix), each) for each in formats() for suffix in each.suffixes if name.lower().endswith(suffix)]
    holds = max(matching, key=lambda match: match[0])[1].holds if matching else "table"
    items = " --items 'Q*'" if holds == "table" else ""
    return f"dfact {'import-array' if holds == 'array' else 'import'} {name} {stem}.zarr{items}"


def open_content(source: Input, options: ReadOptions, holds: Content) -> tuple[Format, Any]:
    """Open a file of one content; return its format, too. Raises what :func:`open_table` raises."""
    chosen = _choose(source, options, holds)
    given = [name for name in _given(options) if name not in chosen.options]
    if given:
        known = f"expected {' or '.join(chosen.options)}" if chosen.options else "which takes no options"
        raise ParameterError(
            f"{given[0]} is {getattr(options, given[0])!r} for {source.name} of the format {chosen.name}, {known}; leave it out"
        )
    require_modules(source.name, chosen.modules, chosen.extra)
    if isinstance(source, InputFolder):
        return chosen, chosen.open(source, options)
    _check_signature(source.name, source.read_start(_LONGEST_SIGNATURE), chosen)
    return chosen, chosen.open(source, options)


def _given(options: ReadOptions) -> list[str]:
    return [name for name, value in asdict(options).items() if value is not None]


def _choose(source: Input, options: ReadOptions, holds: Content) -> Format:
    """Return the format that reads a file, one of dfact's own if there is any."""
    try:
        return _choose_among(formats(), source, options, holds)
    except (DataError, ParameterError):
        others = other_formats()
        if not others:
            raise
        return _choose_among((*formats(), *others), source, options, holds)


def _choose_among(known: tuple[Format, ...], source: Input, options: ReadOptions, holds: Content) -> Format:
    candidates = [each for each in known if each.holds == holds]
    name = source.name.lower()
    if isinstance(source, InputFolder):
        for each in candidates:
            # A folder of tables is chosen by the parts in it, a store by its own suffix.
            names = [file.name for file in source.files] if holds == "table" else [source.name]
            if each.folders and any(name.lower().endswith(each.suffixes) for name in names):
                return each
        _refuse_missing(source.name)
        expected = ", ".join(suffix for each in candidates if each.folders for suffix in each.suffixes)
        kind = _NAMES[holds][0]
        raise DataError(f"{source.location} is a folder without files of {kind} ({expected}), expected a file or a folder of parts")
    files = [each for each in candidates if holds == "table" or not each.folders]
    matching = [(len(suffix), each) for each in files for suffix in each.suffixes if name.endswith(suffix)]
    if matching:
        return max(matching, key=lambda match: match[0])[1]
    if options.delimiter is not None:
        text = next((each for each in candidates if "delimiter" in each.options), None)
        if text is not None:
            return text
    other = next((each for each in known if each.holds != holds and name.endswith(each.suffixes)), None)
    if other is not None:
        raise ParameterError(f"{source.name} has the format {other.name}, expected {_NAMES[holds][0]}; use {_NAMES[other.holds][1]}")
    _refuse_missing(source.name)
    ending = "".join(source.suffixes[-1:])
    expected = ", ".join(suffix for each in candidates for suffix in each.suffixes)
    hint = "; for other text name the separator: delimiter= (--delimiter)" if holds == "table" else ""
    raise ParameterError(f"{source.name} ends in {ending!r}, expected one of {expected}{hint}")


def _refuse_missing(name: str) -> None:
    """Raise ParameterError if a slice that is not installed has a format for a file of this name."""
    for each in MISSING:
        if any(name.lower().endswith(endings) for endings in each.readers.values()):
            raise ParameterError(each.missing(f"the format of {name}"))


def _check_signature(name: str, start: bytes, chosen: Format) -> None:
    """Raise DataError unless the first bytes match the format."""
    if not chosen.signatures and "delimiter" in chosen.options and (found := _foreign(start)):
        raise DataError(f"{name} does not have the format {chosen.name}: its content is {found}; export it again, or correct its ending")
    if not chosen.signatures or any(start[offset:].startswith(signature) for offset, signature in chosen.signatures):
        return
    found = next(_content(start), None)
    said = f"its content is {found}" if found else f"it begins with {start[:4]!r}"
    raise DataError(f"{name} does not have the format {chosen.name}: {said}; export it again, or correct its ending")


def _foreign(start: bytes) -> str | None:
    """Return what a file that should be text is by its first bytes; None for text, also compressed text."""
    if start.startswith(_ARCHIVE):
        return "a workbook" if any(member in start for member in _OF_WORKBOOKS) else None
    known = [(signature, f"that of {each.name}") for each in formats() for offset, signature in each.signatures if not offset]
    for signature, content in (*_OTHER_SIGNATURES, *known):
        if len(signature) >= _SURE_BYTES and start.startswith(signature):  # text may begin with a shorter one
            return content
    return None


def _content(start: bytes) -> Iterator[str]:
    """Yield what the first bytes say that the content is."""
    if not start:
        yield "empty"
    for signature, content in _OTHER_SIGNATURES:  # before the formats, some of which are such a file with a certain content
        if start.startswith(signature):
            yield content
    for each in formats():
        if any(start[offset:].startswith(signature) for offset, signature in each.signatures):
            yield f"that of {each.name}"
