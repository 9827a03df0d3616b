"""Arrays as datasets.

array     import_array: arrays in memory, lazy or in files, dense or sparse
triplets  import_triplets: tables with a row, a column and a value on each line, as a sparse dataset
"""
