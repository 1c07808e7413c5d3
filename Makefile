# Short calls of cmake, ctest and scripts of tools/; `make help` lists them.
BUILD := build
JOBS := $(shell nproc)

.PHONY: help demo test build bench check check-files integrations-test wheel format docs fuzz nightly page-test server-clients eval gpu-test gpu-bench setup clean

help:
	@echo "Every day"
	@echo "make setup              install what a build needs, from Debian's packages"
	@echo "make build              build build/lathe and the tests"
	@echo "make demo               build build/lathe and ask models/tiny-v32 two questions"
	@echo "make test               build everything and run every test"
	@echo "make check              check formatting, what folders include, words of comments"
	@echo "make format             format every source file"
	@echo "make docs               rewrite program output and figures in the documents"
	@echo "make clean              remove what was built"
	@echo "make help               print this list"
	@echo
	@echo "With a Hopper GPU"
	@echo "make gpu-test           run the tests that need one"
	@echo "make gpu-bench          time codecs, steps and attention"
	@echo
	@echo "Rare: long, or with large downloads"
	@echo "make bench              codec throughput next to memcpy"
	@echo "make check-files        compile each file of src/ by itself, without objects"
	@echo "make fuzz               run each fuzz target for FUZZ_SECONDS (60)"
	@echo "make nightly            run all tests, random ones with NIGHTLY_SCALE (150) times the cases and the seed NIGHTLY_SEED (the day)"
	@echo "make eval               EVAL_LIMIT (200) items of each task over every plan, into docs/results/"
	@echo "make wheel              build dist/lathe-*.whl with its libraries, and check it in a fresh environment"
	@echo "make page-test          test the server's page in a headless browser; pictures go to out/page"
	@echo "make server-clients     run SDKs, agents, lm-eval and SGLang's Rust bench, from PyPI, against the server"
	@echo "make integrations-test  test the plug-ins for vLLM and SGLang against those engines' sources from PyPI, no GPU"

setup:
	@tools/setup.sh build

build: setup
	@mkdir -p $(BUILD)
	cmake --preset release
	cmake --build $(BUILD) -j$(JOBS)

demo: setup
	cmake --preset release
	cmake --build $(BUILD) -j$(JOBS) --target lathe
	@tools/demo.sh $(BUILD)/lathe

test: setup
	cmake --preset release
	tools/make_venv.sh $(BUILD)/venv
	cmake --preset release -DLATHE_PYTHON_TESTS=ON
	cmake --build $(BUILD) -j$(JOBS)
	ctest --preset release -j$(JOBS)

bench: build
	$(BUILD)/lathe bench codec

check:
	@tools/setup.sh format
	tools/check_rooms.py
	tools/check_words.py
	git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror

check-files:
	@tools/setup.sh build
	tools/check_files.py

format:
	@tools/setup.sh format
	git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format -i

docs: build
	tools/docs_blocks.py --write $(BUILD)/lathe
	tools/fit_table.py --write $(BUILD)/lathe
	tools/draw_docs.py $(BUILD)/lathe
	tools/draw_kernels.py --write

FUZZ_SECONDS ?= 60
fuzz:
	@tools/setup.sh build fuzz
	cmake --preset fuzz
	cmake --build build-fuzz -j$(JOBS)
	tools/run_fuzzers.sh build-fuzz $(FUZZ_SECONDS)

# More random cases than a plain test run, and others every day; the seed that is printed repeats a run.
# A scale of 150 is ten to fifteen minutes on two cores.
NIGHTLY_SCALE ?= 150
NIGHTLY_SEED ?= $(shell date +%j)
nightly: build
	@echo "LATHE_TEST_SCALE=$(NIGHTLY_SCALE) LATHE_TEST_SEED=$(NIGHTLY_SEED)"
	LATHE_TEST_SCALE=$(NIGHTLY_SCALE) LATHE_TEST_SEED=$(NIGHTLY_SEED) ctest --preset release -j$(JOBS)

# Not part of `make test`: they download torch and wheels of several hundred MB from PyPI.
integrations-test:
	@tools/setup.sh build
	integrations/plugins_against_sources.py

wheel:
	@tools/setup.sh build
	tools/make_wheel.sh dist
	tools/check_wheel.sh $$(ls -t dist/lathe-*.whl | head -1)

# Not part of `make test`: a browser is 190 MB of packages.
page-test: build
	@tools/setup.sh browser
	[ -x $(BUILD)/page-venv/bin/python ] || python3 -m venv $(BUILD)/page-venv
	$(BUILD)/page-venv/bin/pip install --quiet --disable-pip-version-check selenium
	$(BUILD)/page-venv/bin/python tests/page_test.py $(BUILD)/lathe out/page

# Clients that others wrote; tools/try_clients.py installs each into build/clients.
server-clients: setup
	cmake --preset release
	cmake --build $(BUILD) -j$(JOBS) --target lathe
	tools/try_clients.py sdks $(BUILD)/lathe
	tools/try_clients.py agents $(BUILD)/lathe
	tools/try_clients.py lm-eval $(BUILD)/lathe
	tools/try_clients.py sglang-bench $(BUILD)/lathe

# Every plan of both checkpoints over the test sets, into docs/results/.
EVAL_LIMIT ?= 200
eval: build
	tools/eval_results.sh $(BUILD)/lathe $(EVAL_LIMIT)

gpu-test: setup
	cmake --preset cuda
	cmake --build build-cuda -j$(JOBS) --target lathe_gpu_tests
	tools/run_gpu_tests.sh build-cuda/gpu

gpu-bench: setup
	cmake --preset cuda
	cmake --build build-cuda -j$(JOBS) --target lathe_gpu_benches
	tools/run_gpu_tests.sh build-cuda/gpu/bench

clean:
	rm -rf build build-debug build-asan build-tsan build-fuzz build-cuda
