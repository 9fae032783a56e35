"""Records to text. Nothing here measures, and nothing here imports torch."""
