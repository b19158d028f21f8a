"""One module for each view."""
