"""What the store does with jobs, from the call to the last trace."""
