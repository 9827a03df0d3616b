"""``python -m dfact.engine.cluster.dismissal``: notify all workers of a batch job that the driver is done and will not be restarted.

To a worker, a scheduler that is done looks like one that is lost. So each worker writes a file to its temporary folder when it gets
this message, and ``node-entrypoint``, the program of its pod, looks for the file.
"""

import os
import tempfile
from pathlib import Path

from dfact.engine.cluster.certificate_names import ClusterSecurity

FILE = "dismissed"
_SECONDS = 30


def dismiss_workers(address: str) -> int:
    """Notify the workers of the scheduler at ``address``, and return their number."""
    from distributed import Client

    with Client(address, set_as_default=False, security=ClusterSecurity(), timeout=_SECONDS) as client:
        return len(client.run(_leave_file))


def _leave_file() -> None:
    (Path(tempfile.gettempdir()) / FILE).touch()


if __name__ == "__main__":
    dismiss_workers(os.environ["DASK_SCHEDULER_ADDRESS"])
