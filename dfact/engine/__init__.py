"""Engine: run passes over row blocks in one process or on a Dask cluster, within a memory plan.

Imports data and everything below it. Beside ``internals`` it is the only layer that imports ``distributed``. It knows how passes
run, never which.
Sums are added in the order of a fixed tree over the partitions, so every executor returns the same bits.

    passes          the contract: a block, a pass, sums that add up
    session         the contract of where passes run
    requests        what a solver, a generator, asks of a session
    driver          one solver, or many whose passes share their reads
    executors       which executor a parameter names
    partitions      runs of blocks, read ahead of the pass
    reduction       the order of all sums
    tiles           sums and parameters of many columns, by tiles of them
    block_state     the state of each block: in memory, spilled, or in a checkpoint
    memory_plan     what a fit holds in memory, before it runs
    environment     versions and processors, on which bits depend
    checkpoint      versions of the state, from which a fit resumes
    cluster         sessions on Dask workers
"""
