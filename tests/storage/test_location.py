"""Locations: paths and URLs are parsed, anything else is refused."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dfact
from dfact.errors import ParameterError, StoreError
from dfact.storage.location import absolute, parse_location, stem


def test_urls_and_paths_are_parsed() -> None:
    assert parse_location("data/x.zarr") == Path("data/x.zarr")
    assert parse_location(Path("/data/x.zarr")) == Path("/data/x.zarr")
    assert parse_location("S3://bucket/a/x.zarr/") == "s3://bucket/a/x.zarr"
    assert parse_location("gs://bucket/x") == "gs://bucket/x"


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3://bucket/", "s3:///x", "s3://bucket//x", "s3://bucket/../x", "https://a/b", Path("s3://b/x")]
)
@pytest.mark.parametrize("function", [parse_location, dfact.open_dataset])
def test_invalid_urls_are_refused(url: str | Path, function: Callable[[Any], Any]) -> None:
    with pytest.raises(StoreError, match="expected"):
        function(url)


@pytest.mark.parametrize(("path", "found"), [("", "''"), (None, "a NoneType"), (3, "a int"), ("a\0b", r"'a\x00b'")])
def test_values_that_are_no_path_are_refused(path: Any, found: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(f"the location is {found}, expected a path or a URL such as s3://bucket/prefix")):
        parse_location(path)


def test_only_paths_depend_on_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute(Path("x.zarr")) == tmp_path / "x.zarr"
    assert absolute("s3://bucket/x.zarr") == "s3://bucket/x.zarr"
    assert stem("s3://bucket/x.zarr") == stem(Path("a/x.zarr")) == "x"


@given(st.text() | st.from_regex(r"[A-Za-z0-9+]{0,4}:?/{0,3}[a-z@./]*", fullmatch=True), st.booleans())
def test_any_text_is_parsed_once_or_refused(text: str, web: bool) -> None:
    with suppress(ParameterError, StoreError):
        found = parse_location(text, web=web)
        assert parse_location(found, web=web) == found


def test_a_path_that_the_system_refuses_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot look up .*xxx.*: .*too long"):
        parse_location(tmp_path / ("x" * 300))
    assert parse_location(tmp_path / "absent" / "x") == tmp_path / "absent" / "x"
