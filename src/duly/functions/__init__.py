"""Functions: registration, what workers publish about them, and the jobs that calls become."""
