"""The parser of pyreadstat: its functions for .por and .xpt have no parameter ``user_missing``."""

from dfact.internals.checks import require

[parser_entry_point] = require("pyreadstat", "pyreadstat.pyreadstat:parser_entry_point")
