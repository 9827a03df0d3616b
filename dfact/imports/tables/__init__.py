"""import_table: answers of participants in a table of any format.

A table is arranged, read into the spool, and written from there once the type of its values is known.

    table         import_table: its steps, from the choice of items to the finished dataset
    items         which columns are items
    participants  ids, confounders and weights: the columns that describe the rows
    dictionary    the dictionary of a table, and what follows from it
    arrangement   a column for each item, or for each item at each event or instance
    stack         events and instances as a third mode
    event_table   tables with a row for each record and event, read as tables with a row for each record
    spool         coded rows in scratch objects, until the type of the stored values is known
    chunks        spooled rows as chunks of the dataset, written by tasks
"""
