# The two commands of README.md are `make demo` and `make test`; the rest is for developers
# (docs/development.md). Real builds are CMake presets; this file only strings them together.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
DEMO_TRACES ?= bench/traces/gpt_varlen.nofrag bench/traces/multistream8.nofrag
DEMO_DEVICE ?= sim:h100-80g
export JOBS FUZZ_SECONDS

.PHONY: demo test lint format tidy asan tsan fuzz gpu clean help

help:
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: ## build the tool, replay recorded jobs on a simulated H100, compare allocators
	@scripts/setup.sh --minimal
	@mkdir -p build && cmake --preset release > build/demo-configure.log 2>&1 || { cat build/demo-configure.log; exit 1; }
	@cmake --build --preset release -j $(JOBS) --target bin/nofrag nofrag_shared
	build/release/bin/nofrag replay $(DEMO_TRACES) --device $(DEMO_DEVICE)

test: ## everything CI runs: format, lint, tests, sanitizers, fuzzers, clang-tidy
	@scripts/setup.sh
	@FUZZ_SECONDS= scripts/test.sh

lint: ## layering, sizes, banners, links, self-contained headers, format
	@scripts/setup.sh
	@scripts/test.sh format lint headers

tidy: ## clang-tidy over allocator/ and torch_plugin/
	@scripts/setup.sh
	@scripts/test.sh tidy

asan: ## all tests under AddressSanitizer and UBSan
	@scripts/setup.sh
	@scripts/test.sh asan

tsan: ## the threaded tests under ThreadSanitizer
	@scripts/setup.sh
	@scripts/test.sh tsan

fuzz: ## every fuzzer for FUZZ_SECONDS (60)
	@scripts/setup.sh
	@scripts/test.sh fuzz

format: ## rewrite the sources with clang-format
	@git ls-files -z '*.h' '*.cc' '*.cu' '*.c' | xargs -0 clang-format-14 -i

gpu: ## the tests that need an NVIDIA GPU (and PyTorch), on a machine that has them
	@scripts/setup.sh
	@cmake --preset release && cmake --build --preset release -j $(JOBS)
	ctest --preset release -L 'gpu|torch' --no-tests=error

clean: ## remove build/
	rm -rf build
