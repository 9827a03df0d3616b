"""File formats: one module for each; those of slices lie in their rooms.

A reader knows where the columns and the rows of its file are, not what their values mean.

    base           the contract of a table, and what its readers share
    formats        the reader of a table, chosen by the suffix of its file
    text           csv, tsv and txt, plain or compressed
    columnar       parquet, Arrow and Feather, and columns of Arrow as batches
    frames         data frames
    arrays         NumPy and Zarr
    zarr_input     Zarr stores of other programs, opened for reading
"""
