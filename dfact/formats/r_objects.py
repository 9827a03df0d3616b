"""The objects of R's files, parsed by rdata."""

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.errors import DataError, DfactError, StoreError
from dfact.storage.input_files import InputFile

_DEPTH = 10_000
"""Depth of nesting: each object of a file lies one level below the one before it."""
_COMPRESSION: Mapping[bytes, Callable[[Any], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


def decompress(file: InputFile) -> bytearray:
    """Read the uncompressed file."""
    start = file.read_start(8)
    opener = next((opener for signature, opener in _COMPRESSION.items() if start.startswith(signature)), nullcontext)
    raw = bytearray()
    try:
        with file.open() as stream, opener(stream) as content:
            while block := content.read(1 << 20):
                raw += block
    except DfactError:
        raise
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise StoreError(f"{file.location} cannot be read: {error}; save it again in R") from error
    return raw


@contextmanager
def damage_errors(file: InputFile) -> Iterator[None]:
    """Raise StoreError in place of the errors of rdata and NumPy, which are of many types on damaged files."""
    try:
        yield
    except (DfactError, MemoryError):
        raise
    except Exception as error:
        found = str(error) or type(error).__name__
        raise StoreError(f"{file.location} is damaged or holds objects that cannot be read: {found}; save the data frame alone") from error


def parse(name: str, raw: bytearray) -> tuple[str, Any]:
    """Parse the objects with rdata; return the encoding of their texts, too."""
    from rdata.parser import DEFAULT_ALTREP_MAP

    content = memoryview(raw)
    for prefix in (b"RDX2\n", b"RDX3\n", b"RDA2\n", b"RDA3\n", b"RDB2\n", b"RDB3\n"):
        content = content[len(prefix) :] if raw.startswith(prefix) else content
    start = bytes(content[:3])
    mark = next((mark for mark in (b"X\n", b"A\n", b"A\r\n", b"B\n") if start.startswith(mark)), None)
    if mark is None:
        raise DataError(f"{name} is not an R data file: its content begins with {bytes(raw[:5])!r}; save it again with saveRDS() or save()")
    parser = _parser_class(mark)(content[len(mark) :], expand_altrep=True, altrep_constructor_dict=DEFAULT_ALTREP_MAP)
    sys.setrecursionlimit(_DEPTH)
    try:
        parsed = parser.parse_all()
    except RecursionError:
        raise DataError(
            f"{name} holds objects nested in more than some {_DEPTH // 2} levels, expected data; save the data frame alone"
        ) from None
    return parsed.extra.encoding or "utf-8", parsed.object


def _parser_class(mark: bytes) -> Any:
    """Return rdata's parser of a serialization, which holds equal texts once."""
    from dfact.internals.rdata import PARSERS

    base: Any = PARSERS[mark]

    class Parser(base):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._texts: dict[tuple[bytes | None, int], Any] = {}

        def _parse_vector_value(self, *args: Any) -> list[Any]:
            return [self._shared(self.parse_R_object(*args)) for _ in range(self.parse_int())]

        def _shared(self, value: Any) -> Any:
            return self._texts.setdefault((value.value, value.info.gp), value) if value.info.type.name == "CHAR" else value

    return Parser


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object by name."""
    return dict(pairs(value.attributes)) if value.attributes is not None else {}


def pairs(pairlist: Any) -> list[tuple[str, Any]]:
    """Return the tags and the values of a pairlist."""
    found = []
    while pairlist.info.type.name == "LIST":
        tag = pairlist.tag if pairlist.tag is None or pairlist.tag.referenced_object is None else pairlist.tag.referenced_object
        found.append(("" if tag is None else _text(tag.value, "utf-8") or "", pairlist.value[0]))
        pairlist = pairlist.value[1]
    return found


def classes_of(attributes: Mapping[str, Any]) -> set[str | None]:
    """Return the classes among these attributes."""
    return set(texts_of(attributes.get("class"), "utf-8"))


def names_of(value: Any, encoding: str) -> list[str | None]:
    """Return the names of the elements of a vector."""
    return texts_of(attributes_of(value).get("names"), encoding)


def named_texts(value: Any, encoding: str) -> dict[str | None, str]:
    """Return the texts of a vector by the names of its elements."""
    return {} if value is None else dict(zip(names_of(value, encoding), (text or "" for text in texts_of(value, encoding)), strict=True))


def dimension_names(value: Any, encoding: str) -> list[NDArray[Any] | None]:
    """Return the labels of each dimension of an array, None for a dimension without labels."""
    names = attributes_of(value).get("dimnames")
    if names is None or names.info.type.name != "VEC":
        return []
    texts = [texts_of(each, encoding) for each in names.value]
    return [np.array([text or "NA" for text in each], dtype=object) if each else None for each in texts]


def texts_of(value: Any, encoding: str) -> list[str | None]:
    """Return the texts of a vector, None for NA; no text for other objects."""
    if value is None or value.info.type.name != "STR":
        return []
    known: dict[int, str | None] = {}
    return [known[id(each)] if id(each) in known else known.setdefault(id(each), _text(each, encoding)) for each in value.value]


def _text(char: Any, encoding: str) -> str | None:
    """Decode a text; bytes that are not of its encoding appear as R prints them."""
    from rdata.parser import CharFlags

    if char.value is None:
        return None
    if b"\0" in char.value:
        raise DataError("a text contains a zero byte, which no text of R does; the file is damaged: save the data frame again")
    flags = char.info.gp
    declared = (
        "utf-8" if flags & CharFlags.UTF8 else "cp1252" if flags & CharFlags.LATIN1 else "ascii" if flags & CharFlags.BYTES else encoding
    )
    try:
        return str(char.value.decode(declared, errors="backslashreplace"))
    except LookupError:
        return str(char.value.decode("utf-8", errors="backslashreplace"))
