"""The pure part: values and decisions. No I/O, no clock, no randomness of its own."""
