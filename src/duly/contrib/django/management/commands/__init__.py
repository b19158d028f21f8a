"""What Django finds here are its commands."""
