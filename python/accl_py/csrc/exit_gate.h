// What threads do about the GIL while the interpreter ends.
//
// Until Python 3.13 a thread that asks for the GIL after the interpreter has begun to end is ended
// by force, which unwinds through C++ and aborts the process. So all threads of ours, and Python
// threads that wait in C++, pass a gate for the GIL. It closes when Python's atexit handlers run:
// those that have passed get the GIL, and callbacks run to their end, before the interpreter goes
// on to end; later ones are turned away.
#pragma once

#include <pthread.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace accl::python {

class ExitGate {
 public:
  static ExitGate& get() {
    static auto* gate = new ExitGate;  // threads may outlive main()
    return *gate;
  }

  // True: ask for the GIL, then call leave(). False: the interpreter ends; never ask for it again.
  bool enter() noexcept {
    inside_.fetch_add(1);
    if (!closed_.load()) return true;
    inside_.fetch_sub(1);
    return false;
  }
  void leave() noexcept { inside_.fetch_sub(1); }

  // Of the thread that ends the interpreter; needs the GIL.
  void close() {
    closed_ = true;
    const pybind11::gil_scoped_release nogil;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (inside_ > 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    closer_ = std::this_thread::get_id();
  }
  bool closed_by_this_thread() const noexcept { return closer_ == std::this_thread::get_id(); }

 private:
  ExitGate() {
    ::pthread_atfork(nullptr, nullptr,
                     [] { get().inside_ = 0; });  // the child has none of those threads
  }

  static constexpr std::chrono::seconds kPatience{5};
  std::atomic<int> inside_{0};
  std::atomic<bool> closed_{false};
  std::atomic<std::thread::id> closer_{};
};

// Releases the GIL while it lives, like pybind11's gil_scoped_release. A daemon thread that is
// still here when the interpreter ends stays here: it has nothing to go back to.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;
  ~Released() {
    ExitGate& gate = ExitGate::get();
    const bool entered = gate.enter();
    if (!entered && !gate.closed_by_this_thread()) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours{1});
    }
    PyEval_RestoreThread(state_);
    if (entered) gate.leave();
  }

 private:
  PyThreadState* state_;
};

// Calls `function` with the GIL on a thread that Python does not know, unless the interpreter ends.
template <class Function>
void with_gil(Function function) {
  ExitGate& gate = ExitGate::get();
  if (!gate.enter()) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  function();  // may let go of the GIL and take it again: the end waits for all of it
  PyGILState_Release(state);
  gate.leave();
}

}  // namespace accl::python
