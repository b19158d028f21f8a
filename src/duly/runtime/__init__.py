"""The loops that run jobs and maintain the store."""
