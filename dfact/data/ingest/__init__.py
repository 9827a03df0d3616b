"""Import of tables, arrays and other datasets: each is checked and written as a dataset, a chunk of rows at a time.

Each kind of source has a room. All of them write through ``writing``.

    tables      import_table: items, events and instances, participants of a table of answers
    coding      answers as numbers: levels, missing codes, ranges, by the file and by the user
    arrays      import_array and import_triplets: arrays of any kind, and tables with an entry on each line
    joins       datasets made from datasets: join_datasets and expand_categories
    writing     the writer of a dataset, a file that sorts, tasks side by side
"""
