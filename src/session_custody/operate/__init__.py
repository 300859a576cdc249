"""What people and machines may ask of a running worker: health and metrics over HTTP (DESIGN 18)."""
