"""Complete checks of stored datasets: every chunk is read."""

import numpy as np
import zarr

from dfact.data.dataset import KIND, fingerprint
from dfact.data.stored_dataset import open_dataset
from dfact.errors import StoreError
from dfact.storage.arrays import read_errors
from dfact.storage.groups import attributes, open_group
from dfact.storage.location import Location
from dfact.storage.seals import SEAL, chunk_positions

_SHOWN = 5  # damaged chunks in a message


def verify_dataset(path: Location) -> str:
    """Read all of the dataset at ``path``, compare it with its seal, and state what was compared.

    A dataset without a seal is compared with its fingerprint.

    Raises
    ------
    StoreError
        Parts are missing, damaged, or of another version of the dataset. It names them.
    """
    group = open_group(path, KIND)
    arrays = {name: member for name, member in sorted(group.members(max_depth=None)) if isinstance(member, zarr.Array)}
    damaged, count = [], 0
    for name, array in arrays.items():
        for position in chunk_positions(array.cdata_shape):
            count += 1
            try:
                with read_errors(f"chunk {', '.join(map(str, position))} of array {name!r} of {path}"):
                    np.asarray(array.blocks[position])
            except StoreError as error:
                damaged.append(str(error))
    if damaged:
        more = f"\n… and {len(damaged) - _SHOWN} more" if len(damaged) > _SHOWN else ""
        raise StoreError(f"{len(damaged)} of {count} chunks are not those that were written:\n" + "\n".join(damaged[:_SHOWN]) + more)
    if SEAL in attributes(group):
        return f"{count} chunks of {len(arrays)} arrays and all attributes are those that were written"
    dataset = open_dataset(path)
    found = fingerprint(dataset, dataset.source.digests(), dataset.source.implicit_value)
    if found != dataset.fingerprint:
        raise StoreError(
            f"{path}: its contents have the fingerprint {found}, expected {dataset.fingerprint}: parts are of another version; "
            "copy the store again, completely, or import it again"
        )
    return (
        f"no seal: {count} chunks of {len(arrays)} arrays are undamaged, and values, labels, "
        "ranges, confounders and weights have its fingerprint; codebook and statistics are not known to be of the same version. "
        "Import it again for a seal"
    )
