"""Text files of records: their bytes, plain or compressed, their encoding, their delimiter, and the places at which they can be cut."""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, BinaryIO, Literal, cast

import numpy as np
import pyarrow as pa

from dfact.errors import DataError, ParameterError, StoreError
from dfact.imports.readers.base import ReadOptions
from dfact.storage.input_files import InputFile

Record = tuple[int, list[str]]
"""Number of the first line of a record (the first line of the file is 1), and its cells."""

DELIMITERS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|", "space": " "}
DELIMITER_NAMES = {character: name for name, character in DELIMITERS.items()}
_BY_SUFFIX = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_FOUND_BY_CONTENT = ",;\t|"
_SAMPLED_RECORDS = 100
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
COMPRESSED = {".gz": b"\x1f\x8b", ".bz2": b"BZh", ".xz": b"\xfd7zXZ", ".zst": b"\x28\xb5\x2f\xfd", ".zip": b"PK\x03\x04"}
"""Suffixes of compressed text, with the first bytes of such files."""
_LONGEST_SIGNATURE = 1024
_WINDOW_BYTES = 1 << 22
_MOST_WINDOWS = 16  # of a line; a longer one is not a line of a table


@dataclass(frozen=True)
class TextFile:
    """A file of records; can be pickled."""

    file: InputFile
    packing: str
    """Suffix of the compression of its bytes, one of ``COMPRESSED``; "" for none."""
    encoding: str
    """Name of a codec; "utf-8-sig" for UTF-8 with or without a byte order mark."""
    delimiter: str
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
    """Whether quotation marks enclose cells, or are text (``csv.QUOTE_NONE``)."""
    strict: bool = False
    """Whether a quotation mark that is not closed is an error."""
    remedy: str = ""
    """Remedy for bytes that the encoding lacks, in messages; by default another encoding."""

    @property
    def is_utf8(self) -> bool:
        """Whether the bytes are UTF-8."""
        return self.encoding == "utf-8-sig"

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the bytes, decompressed; errors of reading them become a StoreError."""
        try:
            with self.file.open() as stream, _unpacked(stream, self.packing, self.file.name) as content:
                yield content
        except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
            raise StoreError(f"{self.file} cannot be read: {error}") from error

    def records(self) -> Iterator[Record]:
        """Yield all records, empty lines included; bytes that the encoding lacks become lone surrogates."""
        with self.open() as stream:
            text = io.TextIOWrapper(stream, encoding=self.encoding, errors="surrogateescape", newline="")
            try:
                yield from self.parse_records(text, 1)
            finally:
                text.detach()  # the stream is not the wrapper's to close

    def parse_records(self, text: io.TextIOBase, line: int) -> Iterator[Record]:
        """Yield the records of a text that begins at a line."""
        start, reader = line - 1, csv.reader(text, delimiter=self.delimiter, quoting=self.quoting, strict=self.strict)
        try:
            for record in reader:
                yield line, record
                line = start + reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"{self.file.name}: line {line} cannot be parsed: {error}; check for an unclosed quotation mark") from error
        except UnicodeError as error:
            raise self.undecodable() from error

    def undecodable(self) -> DataError:
        """Return the error for the first bytes that the encoding lacks."""
        decoder, position = codecs.getincrementaldecoder(self.encoding)(), 0
        name = "UTF-8" if self.is_utf8 else self.encoding
        other = "say --encoding cp1252, latin-1 or mac-roman" if self.is_utf8 else "say --encoding with the one it has"
        remedy = f", expected text; {self.remedy}" if self.remedy else f"; {other}"
        with self.open() as stream:
            while True:
                window = stream.read(_WINDOW_BYTES)
                pending = len(decoder.getstate()[0])  # bytes of a character that began in the window before
                try:
                    decoder.decode(window, final=not window)
                except UnicodeDecodeError as error:
                    at = position - pending + error.start
                    return DataError(f"{self.file.name}: byte {error.object[error.start]:#04x} at {at} is not {name}{remedy}")
                if not window:
                    return DataError(f"{self.file.name} is not {name}{remedy}")
                position += len(window)

    @property
    def can_be_cut(self) -> bool:
        """Whether a byte of a line end is nothing else, and ranges of bytes can be read without those before them."""
        if self.packing:
            return False
        if self.is_utf8:
            return True
        ascii_bytes, others = bytes(range(128)), bytes(range(128, 256))
        try:  # each byte is a character; codecs of several bytes to a character, or with shifts between alphabets, fail here
            is_ascii = ascii_bytes.decode(self.encoding) == ascii_bytes.decode("ascii")
            return is_ascii and len(others.decode(self.encoding, "replace")) == len(others)
        except UnicodeError:
            return False

    def cut(self, n_lines: int, n_bytes: int) -> list[int] | None:
        """Return positions at line ends, about ``n_bytes`` apart, from the end of the first ``n_lines`` lines to that of the file.

        Return None where the file cannot be cut, because a line break may be within quotation marks.
        """
        if not self.can_be_cut:
            return None
        with self.open() as stream:
            header = b"".join(stream.readline() for _ in range(n_lines))
            cuts, rest = [len(header)], b""
            if not self._is_regular(header.removeprefix(codecs.BOM_UTF8)):
                return None
            while window := stream.read(n_bytes):
                lines = rest + window if rest else window
                end = lines.rfind(b"\n") + 1
                if not self._is_regular(lines, end) or len(lines) - end > _MOST_WINDOWS * n_bytes:
                    return None
                rest = lines[end:]
                if end:
                    cuts.append(cuts[-1] + end)
        if rest:
            cuts.append(cuts[-1] + len(rest))
        return cuts if self._is_regular(rest) else None

    def _is_regular(self, lines: bytes, end: int | None = None) -> bool:
        """Check that every line end before ``end`` is one of records: it has a line feed, and no quotation mark is open there.

        A quotation mark opens a cell at its beginning only; where one follows other text, this is left to a parser.
        """
        if lines.find(b"\r", 0, end) >= 0 and lines.count(b"\r", 0, end) != lines.count(b"\r\n", 0, end):
            return False
        if lines.find(b'"', 0, end) < 0:
            return True
        characters = np.frombuffer(lines, np.uint8)[:end]
        quotes = np.flatnonzero(characters == ord('"'))
        line_ends = np.flatnonzero(characters == ord("\n"))
        if len(quotes) % 2 or (np.searchsorted(quotes, line_ends) % 2).any():
            return False
        opening = quotes[::2]
        before = np.where(opening > 0, characters[opening - 1], ord("\n"))
        return bool(np.isin(before, [ord("\n"), ord('"'), ord(self.delimiter)]).all())

    def read_lines(self, start: int, stop: int) -> bytes:
        """Read the bytes between two positions of :meth:`cut`, as UTF-8."""
        content = self.file.read_range(start, stop)
        if self.is_utf8:
            return content
        try:
            return content.decode(self.encoding).encode()
        except UnicodeDecodeError as error:
            raise self.undecodable() from error

    def count_lines(self, stop: int) -> int:
        """Count the lines before a position of :meth:`cut`."""
        count = 0
        with self.open() as stream:
            while stop > 0 and (window := stream.read(min(stop, _WINDOW_BYTES))):
                count += window.count(b"\n")
                stop -= len(window)
        return count


def is_decoded(cell: str) -> bool:
    """Check that the encoding has all bytes of the cell, so that none became a lone surrogate."""
    return cell.isascii() or not any("\udc80" <= character <= "\udcff" for character in cell)


def open_text(file: InputFile, options: ReadOptions) -> tuple[TextFile, list[str], int]:
    """Open a file of records.

    Return what its user should be told, a delimiter that its ending does not name, and the number of lines above the column names. A
    first line such as sep=; names the delimiter, as Excel writes and reads it.

    A byte order mark decides the encoding, then the option, then UTF-8 is expected. The option decides the delimiter, then
    the ending, unless it finds one column and exactly one other delimiter cuts the first records evenly.
    """
    packing = next((each for each in file.suffixes[-1:] if each in COMPRESSED), "")
    start = file.read_start(_LONGEST_SIGNATURE)
    found = next((packing for packing, signature in COMPRESSED.items() if start.startswith(signature)), "")
    if found and not packing:
        raise DataError(f"{file.name} holds compressed data, expected text; name it {file.name}{found}")
    suffix = next(iter(file.suffixes[-2:-1] if packing else file.suffixes[-1:]), "")
    delimiter = _BY_SUFFIX.get(suffix, ",") if options.delimiter is None else _resolve_delimiter(options.delimiter)
    text = TextFile(file, packing, "utf-8-sig", delimiter)
    with text.open() as stream:
        start = stream.read(4)
    encoding = next((encoding for mark, encoding in _MARKS if start.startswith(mark)), None) or _resolve_encoding(options.encoding)
    text = replace(text, encoding=encoding)
    n_lines = options.skip_rows or 0
    if n_lines < 0:
        raise ParameterError(f"skip_rows is {n_lines}, expected 0 or more")
    with text.open() as stream:
        named = re.fullmatch(r"\ufeff?\"?sep=(.)\"?\r?\n?", stream.readline(_LONGEST_SIGNATURE).decode(encoding, "replace"))
    if named and n_lines == 0 and options.delimiter in (None, named[1]):
        return replace(text, delimiter=_resolve_delimiter(named[1])), [], 1
    if options.delimiter is None and len(next(_sample(text, n_lines), [])) == 1:
        candidates = [replace(text, delimiter=other) for other in _FOUND_BY_CONTENT if other != delimiter]
        even = [other for other in candidates if _is_even(other, n_lines)]
        if len(even) == 1:
            names = [DELIMITER_NAMES[each.delimiter] for each in (even[0], text)]
            return even[0], [f"{file.name}: its cells are separated by {names[0]}, not by {names[1]} as its ending suggests"], n_lines
    return text, [], n_lines


@contextmanager
def _unpacked(stream: BinaryIO, packing: str, name: str) -> Iterator[BinaryIO]:
    """Yield the stream of the bytes that a compressed stream holds."""
    if packing == ".zip":
        with zipfile.ZipFile(stream) as archive:
            members = [each for each in archive.infolist() if not each.is_dir() and not each.filename.startswith("__MACOSX/")]
            if len(members) != 1:
                listed = ", ".join(each.filename for each in members[:5]) + (", …" if len(members) > 5 else "")
                raise DataError(f"{name} holds {len(members)} files ({listed}), expected one; unpack it")
            if members[0].flag_bits & 1:
                raise DataError(f"{name} is encrypted, expected a file without a password; unpack it")
            with archive.open(members[0]) as content:
                yield cast(BinaryIO, content)
    elif packing == ".zst":
        with pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd") as content:
            yield cast(BinaryIO, io.BufferedReader(content))
    elif packing:
        opener: Any = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}[packing]
        with opener(stream) as content:
            yield content
    else:
        yield stream


def _sample(text: TextFile, n_lines: int) -> Iterator[list[str]]:
    return islice((record for line, record in text.records() if record and line > n_lines), _SAMPLED_RECORDS)


def _is_even(text: TextFile, n_lines: int) -> bool:
    """Check whether the delimiter cuts the first records into the same number of cells, more than one."""
    try:
        numbers = {len(record) for record in _sample(text, n_lines)}
    except DataError:
        return False
    return len(numbers) == 1 and min(numbers) > 1


def _resolve_delimiter(option: str) -> str:
    delimiter = DELIMITERS.get(option, option)
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise ParameterError(f"delimiter is {option!r}, expected {', '.join(DELIMITERS)} or one ASCII character")
    return delimiter


def _resolve_encoding(option: str | None) -> str:
    try:
        name = codecs.lookup(option or "utf-8").name
        "".encode(name)  # fails for codecs of bytes
    except LookupError as error:
        raise ParameterError(f"encoding is {option!r}, expected a name such as utf-8, utf-16, cp1252, latin-1 or mac-roman") from error
    return "utf-8-sig" if name in ("utf-8", "ascii") else name
