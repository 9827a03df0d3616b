"""import_table: answers of participants in a table of any format.

table         import_table: its steps, from the choice of items to the finished dataset
items         which columns are items
participants  ids, confounders and weights: the columns that describe the rows
dictionary    what a data dictionary says about a table
arrangement   a column for each item, or for each item at each event or instance
stack         events and instances as a third mode
event_table   tables with a row for each record and event, read as tables with a row for each record
"""
