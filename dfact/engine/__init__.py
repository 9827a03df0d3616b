"""Engine: run passes over row blocks in one process or on a Dask cluster, within a memory plan.

Imports data and everything below it, and knows how passes run, never which. Its folder ``cluster`` alone drives workers of
``distributed``; ``data`` uses that library for Dask arrays, and ``internals`` holds the undocumented names of both.
Sums are added in the order of a fixed tree over the partitions, so every executor returns bit-identical results.

    passes          the contract: a block, a pass, sums that add up, the request for a pass
    session         the contract of where passes run
    requests        what a solver, a generator, asks of a session; drivers of one, or of many whose passes share their reads
    executors       which executor a parameter names
    partitions      runs of blocks, read ahead of the pass, and the order of all sums over them
    threads         items on threads and prepared ahead; one thread for BLAS and none for codecs while passes run
    shard           the partitions of one process, their states, and the threads that run passes on them
    tiles           sums and parameters of many columns, by tiles of them
    column_map      problems of all columns between passes, on the driver or on workers
    block_state     the state of each block: in memory, spilled, or in a checkpoint
    memory_plan     what a fit holds in memory, before it runs
    environment     versions and processors, on which bits depend
    checkpoint      versions of the state, from which a fit resumes
    cluster         sessions on Dask workers
"""
