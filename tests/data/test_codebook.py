"""Codebooks: texts and groups of items from a csv file."""

from pathlib import Path

import pytest

from dfact.data.dictionaries.table import read_items
from dfact.data.examples import ipip_ascado_items, ipip_ascado_items_file
from dfact.errors import DataError


def test_texts_and_groups_leave_out_empty_cells(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item,text,group\nQ1,I sleep badly,sleep\nQ2,,mood\nQ3,I worry,\n", encoding="utf-8-sig")
    texts, groups = read_items(tmp_path / "items.csv")
    assert texts == {"Q1": "I sleep badly", "Q3": "I worry"}
    assert groups == {"Q1": "sleep", "Q2": "mood"}
    assert read_items(ipip_ascado_items_file())[0] == ipip_ascado_items()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"item,label\nQ1,a\n", r"has columns \['item', 'label'\], expected item and text, group or both"),
        (b"text\na\n", r"has columns \['text'\], expected item"),
        (b"", r"has columns \[\], expected item"),
        ("item,text\nQ1,é\n".encode("latin-1"), r"items.csv: byte 0xe9 at 13 is not UTF-8, expected text; save the file as UTF-8"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "items.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_items(tmp_path / "items.csv")
