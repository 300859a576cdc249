"""Stations 1 to 5: from the input topic to the pin in Postgres and the offset commit."""
