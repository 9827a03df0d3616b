"""Tables for papers in the style of the American Psychological Association, as HTML and Markdown."""
