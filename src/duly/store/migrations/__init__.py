"""Numbered, checksummed migrations of the schema; `duly.store.migrate` applies them."""
