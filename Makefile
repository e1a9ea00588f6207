# make demo    create .venv, install, build, train the example on 4 ranks
# make test    the same, then all tests          make lint sanitize   style, types, sanitizer run of the C++ core
# make build   environment and native build      make clean           remove what was built (distclean: .venv too)
#
# PYTHON=python3.12                  another interpreter
# VENV_FLAGS=--system-site-packages  keep the packages that the machine has (a torch that came with it)
# WHEELS=folder                      install from a folder of wheels, without any index
# TORCH_INDEX=url                    where CPU builds of torch are, if the configured index has none

PYTHON ?= python3
VENV ?= .venv
VENV_FLAGS ?=
WHEELS ?=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
RANKS ?= 1 2 3 4
MORE_RANKS ?= $(if $(filter file,$(origin RANKS)),5 6 7 8)

# make takes a space for the end of a name.
$(if $(word 2,$(CURDIR)),$(error accdp: this folder's path has a space in it, which make cannot take: $(CURDIR)))

# Programs at a time, of compilers above all.
CORES := $(shell $(PYTHON) tools/cores.py)
BIN := $(abspath $(VENV))/bin
STAMPS := $(VENV)/stamps
# An MPI that was named, and is not on PATH: its mpiexec too.
export PATH := $(BIN):$(foreach mpicc,$(if $(MPICC),$(shell command -v $(MPICC))),$(dir $(mpicc)):)$(PATH)
# Several ranks share the cores: one thread each, unless the caller says otherwise.
export OMP_NUM_THREADS ?= 1
# Hundreds of programs below import torch. What the first writes spares each of the others up to ten seconds.
unexport PYTHONDONTWRITEBYTECODE
# Packages go into the environment, wherever its user has pip put them otherwise.
export PIP_USER := 0
unexport PIP_TARGET PIP_PREFIX PIP_ROOT

make_env = $(PYTHON) tools/make_env.py $(VENV) $(1) --venv-flags="$(VENV_FLAGS)" --torch-index=$(TORCH_INDEX) \
	$(if $(WHEELS),--wheels=$(WHEELS)) && mkdir -p $(STAMPS) && touch $@

NATIVE := CMakeLists.txt setup.py tools/toolchain.py accdp_comm/_version.py $(shell find csrc -name '*.?pp' -o -name '*.cu')
INSTALLED := pyproject.toml setup.py tools/build_backend.py accdp_comm/_version.py

.PHONY: all build demo test test-unit test-cudasim test-mpi test-torch test-failure test-hosts test-launch test-bench test-tune test-recipes \
	lint format sanitize races stalls emulate fuzz clean distclean
.NOTPARALLEL:
FORCE:
.DELETE_ON_ERROR:

all: build
build: $(STAMPS)/build

$(STAMPS)/run: requirements/build.txt requirements/torch.txt requirements/mpi.txt requirements/run.txt
	@$(call make_env,run)

$(STAMPS)/test: requirements/test.txt $(STAMPS)/run
	@$(call make_env,test)

$(STAMPS)/bench: requirements/bench.txt $(STAMPS)/run
	@$(call make_env,bench)

$(STAMPS)/recipes: requirements/recipes.txt $(STAMPS)/run
	@$(call make_env,recipes)

$(STAMPS)/lint: requirements/lint.txt $(STAMPS)/run
	@$(call make_env,lint)

# Where an environment's torch is, and which; it may be another Python's (--system-site-packages).
define WHICH_TORCH
import sys; sys.path.insert(0, "tools")
import toolchain; print(toolchain.torch_if_any())
endef
export WHICH_TORCH

# What the native modules of this checkout were last made with, and for which environment. Changed when any of it does.
build/made-with: FORCE
	@mkdir -p $(@D); \
	echo $(BIN) "$$($(BIN)/python -c "$$WHICH_TORCH" 2>&1)" "CXX=$$CXX MPICC=$$MPICC NVCC=$$NVCC" \
	  "ACCDP_CUDA=$$ACCDP_CUDA" > $@.new; \
	if cmp -s $@ $@.new; then rm $@.new; else mv $@.new $@; fi

# The native build first, by itself: its messages, and the one sentence of a failure, come without pip around them.
$(STAMPS)/native: $(NATIVE) $(STAMPS)/run build/made-with
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

$(STAMPS)/build: $(INSTALLED) $(STAMPS)/native
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

demo: build
	accdp run -n 4 examples/train_digits.py

# -- tests: every suite has a limit of its own, every test one of 120 s (pyproject.toml) --------------------------

PYTEST = $(BIN)/python -m pytest -p no:cacheprovider -rs -q --durations=10 --durations-min=2
LIMIT = $(BIN)/python tools/limit.py
CTEST = $(LIMIT) 600 ctest --parallel $(CORES) --output-on-failure --no-tests=error
# The launcher of the MPI that the build used: the environment's own first. Open MPI wants to be told that root, and
# more ranks than cores, are meant.
MPIEXEC ?= $(firstword $(wildcard $(BIN)/mpiexec) mpiexec)
MPIEXEC_FLAGS ?= $(if $(shell $(MPIEXEC) --version 2>&1 | grep -i 'open.\?mpi'),--allow-run-as-root --oversubscribe)

test: test-unit test-cudasim test-mpi test-torch test-failure test-hosts test-launch test-bench test-tune test-recipes

test-bench test-tune: $(STAMPS)/bench
# Frameworks are asked of an index only; from a folder of wheels, tests that need them are skipped.
test-recipes: $(if $(WHEELS),,$(STAMPS)/recipes)

# Two tests at a time: half of the time most wait, for a rank, a limit, a process that starts. Those of tests/hosts share
# the links between their network namespaces, whose speed they measure.
TESTS_AT_ONCE ?= 2
test-hosts: TESTS_AT_ONCE = 0

test-unit test-torch test-failure test-hosts test-launch test-bench test-tune test-recipes: test-%: build $(STAMPS)/test
	$(LIMIT) 900 $(PYTEST) -n $(TESTS_AT_ONCE) --dist loadgroup tests/$*

# The GPU's part of the core on a CUDA runtime of host memory, against the libaccdp that `make build` made. The programs
# are what `make sanitize` runs as well; who has just done that may say SANITIZED=yes to have what it leaves out.
SANITIZED ?=
CMAKE_BUILD = build/$(shell $(BIN)/python -c 'import sys; print(sys.implementation.cache_tag)')-in-place
test-cudasim: build $(STAMPS)/test
	@# pip in an environment of its own, which is gone by now, may have configured it.
	$(BIN)/python setup.py --quiet build_ext --inplace
	cmake --build $(CMAKE_BUILD) --parallel $(CORES) --target $(if $(SANITIZED),cudasim_pytest,cudasim_tests)
	$(if $(SANITIZED),,$(if $(NVCOMP_DIR),ACCDP_TEST_NVCOMP_DIR=$(NVCOMP_DIR)) \
		$(CTEST) --test-dir $(CMAKE_BUILD) -R '^cudasim/')
	$(LIMIT) 300 $(PYTEST) -n $(TESTS_AT_ONCE) tests/cudasim

# In two worlds: MPICH has room for some 2000 groups over several nodes in one.
MPI_COMPRESS = $(wildcard tests/mpi/test_comm_compress*.py)
MPI_OTHERS = $(filter-out $(MPI_COMPRESS),$(wildcard tests/mpi/test_*.py))
# How slots are stored to is a matter of two ranks; of more than cores, each of its tests takes up to a second.
MPI_MANY = $(filter-out tests/mpi/test_comm_stores.py,$(MPI_OTHERS))
MPI_MORE = tests/mpi/test_comm_algorithms.py tests/mpi/test_comm_plan.py

on_ranks = echo "$(MPIEXEC) -n $$ranks pytest $(1)"; \
	$(LIMIT) 600 $(MPIEXEC) $(MPIEXEC_FLAGS) -n $$ranks $(PYTEST) --with-mpi $(1) || exit 1

test-mpi: build $(STAMPS)/test
	@for ranks in $(RANKS); do \
	  $(call on_ranks,$(MPI_COMPRESS)); \
	  if [ $$ranks -lt 4 ]; then tests="$(MPI_OTHERS)"; else tests="$(MPI_MANY)"; fi; $(call on_ranks,$$tests); \
	done
	@for ranks in $(MORE_RANKS); do \
	  if [ $$ranks -lt 8 ]; then tests="$(MPI_MORE)"; else tests="$(MPI_MANY)"; fi; $(call on_ranks,$$tests); \
	done

# -- checks -------------------------------------------------------------------------------------------------------

CPP_FILES = $(shell find csrc tests/cpp tests/cudasim -name '*.?pp' -o -name '*.cu' -o -name '*.h')

# The last line: `make races`, seldom run, is to compile.
lint: build $(STAMPS)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	$(CXX) -std=c++20 -fsyntax-only -fsanitize=thread -Icsrc tests/cpp/ranks.cpp

format: $(STAMPS)/lint
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

# Where the C++ tests find nvCOMP; empty where its wheel is not installed, and they say that they skip it.
NVCOMP_DIR = $(shell $(BIN)/python -c 'from accdp_comm import nvcomp; print(nvcomp.find_directory() or "")' 2>/dev/null)

sanitize: build
	cmake -G Ninja -S . -B build/sanitize -DACCDP_SANITIZE=ON --log-level=WARNING
	cmake --build build/sanitize --parallel $(CORES)
	$(if $(NVCOMP_DIR),ACCDP_TEST_NVCOMP_DIR=$(NVCOMP_DIR)) \
	  $(CTEST) --test-dir build/sanitize

# ThreadSanitizer over what ranks say to each other through shared memory (tests/cpp/one_mapping.hpp), for tests whose
# ranks are threads; half an hour on 2 cores. Built one file at a time, which shows an include that a file lacks and
# another of its folder, before it in a batch, has.
RACES = ahead_between_nodes allreduce_stream bcast_stream cost lost_messages node_algorithms post_office \
	post_office_ends ring short_over_nodes signatures stream_order
races: build
	cmake -G Ninja -S . -B build/thread -DACCDP_SANITIZE=ON -DACCDP_SANITIZERS=thread -DCMAKE_UNITY_BUILD=OFF \
	  --log-level=WARNING
	cmake --build build/thread --parallel $(CORES) --target $(RACES:%=test_%)
	$(LIMIT) 3600 ctest --test-dir build/thread --output-on-failure --no-tests=error \
	  -R "^cpp/test_($$(echo $(RACES) | tr ' ' '|'))$$"

# Tests of several processes while system calls take up to STALLS_MOST_US microseconds, STALLS_PER_MILLE of them, by
# chance. What fails is to be read: time limits of a test may be too short for it, and MPICH has races of its own (a send
# to a rank that has just died, a launcher's answer to one).
STALLED = tests/launch tests/failure tests/hosts
stalls: build $(STAMPS)/test
	$(CXX) -x c -O2 -shared -fPIC -o build/stalls.so tools/stalls.c -ldl
	LD_PRELOAD=$(CURDIR)/build/stalls.so $(LIMIT) 3600 $(PYTEST) -n 3 --dist loadgroup $(STALLED)

# The C++ tests for a processor that this machine has not, by an emulator: Debian's g++-aarch64-linux-gnu and qemu-user;
# two tests want a libzstd for it as well (libzstd1:arm64). They take 8 minutes on 2 cores, to build them 15.
emulate: build
	cmake -G Ninja -S . -B build/aarch64 -DACCDP_SANITIZE=ON -DACCDP_SANITIZERS=undefined --log-level=WARNING \
	  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
	  "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu"
	cmake --build build/aarch64 --parallel $(CORES)
	$(LIMIT) 1800 ctest --test-dir build/aarch64 --output-on-failure --no-tests=error -R '^cpp/'

# For as long as you like: libFuzzer where there is clang, else the mutations of the test above.
FUZZ_S ?= 600
fuzz: build
	CLANGXX="$(CLANGXX)" ACCDP_TEST_NVCOMP_DIR=$(NVCOMP_DIR) tools/fuzz.sh $(FUZZ_S)

clean:
	rm -rf build *.egg-info accdp_comm/*.so accdp_comm/*.new $(STAMPS)/native $(STAMPS)/build

distclean: clean
	rm -rf $(VENV)
