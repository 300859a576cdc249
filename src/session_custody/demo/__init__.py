"""The demo: 200 fraud investigations, a worker killed in their middle, and a checker that imports nothing of
ours.
"""
