"""Text: delimited tables.

delimited    csv, tsv and txt, plain or gzipped
text_files   their bytes, encoding and delimiter
"""
