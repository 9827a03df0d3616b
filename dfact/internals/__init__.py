"""Internals: undocumented names of other libraries that dfact uses, checked when they are imported.

There is a module for each library: ``numba``, ``distributed``, ``dask``, ``zarr``, ``rdata`` and ``pyreadstat``.
A release may rename any of these names. Where dfact overrides a method, the renamed one would run instead, without an error. Each module
therefore refuses a release that lacks a name, with the library, its version and the names.
"""
