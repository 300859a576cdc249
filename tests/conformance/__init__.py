"""One suite for every adapter of a port: what the fakes promise is what the real ones do."""
