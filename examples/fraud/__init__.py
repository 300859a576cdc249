"""The fraud investigation: an app of custody, as an app team would write it. Served with `--app fraud`."""
