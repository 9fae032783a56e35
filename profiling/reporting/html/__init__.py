"""A run as one page that needs nothing but a browser: charts, sortable tables, links into the run's folder."""

HTML_FILE = "report.html"
