"""Calling functions: decorators, contexts, verbs, and handles on the resulting jobs."""
