"""The S3-compatible server of moto on loopback: ``python benchmarks/faults/s3_server.py PORT``.

For each request moto lists the folders of all its services twice, which takes half of the time of a request; here it does so once.
"""

import logging
import sys

from moto import backends, server

if __name__ == "__main__":
    services = tuple(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: services
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would log each request
    server.main(["-H", "127.0.0.1", "-p", sys.argv[1]])
