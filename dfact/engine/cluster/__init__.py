"""Passes on a Dask cluster: a shard on each worker, and the driver's session of them."""
