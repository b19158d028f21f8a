"""Calling functions: decorators, contexts, verbs, and the resulting jobs."""
