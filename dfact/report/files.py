"""Files that are whole or not there."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dfact.data.store import incomplete_path
from dfact.errors import StoreError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A place beside ``path`` to write to, which takes its place when the block ends without an error, and goes otherwise."""
    unfinished = incomplete_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield unfinished
        unfinished.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; nothing was left behind there") from error
    finally:
        with suppress(OSError):  # it is not there where all went well, or its folder could not be made
            unfinished.unlink()
