"""Calling functions: decorators, contexts, verbs, and handles on the jobs that come of them."""
