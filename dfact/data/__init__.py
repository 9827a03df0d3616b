"""Datasets: the labels, missing codes, valid ranges and confounders that give an array its meaning.

- ``dataset``, ``stored_dataset``, ``stored_values``: the Dataset, and its form in a Zarr store.
- ``coerce``: any X that an estimator accepts, as a Dataset.
- ``layout``: blocks, partitions and chunks, which follow from the shape alone.
- ``statistics``, ``validation``, ``confounders``, ``codebook``: ranges, checks with their messages, covariates, item texts.
- ``sources``: data that passes read by ranges of rows.
- ``readers``: file formats; a new format is a module there.
- ``ingest``: ``import_array``, ``import_table``, ``import_triplets`` and ``join_datasets``, which write a dataset.
- ``lazy_results``, ``synthetic``, ``examples``: results as dask arrays; planted data; the example that ships with dfact.

May import ``dfact.storage`` and ``dfact.kernels``.
"""
