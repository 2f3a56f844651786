// Errors: one tree, two families.
//
// Recoverable errors derive from accl::Error and say which value was wrong, what was expected and
// what to do. A broken invariant inside the library is an InternalError: a bug of ours. Every
// message is a sentence. Python shows the same tree (accl_py.errors).
#pragma once

#include <stdexcept>
#include <string>

namespace accl {

// Root of the tree.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's argument, option or environment value is wrong; nothing was started.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// The ranks are on several hosts, where the engine connects ranks of one host only.
class SeveralHostsError : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// A rules file cannot be read or is wrong; the message carries file, line, value and accepted
// values.
class RulesError : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// The ranks do not agree on what they call (collective, count, dtype, operation, root, rules, ...).
class MismatchError : public Error {
 public:
  using Error::Error;
};

// A deadline passed. The message names the collective, its sequence number and the ranks that did
// not arrive.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

// A peer died, left, or reported an error of its own.
class PeerError : public Error {
 public:
  using Error::Error;
};

// The communicator was aborted or shut down, or an earlier error had already ended it.
class AbortedError : public Error {
 public:
  using Error::Error;
};

// The machine refused something: shared memory is full, a descriptor could not be had.
class SystemError : public Error {
 public:
  SystemError(const std::string& message, int code) : Error(message), code_(code) {}
  int code() const noexcept { return code_; }  // errno

 private:
  int code_;
};

// The store that the caller gave failed or does not answer.
class StoreError : public Error {
 public:
  using Error::Error;
};

// An invariant of ours is broken.
class InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace accl
