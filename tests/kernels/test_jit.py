"""What processes that compile a kernel leave on disk for the next."""

import errno
import grp
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dfact import code_cache
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


@pytest.fixture(autouse=True)
def _beside_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store compiled code where Numba does without NUMBA_CACHE_DIR."""
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)


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
    monkeypatch.setattr(code_cache._Turn, "SECONDS", 0.0)  # neither waits for the other
    one, other = new_process(tmp_path), new_process(tmp_path)
    first, second = (np.arange(5).astype(kind) for kind in types)
    monkeypatch.setattr(other._cache._cache_file, "_load_index", dict)  # as it was before the first process wrote anything
    before(one._cache._cache_file, step, lambda: other(second), monkeypatch)
    assert one(first) == other(second) == 10
    later = new_process(tmp_path)
    assert later(second) == later(first) == 10
    assert sum(later.stats.cache_hits.values()) >= 1


def test_processes_that_need_a_kernel_at_the_same_time_compile_it_once(tmp_path: Path) -> None:
    total = new_process(tmp_path)  # writes the source
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import numpy as np; from totals import total\n"
        "assert total(np.arange(5)) == 10; print(sum(total.stats.cache_hits.values()))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    hits = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert sorted(hits) == ["0\n", "1\n", "1\n"]
    assert total(np.arange(5)) == 10


def test_a_process_that_fails_to_compile_keeps_no_turn_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_cache._Turn, "SECONDS", 0.05)
    failed = new_process(tmp_path)
    with pytest.raises(Exception, match=r"(?i)typing"):
        failed("text")
    assert new_process(tmp_path)(np.arange(5)) == 10
    failed._cache._cache_file._turn.end()  # as the end of the process does


def test_another_version_of_the_source_replaces_the_code(tmp_path: Path) -> None:
    before = new_process(tmp_path)
    assert before(np.arange(5)) == before(np.arange(5.0)) == 10
    folder = Path(before._cache.cache_path)
    assert len(list(folder.glob("*.nbc"))) == 2
    again = new_process(tmp_path)
    assert again(np.arange(5.0)) == 10
    assert sum(again.stats.cache_hits.values()) == 1
    (tmp_path / "totals.py").write_text(SOURCE.replace("type(0)", "type(17)"))  # longer: Python compares seconds and sizes
    assert new_process(tmp_path)(np.arange(5.0)) == 27
    assert len(list(folder.glob("*.nbc"))) == 1


def test_a_change_of_another_module_of_kernels_compiles_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert new_process(tmp_path)(np.arange(5)) == 10
    monkeypatch.setattr(code_cache, "digest", lambda folder: f"{folder} with another box_qp.py")
    changed = new_process(tmp_path)
    assert changed(np.arange(5)) == 10
    assert not changed.stats.cache_hits
    assert new_process(tmp_path)(np.arange(5)) == 10


def test_the_digest_of_a_folder_is_that_of_its_contents(tmp_path: Path) -> None:
    folder = shutil.copytree(Path(jit.__file__).parent, tmp_path / "copied")
    assert code_cache.digest(folder) == code_cache.digest(Path(jit.__file__).parent)
    code_cache.digest.cache_clear()
    with (folder / "box_qp.py").open("a") as file:
        file.write("# changed\n")
    assert code_cache.digest(folder) != code_cache.digest(Path(jit.__file__).parent)


def test_a_copy_of_the_sources_uses_the_code_of_a_shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "shared"))
    for name in ("one", "other"):
        (tmp_path / name / "mine").mkdir(parents=True)
    assert new_process(tmp_path / "one/mine")(np.arange(5)) == 10
    os.utime(shutil.copy(tmp_path / "one/mine/totals.py", tmp_path / "other/mine"), (0, 0))
    copied = new_process(tmp_path / "other/mine")
    assert copied(np.arange(5)) == 10
    assert sum(copied.stats.cache_hits.values()) == 1


@pytest.mark.parametrize(("kept", "rest"), [(0.0, b""), (0.5, b""), (0.0, b"damaged")])
@pytest.mark.parametrize("files", ["*.nbi", "*.nbc", "*.nb?"])
def test_damaged_code_is_compiled_again(files: str, kept: float, rest: bytes, tmp_path: Path) -> None:
    folder = Path(new_process(tmp_path)._cache.cache_path)
    assert new_process(tmp_path)(np.arange(5)) == 10
    found = list(folder.glob(files))
    assert found
    for path in found:
        content = path.read_bytes()
        path.write_bytes(content[: int(kept * len(content))] + rest)
    again = new_process(tmp_path)
    assert again(np.arange(5)) == 10
    assert not again.stats.cache_hits
    mended = new_process(tmp_path)
    assert mended(np.arange(5)) == 10
    assert sum(mended.stats.cache_hits.values()) == 1


def test_code_that_cannot_be_stored_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(path: str) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    total = new_process(tmp_path)
    monkeypatch.setattr(total._cache._cache_file, "_open_for_write", full)
    assert total(np.arange(5)) == 10
    [record] = caplog.records
    assert record.getMessage().endswith("No space left on device; every process will compile it")
    assert not list(Path(total._cache.cache_path).glob("*.nb?"))


def test_code_that_was_compiled_before_is_used_and_left_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "image"))
    assert new_process(tmp_path)(np.arange(5)) == 10
    stored = {path: path.read_bytes() for path in (tmp_path / "image").rglob("*.nb?")}
    assert len(stored) == 2
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv(code_cache.COMPILED, str(tmp_path / "image"))
    found = new_process(tmp_path)
    assert found(np.arange(5)) == 10
    assert sum(found.stats.cache_hits.values()) == 1
    assert not list((tmp_path / "own").rglob("*.nb?"))
    assert found(np.arange(5.0)) == 10, "what was not compiled before is compiled here"
    assert list((tmp_path / "own").rglob("*.nbc"))
    assert {path: path.read_bytes() for path in (tmp_path / "image").rglob("*.nb?")} == stored
    monkeypatch.setattr("numba.config.CPU_NAME", "another")
    elsewhere = new_process(tmp_path)
    assert elsewhere(np.arange(5)) == 10
    assert not elsewhere.stats.cache_hits, "code for another processor is not used"


@pytest.mark.parametrize("ending", ["nbc", "nbi"])
def test_damaged_code_that_was_compiled_before_is_compiled_again(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "image"))
    assert new_process(tmp_path)(np.arange(5)) == 10
    for path in (tmp_path / "image").rglob(f"*.{ending}"):
        path.write_bytes(b"damaged")
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv(code_cache.COMPILED, str(tmp_path / "image"))
    kernel = new_process(tmp_path)
    assert kernel(np.arange(5)) == 10
    assert not kernel.stats.cache_hits


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
@pytest.mark.parametrize("shared", [".", "numba", "numba/kernels", "before/kernels"])
def test_code_that_others_could_plant_is_not_read(
    shared: str, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The sticky bit protects a folder in its parent, but not from new files in itself."""
    variable = code_cache.COMPILED if shared.startswith("before") else "NUMBA_CACHE_DIR"
    monkeypatch.setattr(code_cache, "_is_private_group", cache(lambda _: False))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "private"))
    if shared == ".":  # a folder above
        (tmp_path / "above").mkdir()
    numba = tmp_path / "above" / "x" / "numba" if shared == "." else tmp_path / "numba"
    monkeypatch.setattr("numba.config.CACHE_DIR", str(numba))
    kernel = new_process(tmp_path)
    assert kernel(np.arange(5)) == 10
    planted = Path(kernel._cache.cache_path) if "/" in shared else tmp_path / ("above" if shared == "." else "numba")
    planted.chmod(mode)
    if variable == code_cache.COMPILED:
        monkeypatch.setenv(code_cache.COMPILED, str(numba))
        monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "own"))
    forget()
    later = new_process(tmp_path)
    assert later(np.arange(5)) == 10
    if "/" not in shared and mode == 0o1777:
        assert later.stats.cache_hits
        assert not caplog.text
        return
    assert not later.stats.cache_hits
    again = new_process(tmp_path)
    assert again(np.arange(5)) == 10
    assert again.stats.cache_hits, "there is code in a folder of this user"
    [record] = caplog.records
    assert f"other users can change files in {planted} (owner {os.geteuid()}, group " in record.getMessage()
    assert f"mode {mode:04o}), expected a folder that only you or root may write" in record.getMessage()
    assert f"name another folder in {variable}" in record.getMessage()
    if variable == "NUMBA_CACHE_DIR":
        assert f"Until then compiled kernels are in {tmp_path / 'private/dfact/kernels'}" in record.getMessage()
        assert stat.S_IMODE((tmp_path / "private/dfact/kernels").stat().st_mode) & 0o077 == 0


