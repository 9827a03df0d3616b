"""What processes that compile a kernel at the same time leave on disk for the next."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dfact.kernels import jit

SOURCE = """
from dfact.kernels.jit import kernel

@kernel
def total(values):
    out = values.dtype.type(0)
    for value in values:
        out += value
    return out
"""


def new_process(folder: Path) -> Any:
    """The kernel of the folder, which knows of its compiled code what is on disk, as in a new process."""
    path = folder / "totals.py"
    if not path.exists():
        path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("totals", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.total


def before(owner: Any, name: str, action: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the action before the first call of a method."""
    method, called = getattr(owner, name), [False]

    def first_act(*arguments: Any) -> Any:
        if not called[0]:
            called[0] = True
            action()
        return method(*arguments)

    monkeypatch.setattr(owner, name, first_act)


@pytest.mark.parametrize("step", ["_save_data", "_save_index"])
@pytest.mark.parametrize("types", [(np.float64, np.int64), (np.int64, np.float64), (np.float32, np.int32)])
def test_each_type_has_its_own_code_after_a_race(
    step: str, types: tuple[type, type], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = new_process(tmp_path), new_process(tmp_path)
    first, second = (np.arange(5).astype(kind) for kind in types)
    monkeypatch.setattr(other._cache._cache_file, "_load_index", dict)  # as it was before the first process wrote anything
    before(one._cache._cache_file, step, lambda: other(second), monkeypatch)
    assert one(first) == other(second) == 10
    later = new_process(tmp_path)
    assert later(second) == later(first) == 10
    assert sum(later.stats.cache_hits.values()) >= 1


def test_another_version_of_the_source_replaces_the_code(tmp_path: Path) -> None:
    before = new_process(tmp_path)
    assert before(np.arange(5)) == before(np.arange(5.0)) == 10
    folder = Path(before._cache.cache_path)
    assert len(list(folder.glob("*.nbc"))) == 2
    again = new_process(tmp_path)
    assert again(np.arange(5.0)) == 10
    assert sum(again.stats.cache_hits.values()) == 1
    (tmp_path / "totals.py").write_text(SOURCE.replace("type(0)", "type(7)"))
    assert new_process(tmp_path)(np.arange(5.0)) == 17
    assert len(list(folder.glob("*.nbc"))) == 1


def test_a_change_of_another_module_of_kernels_compiles_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert new_process(tmp_path)(np.arange(5)) == 10
    monkeypatch.setattr(jit, "_sources", lambda: (("box_qp.py", 0, 0),))
    changed = new_process(tmp_path)
    assert changed(np.arange(5)) == 10
    assert not changed.stats.cache_hits
    assert new_process(tmp_path)(np.arange(5)) == 10
    monkeypatch.undo()
    assert {name for name, *_ in jit._sources()} == {path.name for path in Path(jit.__file__).parent.glob("*.py")}
