"""Drills: break things on purpose, with real processes, and count how often the system survives.

`make drills ROUNDS=50 SEED=0` runs every drill that many times and prints a table; the test suite runs the same drills in a
short form.
"""
