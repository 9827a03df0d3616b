"""Locations and completeness of stored bytes; nothing here concerns datasets or models.

- ``location``: local paths and object-store URLs, parsed once.
- ``zarr_stores``: Zarr stores on a local disk and in an object store, in which a missing chunk is an error.
- ``groups``: Zarr groups and arrays that are complete or absent; labels and small arrays in them.
- ``array_stream``: arrays as consecutive bytes with checksums, for spilled states and checkpoints.
- ``records``: named records of one computation, with one owner.
- ``files``: files written atomically, temporary folders.

May import ``dfact.signals`` and ``dfact.errors``. ``groups`` and ``records`` translate errors of Zarr, its codecs and the
operating system into :class:`dfact.errors.StoreError`.
"""
