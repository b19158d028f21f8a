"""Real processes under load, faults among them, and what must be true afterwards."""
