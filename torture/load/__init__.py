"""Real processes under load, with faults, and what must be true afterwards."""
