"""Measures what duly costs over the bare database, and whether it slows down as the store grows."""
