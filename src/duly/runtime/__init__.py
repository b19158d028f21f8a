"""The loops that run jobs and keep the store in order."""
