"""Storage: bytes in a folder or an object store, complete or absent.

Imports signals and errors alone. What the bytes mean is not known here.

    location        a path, or a URL in an object store
    files           files that are complete or absent, and temporary folders
    replacement     files and folders that replace others at once, by one writer at a time
    input_files     files that users bring, which are only read
    remote_files    ranges of bytes in object stores and on web servers
    zarr_stores     Zarr stores that report a missing chunk as an error
    arrays          arrays of Zarr groups: compressed, with a checksum, read with errors that name them
    groups          Zarr groups that are complete or absent: datasets and models
    seals           digests of JSON documents, and which chunks belong to one version of a store
    array_stream    arrays as consecutive bytes
    records         records of arrays that a computation resumes from: checkpoints
"""
