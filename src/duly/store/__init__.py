"""The store: the only place with SQL."""
