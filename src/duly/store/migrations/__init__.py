"""Numbered, checksummed steps of the schema; `duly.store.migrate` applies them."""
