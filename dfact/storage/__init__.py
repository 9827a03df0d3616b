"""Storage: bytes in a folder or an object store, complete or absent.

Imports signals and errors alone. What the bytes mean is not known here.

    location        a path, or a URL in an object store
    files           files that are complete or absent, and temporary folders
    folder_owners   the process that made a temporary folder
    replacement     files and folders that replace others at once
    writers         one writer of a location at a time
    input_files     files that users bring, which are only read
    remote_files    ranges of bytes in object stores and on web servers
    zarr_stores     Zarr stores that report a missing chunk as an error
    chunk_reads     chunks of Zarr arrays, read side by side
    arrays          arrays of Zarr groups: compressed, with a checksum, read with errors that name them
    groups          Zarr groups that are complete or absent: datasets and models
    versions        versions of a store where nothing can be renamed
    seals           which chunks belong to one version
    digests         digests of JSON documents: models, checkpoints and records of jobs
    array_stream    arrays as consecutive bytes
    records         records of arrays that a computation resumes from: checkpoints
"""
