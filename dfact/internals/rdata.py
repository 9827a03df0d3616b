"""Parsers of rdata, one for each serialization of R, whose public functions take none."""

from typing import Any

from dfact.internals.checks import require

_OVERRIDDEN = ("parse_R_object", "_parse_vector_value", "parse_int", "parse_all")
_CLASSES = {
    b"X\n": "rdata.parser._xdr:ParserXDR",
    b"B\n": "rdata.parser._binary:ParserBinary",
    b"A\n": "rdata.parser._ascii:ParserASCII",
    b"A\r\n": "rdata.parser._ascii:ParserASCII",
}
PARSERS: dict[bytes, Any] = {mark: require("rdata", path)[0] for mark, path in _CLASSES.items()}
"""Classes of parsers by the mark with which their files begin."""
require("rdata", *(f"{path}.{name}" for path in _CLASSES.values() for name in _OVERRIDDEN), "rdata.parser:DEFAULT_ALTREP_MAP")
