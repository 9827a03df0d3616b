"""Parts that the readers of arrays share: the choice of an array in a file, errors of damaged files, limits, and rows read from files."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dfact.errors import DataError, DfactError, ParameterError

_MAX_LISTED = 20
_MAX_REASON = 200
_MAX_COMPRESSION = 1 << 13  # more than any file compresses numbers: deflate packs 1032 bytes into one, MATLAB 8 bytes of a number
_SMALL = 1 << 26  # bytes that may be allocated whatever a header declares


def choose_array(file: str, shapes: Mapping[str, tuple[int, ...]], name: str | None) -> str:
    """Return the name of the array to read: the given one, or the only one.

    Raises ParameterError if there is no array of this name, or if there are several and none is named.
    """
    listed = [f"{key} {'×'.join(map(str, shape)) or 'scalar'}" for key, shape in list(shapes.items())[:_MAX_LISTED]]
    known = ", ".join(listed) + (f", … ({len(shapes)} in all)" if len(shapes) > _MAX_LISTED else "")
    if name is not None:
        if name not in shapes:
            raise ParameterError(f"{file} has no array {name!r}, expected one of {known or 'none: it holds no arrays'}")
        return name
    if len(shapes) != 1:
        raise ParameterError(f"{file} holds {len(shapes)} arrays ({known}), expected one; choose one with object (--object)")
    return next(iter(shapes))


@contextmanager
def file_errors(name: str, kind: str) -> Iterator[None]:
    """Translate the errors of all kinds that damaged files cause in libraries into a DataError naming the file."""
    try:
        yield
    except DfactError:
        raise
    except MemoryError as error:
        remedy = "the file is damaged, or there is too little memory: export it again, or free memory"
        raise DataError(f"{name} requires more memory than is available; {remedy}") from error
    except Exception as error:
        text = " ".join(f"{error or type(error).__name__}".split())[:_MAX_REASON]
        raise DataError(f"{name} cannot be read as {kind}: {text}; the file is damaged: export it again") from error


def require_stored(name: str, shape: tuple[int, ...], n_bytes: int, stored: int) -> None:
    """Raise DataError if a header declares an array of ``n_bytes`` for which the ``stored`` bytes of the file are too few."""
    if n_bytes > max(_SMALL, stored * _MAX_COMPRESSION):
        size = "×".join(map(str, shape))
        raise DataError(f"{name} declares the shape {size}, for which the {stored} bytes of the file are too few; export it again")
