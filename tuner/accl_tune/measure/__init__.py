"""Measuring: ranks that run and time candidates in lockstep, driven by rank 0.

candidates   what may compete in a cell, from the schedule registry
data         buffers, random inputs, and what must come out
bench        what every rank does: executes the jobs that rank 0 broadcasts
lead         what rank 0 sees: check these choices, time these pairs
ranks        starting local ranks, or joining those of a launcher
sweep        the order of things: check, screen, confirm; journal, budget, progress
machine      what the measurements depend on
progress     a bar, or lines
"""