def forget() -> None:
    """Forget what is known of folders, as a new process does."""
    for function in vars(code_cache).values():
        if hasattr(function, "cache_clear") and function is not code_cache.digest:
            function.cache_clear()


@pytest.fixture
def forgotten() -> Iterator[None]:
    forget()
    yield
    forget()


def test_without_a_private_folder_every_process_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.joinpath("file").touch()
    tmp_path.joinpath("numba").mkdir()
    tmp_path.joinpath("numba").chmod(0o777)
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "numba"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        kernel = new_process(tmp_path)
        assert kernel(np.arange(5)) == 10
        assert not kernel.stats.cache_hits
    [record] = caplog.records
    assert record.getMessage().endswith("Until then every process compiles its kernels again")
    assert not list(tmp_path.rglob("*.nbc"))


@pytest.mark.usefixtures("forgotten")
def test_where_no_folder_can_be_written_every_process_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Files in the place of folders are as good as a read-only mount, also for root."""
    tmp_path.joinpath("home").touch()
    tmp_path.joinpath("__pycache__").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    for _ in range(2):
        kernel = new_process(tmp_path)
        assert kernel(np.arange(5)) == 10
        assert not kernel.stats.cache_hits
    [record] = caplog.records
    assert "no folder for compiled kernels can be written" in record.getMessage()
    assert "NUMBA_CACHE_DIR" in record.getMessage()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("home", [True, False])
def test_a_private_folder_replaces_one_that_cannot_be_made(
    home: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.joinpath("file").touch()
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "file" / "numba"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("home" if home else "file")))
    for process in range(2):
        kernel = new_process(tmp_path)
        assert kernel(np.arange(5)) == 10
        assert bool(kernel.stats.cache_hits) == (home and process == 1)
    assert len(list((tmp_path / "home").rglob("*.nbc"))) == home
    assert len(caplog.records) == (not home)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.skipif(os.geteuid() != 0, reason="folders of others need root")
@pytest.mark.parametrize("place", ["x/y", "x", "."])
def test_a_folder_of_another_user_is_unsafe(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "x" / "y"
    folder.mkdir(parents=True)
    assert code_cache._unsafe_folder(folder, 0) is None
    os.chown(tmp_path / place, 4321, 4321)
    forget()
    assert code_cache._unsafe_folder(folder, 0) == tmp_path / place
    assert code_cache._unsafe_folder(folder, 4321) is None, "the owner of the sources is trusted as they are"


@pytest.mark.usefixtures("forgotten")
@pytest.mark.skipif(os.geteuid() != 0, reason="folders of others need root")
@pytest.mark.parametrize(("mapped", "safe"), [(65536, True), (1 << 32, False)])
def test_owners_outside_of_a_user_namespace_count_as_the_system(
    mapped: int, safe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "x" / "y"
    folder.mkdir(parents=True)
    os.chown(tmp_path / "x", 65534, 65534)
    texts = {"/proc/self/uid_map": f"0 100000 {mapped - 1}\n", "/proc/sys/kernel/overflowuid": "65534\n"}
    monkeypatch.setattr(Path, "read_text", lambda path: texts[str(path)])
    assert code_cache._unsafe_folder(folder, 0) == (None if safe else tmp_path / "x")
    os.chown(folder, 65534, 65534)
    forget()
    assert code_cache._unsafe_folder(folder, 0) == folder, "the folder itself belongs to this user"


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("name", "group", "members", "others", "private"),
    [
        ("ada", 5, [], [], True),
        ("ada", 5, ["ada"], [], True),
        ("ada", 5, ["ada", "ben"], [], False),
        ("ada", 5, [], [5], False),
        ("users", 5, [], [], False),
        ("ada", 6, [], [], False),
    ],
)
def test_a_group_of_this_user_alone_may_write(
    name: str, group: int, members: list[str], others: list[int], private: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, status = os.geteuid(), tmp_path.stat()
    user = pwd.struct_passwd(("ada", "x", me, status.st_gid if group == 5 else status.st_gid + 1, "", "/", "/bin/sh"))
    ben = [pwd.struct_passwd(("ben", "x", me + 1, status.st_gid, "", "/", "/bin/sh")) for _ in others]
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
    monkeypatch.setattr(pwd, "getpwall", lambda: [user, *ben])
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((name, "x", gid, members)))
    tmp_path.chmod(0o770)
    assert code_cache._unsafe_folder(tmp_path, me) == (None if private else tmp_path)


@pytest.mark.usefixtures("forgotten")
def test_a_user_without_a_name_has_no_private_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> Any:
        raise KeyError("uid not found")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    tmp_path.chmod(0o770)
    assert code_cache._unsafe_folder(tmp_path, os.geteuid()) == tmp_path


def test_links_are_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "link"))
    kernel = new_process(tmp_path)
    (tmp_path / "link").unlink()
    assert kernel(np.arange(5)) == 10
    assert list((tmp_path / "real").rglob("*.nbc"))
