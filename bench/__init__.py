"""Measures what duly costs on top of the bare database, and the effect of a growing store."""
