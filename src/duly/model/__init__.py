"""The pure part: values and decisions, without I/O, a clock or randomness."""
