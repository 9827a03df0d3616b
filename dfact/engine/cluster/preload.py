"""Preloaded by the scheduler, workers and nannies of a cluster that uses TLS: they check names on certificates.

The import itself does this, as Dask calls ``dask_setup`` of a preloaded module only when the process already listens.
"""

from dfact.engine.cluster.certificate_names import check_names

check_names()
