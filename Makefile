# Builds and tests ACCL-N. Everything that is needed goes into .venv; python3 >= 3.11 with venv, g++ and cmake are
# expected on the machine.
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
PYTHON := $(BIN)/python
export PATH := $(BIN):$(PATH)
export ACCL_TRACE_DIR ?= $(CURDIR)/build
export CMAKE_BUILD_PARALLEL_LEVEL ?= 2

SOURCES := $(shell find accl python tuner -type f \( -name '*.h' -o -name '*.inc' -o -name '*.cc' -o -name '*.cpp' \
             -o -name '*.py' -o -name '*.pyi' \) -not -path 'python/accl_py/include/*' 2>/dev/null)

.PHONY: build tune test check sanitize clean

$(VENV)/ready: requirements-dev.txt
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed."; exit 1; }
	@test -x $(PYTHON) || python3 -m venv $(VENV) || { echo "python3 -m venv failed: install python3-venv."; exit 1; }
	$(BIN)/pip install -q -r requirements-dev.txt
	@touch $@

$(VENV)/installed: $(VENV)/ready $(SOURCES) CMakeLists.txt pyproject.toml VERSION
	$(BIN)/pip install -q --no-build-isolation --no-deps .
	cd $(VENV) && $(PYTHON) -m accl_py.torch.build
	@touch $@

build: $(VENV)/installed

# Measures this machine's CPU engine with 2 ranks, decides, and shows default against tuned; everything in out/.
tune: build
	$(BIN)/accl-tune demo --out out

test: build
	cmake -S . -B build/test -G Ninja -DACCL_TESTS=ON -DACCL_PYTHON=OFF -DACCL_WERROR=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo
	cmake --build build/test
	ACCL_LOG=error build/test/accl_unit_tests
	ACCL_LOG=error build/test/accl_contract_tests
	ACCL_LOG=error build/test/accl_plugin_tests
	ACCL_LOG=error build/test/accl_steering_tests
	ACCL_LOG=error build/test/accl_fakes_tests
	ACCL_LOG=error build/test/accl_device_tests
	$(PYTHON) -m pytest -q $(wildcard tests/tools tests/python tests/perf tests/tuner tests/plugin tests/python_torch)
	$(PYTHON) -m pytest -q tests/python_device

# Format, lint, types, dependency rules, generated docs.
check: build
	$(PYTHON) tools/check

# The C++ tests under the address, undefined-behaviour and thread sanitizers. The thread sanitizer wants memory where it
# expects it, so addresses are not randomised for it.
sanitize: $(VENV)/ready
	@command -v setarch > /dev/null || { echo "setarch was not found, and the thread sanitizer needs it: install util-linux."; exit 1; }
	set -e; for preset in asan tsan; do \
	  cmake --preset $$preset -G Ninja; \
	  cmake --build --preset $$preset; \
	  for tests in unit contract plugin steering fakes device; do ACCL_LOG=error setarch -R build/$$preset/accl_$${tests}_tests; done; \
	done

clean:
	rm -rf build $(VENV)/installed python/accl_py/lib python/accl_py/include python/accl_py/*.so
