"""Stations 8-10: the gate (our PEP), and behind it the tools of a pinned manifest (DESIGN 8, 10, 13).

What an app team writes is in `declare` and `context`; what runs it is reached through `gate` alone.
"""
