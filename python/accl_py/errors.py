"""The errors of ACCL-N: one tree, the same as in C++ (accl/error.h).

AcclError
├── InvalidArgument      the caller's argument, option or environment value is wrong
│   ├── RulesError       a rules file cannot be read or is wrong
│   └── SeveralHostsError  ranks of several hosts, where the CPU engine connects those of one
├── MismatchError        the ranks do not agree on what they call
├── TimeoutError         a deadline passed; the message names the call and who did not arrive
├── PeerError            a peer died, left, or reported an error of its own
├── AbortedError         the communicator was aborted, shut down, or an earlier error had ended it
├── AcclSystemError      the machine refused something (shared memory is full); `code` is errno
├── StoreError           the store that the caller gave failed
└── InternalError        a fault of ACCL-N
"""

import builtins

__all__ = [
    "AbortedError",
    "AcclError",
    "AcclSystemError",
    "InternalError",
    "InvalidArgument",
    "MismatchError",
    "PeerError",
    "RulesError",
    "SeveralHostsError",
    "StoreError",
    "TimeoutError",
]


class AcclError(RuntimeError):
    """Root of the tree."""


class InvalidArgument(AcclError, ValueError):
    """The caller's argument, option or environment value is wrong; nothing was started."""


class RulesError(InvalidArgument):
    """A rules file cannot be read or is wrong.

    The message has file, line, value and accepted values.
    """


class SeveralHostsError(InvalidArgument):
    """The ranks are on several hosts, where the engine connects ranks of one host only."""


class MismatchError(AcclError):
    """The ranks do not agree on what they call."""


class TimeoutError(AcclError, builtins.TimeoutError):
    """A deadline passed. The message names the collective, its number and who did not arrive."""


class PeerError(AcclError):
    """A peer died, left, or reported an error of its own."""


class AbortedError(AcclError):
    """The communicator was aborted or shut down, or an earlier error had ended it."""


class AcclSystemError(AcclError):
    """The machine refused something; `code` is the errno."""

    code: int = 0


class StoreError(AcclError):
    """The store that the caller gave failed or does not answer."""


class InternalError(AcclError):
    """An invariant of the library is broken: a fault of ACCL-N."""
