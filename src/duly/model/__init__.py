"""The pure part: values and decisions, without I/O, clocks or randomness."""
