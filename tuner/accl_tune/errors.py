"""The errors of accl-tune. Each is one sentence or two for the user, and has the exit status of the
command.
"""

__all__ = [
    "ArgumentError",
    "EvidenceError",
    "Interrupted",
    "MeasureError",
    "ResumeError",
    "TuneError",
]


class TuneError(Exception):
    """Root of the tree."""

    status = 1


class ArgumentError(TuneError):
    """An argument of the command is wrong, or a package that it needs is missing."""

    status = 2


class MeasureError(TuneError):
    """The ranks could not measure: one died, or the engine failed."""

    status = 3


class EvidenceError(TuneError):
    """An evidence file or a journal cannot be read or written, or is not what it should be."""

    status = 4


class ResumeError(EvidenceError):
    """A sweep cannot go on where an earlier one stopped."""


class Interrupted(TuneError):
    """Ctrl-C, or a request to terminate; what was measured is kept."""

    status = 130
