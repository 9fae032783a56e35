"""The pages of comparisons and histories are opened as those of runs are."""

from open_page import browser, heard, show
from parsed_page import parse

__all__ = ["browser", "heard", "parse", "show"]
