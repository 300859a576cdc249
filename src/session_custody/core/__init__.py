"""The pure core: values, tables and decisions. No clock, no randomness, no input or output (DESIGN 17)."""
