"""The writing of datasets, by all imports.

Rows reach :class:`writer.DatasetWriter` in order, or tasks write chunks of its array side by side. In both cases what is known of the
stored rows ends in the metadata, and the dataset exists once these are written.

    writer         DatasetWriter: rows, then metadata; StoredRows; Participants
    storage_types  types of stored values, and their missing codes
    bucket_file    records in a temporary file, grouped by buckets that fit in memory
    tasks          tasks side by side: inline, on threads, on processes or on a cluster
"""
