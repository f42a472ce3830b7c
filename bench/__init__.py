"""The committed benchmark: `make bench` runs it, `python -m bench.report` writes its tables.

The driver (`__main__.py`) asks one worker process at a time, round after round, in an order
that changes with the round. So a slow minute of the machine hits all subjects alike, and the
ratios within a round stay fair.
"""
