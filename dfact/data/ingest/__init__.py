"""Import of tables, arrays and other datasets: each is checked and written as a dataset, a chunk of rows at a time."""
