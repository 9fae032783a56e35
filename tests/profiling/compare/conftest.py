"""The pages of comparisons and histories are opened as those of runs are."""

from open_page import browser, heard, show

__all__ = ["browser", "heard", "show"]
