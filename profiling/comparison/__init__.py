"""Runs held against each other: cell by cell, and over their history. Never measures, never imports torch."""
