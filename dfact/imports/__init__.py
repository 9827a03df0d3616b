"""Imports: read files and arrays, check them, and write them as datasets, a chunk of rows at a time.

Imports data and everything below it. A file format is a reader, which knows where the columns and the rows of its file are; the other
folders know what its values mean, the same for all formats. All of them write through ``writing``.

    readers     one module for each file format
    dictionaries  codebooks next to a table
    tables      import_table: items, events and instances, participants of a table of answers
    coding      answers as numbers: levels, missing codes, ranges, by the file and by the user
    arrays      import_array and import_triplets: arrays of any kind, and tables with an entry on each line
    joins       datasets made from datasets: join_datasets and expand_categories
    writing     the writer of a dataset, a file that sorts, tasks side by side
"""
