"""The rows of the table. Each module tries one kind of fault for its share of the time."""
