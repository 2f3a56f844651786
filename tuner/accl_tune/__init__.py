"""accl-tune: measures which algorithm is fastest where, decides by statistics, writes rules and
their evidence.

    model      the words: cells, choices, trials, pairs of samples          (pure)
    decide     which choices are better than the default, and where         (pure)
    evidence   the journal and the evidence file
    measure    ranks that run and time candidates in lockstep
    rules      writing, checking and explaining rules files, through accl_py.rules
    report     tables and plots
    cli        the commands

It meets the rest of ACCL-N in accl_py's public API and in the rules file, nowhere else.
"""

from accl_py import __version__

__all__ = ["__version__"]
