"""Reports of fitted models: text, tables, plots, exported files and an HTML page.

tables, plots, figures
    tables as text, the canvas of plots, and drawings shared by all models
document
    the contents of a report, independent of HTML
component_order, export
    order and signs of the components; csv, parquet and Zarr files
row_statistics, reconstruction, selection
    distributions of the row factors, errors by item and size, scores of a selection
presenters
    texts and plots of each family of models
html
    one page from a document
"""
