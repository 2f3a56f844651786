# `make test` builds everything into .venv and build/, and runs the tests. Needs python3 >= 3.11 with venv, g++, cmake.
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
export PATH := $(BIN):$(PATH)
export ACCL_TRACE_DIR ?= $(CURDIR)/build

.PHONY: build test clean

$(VENV)/ready: requirements-dev.txt
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed."; exit 1; }
	test -x $(VENV)/bin/python || python3 -m venv $(VENV)
	$(VENV)/bin/pip install -q -r requirements-dev.txt
	touch $@

build: $(VENV)/ready
	cmake --preset dev -G Ninja -DPython_EXECUTABLE=$(BIN)/python
	cmake --build --preset dev -j 2

test: build
	ACCL_LOG=error build/dev/accl_unit_tests
	ACCL_LOG=error build/dev/accl_contract_tests
	PYTHONPATH=python $(BIN)/python -m accl_py.torch.build
	PYTHONPATH=python $(BIN)/python -m pytest -q $(addprefix tests/python_torch/test_,layouts.py operations.py point_to_point.py work.py)  # the others need an installed package

clean:
	rm -rf build python/accl_py/lib python/accl_py/include python/accl_py/*.so
