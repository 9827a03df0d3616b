"""``python -m dfact.engine.cluster.dismissal``: tell all workers of a batch job that the driver is done, and will not come again.

Workers cannot tell a scheduler that is done from one that is lost. Each worker that is told leaves a file in its temporary folder,
for ``node-entrypoint``, the program of its pod.
"""

import os
import tempfile
from pathlib import Path

from dfact.engine.cluster.certificate_names import ClusterSecurity

FILE = "dismissed"
_SECONDS = 30


def dismiss_workers(address: str) -> int:
    """Tell the workers of the scheduler at ``address``, and return their number."""
    from distributed import Client

    with Client(address, set_as_default=False, security=ClusterSecurity(), timeout=_SECONDS) as client:
        return len(client.run(_leave_file))


def _leave_file() -> None:
    (Path(tempfile.gettempdir()) / FILE).touch()


if __name__ == "__main__":
    dismiss_workers(os.environ["DASK_SCHEDULER_ADDRESS"])
