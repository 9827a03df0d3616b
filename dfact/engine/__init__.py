"""Passes over row blocks and what runs them: inline, on threads, on a Dask cluster."""
