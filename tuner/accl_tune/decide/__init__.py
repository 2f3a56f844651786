"""Decisions: pure functions of samples. No I/O, no clock; where chance is needed, the random source
is passed in.

statistics   paired log gains, the signed-rank test, its interval, correction for many tests
screening    who can still win, and who is the finalist of each cell
verdicts     whether the finalists are better than the default
intervals    from cells to as few ranges of sizes as explain them
"""
