"""A comparison, and a history, as one page that needs nothing but a browser."""
