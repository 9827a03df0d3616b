"""Passes over row blocks, and the executors that run them: inline, on threads, on a Dask cluster.

    passes          the contract of a pass: a block, its state, the partial sums
    partitions      runs of blocks, read ahead; one pass over the blocks of a partition
    reduction       the fixed tree in which sums of partitions are added
    block_state     state between passes: in memory, spilled, or in a checkpoint
    shard           the partitions of one process and the threads that run passes on them
    session         protocols of sessions and executors
    executors       the executors of this process; which executor a parameter names
    cluster         the session on a Dask cluster
    fused_passes    many solvers on shared reads
    checkpoint      recorded passes and versions of the state
    memory_plan     memory of a fit, before it runs
    threads         a limit of one BLAS thread

Only this room imports ``distributed``.
"""
