"""A report as one HTML file; :func:`dfact.report.html.page.write_report` writes it."""
