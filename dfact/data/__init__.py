"""Datasets: Zarr stores, labels, missing codes, confounders, ingest, examples."""
