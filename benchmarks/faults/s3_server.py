"""The S3-compatible server of moto on loopback: ``python benchmarks/faults/s3_server.py PORT``.

For each request moto lists the folders of all its services twice, which takes half of the time of a request; here it does so once.
"""

import logging
import sys
import threading
from typing import Any

from moto import backends, server
from moto.s3.responses import S3Response

_writing = threading.Lock()
_put = S3Response.put_object


def _put_in_turn(self: S3Response) -> Any:
    """Check the condition of a request and write the object in one step, as S3 does; moto lets another request come between."""
    with _writing:
        return _put(self)


if __name__ == "__main__":
    services = tuple(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: services
    S3Response.put_object = _put_in_turn  # type: ignore[method-assign]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would log each request
    server.main(["-H", "127.0.0.1", "-p", sys.argv[1]])
