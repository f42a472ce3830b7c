"""Compile the package's programs for TPUs that are not there, and see that they fit.

`entries.py` is the list of what is compiled; a new function needs a line there and, the first
time, a builder in `functions.py`.
"""
