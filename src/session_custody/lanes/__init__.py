"""Station 6: lanes. One owner each; recovery; a standing reconcile that schedules runs (DESIGN 4)."""
