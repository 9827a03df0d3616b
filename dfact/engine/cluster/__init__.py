"""Passes on a Dask cluster: a shard on each worker, and the driver's session that coordinates them.

connection    the driver's client of a running cluster
certificate_names   names on certificates, checked at both ends of a connection
preload       what the processes of a cluster load at their start
session       passes, recovery of lost workers, balance; the executor
handshake     the same versions on all processes, and a statement where bits may differ; tasks that check them
workers       the workers of a session: joining, calls, losses
leaving       how a worker that is told to stop hands its partitions over
reservation   the memory that fits hold on the workers
worker_shard  the worker's side: its shard, and the calls that reach it
placement     the owners of partitions, and the tree of calls
journal       the passes since the last checkpoint, to recompute lost partitions
rows          rows that workers write to a Zarr array
watchdog      waits with limits, and errors of lost clusters
transport     pickled payloads
scaling_demand   a signal to adaptive scaling
heartbeats       metrics and progress that workers report with their heartbeats
"""
