"""The product beside a bare writer of the same runs: `python -m benchmarks` or `make bench`.

Both drive 12-step runs on the same server in the same minutes: the product with its store, driver, gate,
tools and sealed events; the bare writer with one fenced statement per group and no agent at all. The ratio of
the two is what the product's promises cost; times alone say more about the machine.
"""
