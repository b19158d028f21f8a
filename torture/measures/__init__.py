"""The rows of the table: each module tries one thing for its share of the time."""
