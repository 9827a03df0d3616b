"""Digests of JSON documents, which show whether they are those that were written, and the seals of stores made of them.

A seal states which arrays and chunks belong to one version of a store. The last four bytes of a stored chunk are its CRC32C, which its
codec compares with the rest in each read. That finds damaged bytes, but not a chunk of another version of the store, as an interrupted
copy may leave: such a chunk is valid on its own. A seal names these four bytes of every chunk and a digest of the metadata of every
array, so
that each read finds both, without a look at further bytes. It lies in the attributes of the store, and has a digest of these. A seal
protects from accidents: whoever may write to the store can write another one.
"""

import asyncio
import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import zarr
from zarr.abc.buffer import Buffer
from zarr.abc.store import ByteRequest, Store, SuffixByteRequest
from zarr.buffer import default_buffer_prototype

from dfact.errors import StoreError
from dfact.internals.zarr import sync
from dfact.storage.location import Location


def json_digest(document: Mapping[str, Any]) -> str:
    """Return the digest of a JSON document, which does not depend on the order of its keys."""
    return hashlib.blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16).hexdigest()


def sealed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes with their digest."""
    values = {name: value for name, value in attributes.items() if name != "digest"}
    return {**values, "digest": json_digest(values)}


METADATA = "zarr.json"
_PROBED = (METADATA, ".zgroup", ".zarray", ".zattrs", ".zmetadata")  # Zarr probes for these, so they may be missing
SEAL = "seal"
"""Name of the attribute with the seal."""
_NOT_SEALED = (SEAL, "complete")
"""Attributes that are written after the seal."""
_CHECKSUM_BYTES = 4
_AT_ONCE = 64  # requests for checksums


@dataclass(frozen=True)
class Seal:
    """The parts of a store, as it was written."""

    metadata: Mapping[str, str]
    """Digest of the metadata of each array and group below the store."""
    chunks: Mapping[str, tuple[tuple[int, ...], bytes]]
    """Numbers of chunks along the axes of each array, and the checksums of these chunks in C order."""

    def check(self, key: str, value: Buffer | None, byte_range: ByteRequest | None) -> None:
        """Raise StoreError unless the bytes that a key has are those that were written, or are a part of them."""
        if key == METADATA or byte_range is not None:
            return
        path, _, last = key.rpartition("/")
        if last == METADATA:
            what = f"its {key}"
            found = None if value is None else _digest(value.to_bytes())
            expected = self.metadata.get(path)
        else:
            path, _, position = key.rpartition("/c/")
            what = f"its chunk {key}"
            found = None if value is None else value[-_CHECKSUM_BYTES:].to_bytes().hex()
            expected = self._checksum(path, position)
        if found is None and expected is not None:
            raise StoreError(f"{what} is missing")
        if found != expected:
            raise StoreError(f"{what} has the checksum {found}, expected {expected or 'none'}: it is damaged, or of another version")

    def _checksum(self, path: str, position: str) -> str | None:
        if path not in self.chunks:
            return None
        grid, checksums = self.chunks[path]
        index = 0
        for size, number in zip(grid, position.split("/"), strict=True):
            index = index * size + int(number)
        return checksums[_CHECKSUM_BYTES * index : _CHECKSUM_BYTES * (index + 1)].hex()


def check_read(seal: Seal | None, key: str, value: Buffer | None, byte_range: ByteRequest | None) -> None:
    """Raise StoreError if the value of a key is that of a missing chunk, or is not the one that was sealed."""
    if value is None and not key.endswith(_PROBED):
        raise StoreError(f"its chunk {key} is missing")
    if seal is not None:
        seal.check(key, value, byte_range)


def seal(group: zarr.Group) -> dict[str, Any]:
    """Return the attribute that seals a group, of which all arrays and attributes are written.

    Of each chunk it reads the checksum alone.
    """
    store = group.store
    paths = sorted(key.removesuffix(f"/{METADATA}") for key in sync(_listed(store)) if key.endswith(f"/{METADATA}"))
    documents = dict(zip(paths, _read(store, [f"{path}/{METADATA}" for path in paths]), strict=True))
    grids = {path: grid for path, document in documents.items() if (grid := _grid(path, json.loads(document))) is not None}
    contents = {
        "metadata": {path: _digest(document) for path, document in documents.items()},
        "chunks": {path: b64encode(_checksums(store, path, grid)).decode() for path, grid in grids.items()},
        "grids": grids,
    }
    stored: Any = group.attrs["dfact"]
    return {**contents, "digest": _seal_digest(stored, contents)}


def read_seal(location: Location, attributes: Mapping[str, Any]) -> Seal | None:
    """Return the seal that the attributes of a store hold, None without one; raise StoreError if they are not those that were sealed."""
    stored = attributes.get(SEAL)
    if stored is None:
        return None
    contents = {name: value for name, value in stored.items() if name != "digest"} if isinstance(stored, Mapping) else {}
    expected = stored.get("digest") if isinstance(stored, Mapping) else None
    found = _seal_digest(attributes, contents)
    if found != expected:
        raise StoreError(
            f"{location}: its attributes have the digest {found}, expected {expected}: one has been changed, such as the missing code, or "
            f"{METADATA} is damaged; copy the store again, or write it again"
        )
    chunks = {path: (tuple(contents["grids"][path]), b64decode(text)) for path, text in contents["chunks"].items()}
    return Seal(contents["metadata"], chunks)


def chunk_positions(grid: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the positions of the chunks of an array in C order, given their numbers along its axes."""
    return product(*map(range, grid))


def _grid(path: str, metadata: Mapping[str, Any]) -> list[int] | None:
    """Return the numbers of chunks along the axes of an array; None of a group. To open it takes Zarr longer than to read its chunks."""
    if metadata["node_type"] != "array":
        return None
    assert metadata["codecs"][-1]["name"] == "crc32c", f"the chunks of {path} end with their checksum"
    return [
        -(-size // chunk) for size, chunk in zip(metadata["shape"], metadata["chunk_grid"]["configuration"]["chunk_shape"], strict=True)
    ]


def _seal_digest(attributes: Mapping[str, Any], contents: Mapping[str, Any]) -> str:
    others = {name: value for name, value in attributes.items() if name not in _NOT_SEALED}
    return json_digest({"attributes": others, "contents": contents})


def _checksums(store: Store, path: str, grid: Sequence[int]) -> bytes:
    keys = [f"{path}/c/{'/'.join(map(str, position))}" for position in chunk_positions(grid)]
    ends = SuffixByteRequest(_CHECKSUM_BYTES)
    return b"".join(end for first in range(0, len(keys), _AT_ONCE) for end in _read(store, keys[first : first + _AT_ONCE], ends))


def _read(store: Store, keys: Sequence[str], byte_range: ByteRequest | None = None) -> list[bytes]:
    """Read some bytes of objects, all at once."""
    prototype = default_buffer_prototype()
    found = sync(_together([store.get(key, prototype, byte_range) for key in keys]))
    for key, value in zip(keys, found, strict=True):
        if value is None:
            raise StoreError(f"{key} of {store} is missing, expected it to be left alone; run the same command again")
    return [value.to_bytes() for value in found]


async def _listed(store: Store) -> list[str]:
    return [key async for key in store.list()]


async def _together(reads: Sequence[Any]) -> Sequence[Any]:
    return await asyncio.gather(*reads)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
