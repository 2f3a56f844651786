// error.h: each C++ error becomes the class of the same name in accl_py.errors.
#include "accl/error.h"
#include "bindings.h"

namespace accl::python {

namespace {

// The Python class of an error; found once, when the module is made.
py::object class_of(const char* name) { return py::module_::import("accl_py.errors").attr(name); }

template <class Kind>
void raise(const char* name, const Kind& error) {
  py::object instance = class_of(name)(error.what());
  if constexpr (std::is_same_v<Kind, SystemError>) instance.attr("code") = error.code();
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(instance.ptr())), instance.ptr());
}

void translate(std::exception_ptr pointer) {
  if (!pointer) return;
  try {
    std::rethrow_exception(pointer);
  } catch (const RulesError& e) {
    raise("RulesError", e);
  } catch (const SeveralHostsError& e) {
    raise("SeveralHostsError", e);
  } catch (const InvalidArgument& e) {
    raise("InvalidArgument", e);
  } catch (const MismatchError& e) {
    raise("MismatchError", e);
  } catch (const TimeoutError& e) {
    raise("TimeoutError", e);
  } catch (const PeerError& e) {
    raise("PeerError", e);
  } catch (const AbortedError& e) {
    raise("AbortedError", e);
  } catch (const SystemError& e) {
    raise("AcclSystemError", e);
  } catch (const StoreError& e) {
    raise("StoreError", e);
  } catch (const InternalError& e) {
    raise("InternalError", e);
  } catch (const Error& e) {
    raise("AcclError", e);
  }
}

}  // namespace

void bind_errors(py::module_&) { py::register_exception_translator(translate); }

}  // namespace accl::python
