# Short names for the usual tasks. CMake does the work (CMakePresets.json); scripts/ holds what needs more than a line.

PREFIX ?= /usr/local
DESTDIR ?=
MAKEFLAGS += --no-print-directory
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

# A task small enough for global attention to learn it within the demo; docs/experiments.md has larger ones.
DEMO = --pairs 4 --length 32 --vocabulary 64 --window 4 --batch 64 --examples 6400 --epochs 8 --rate 0.003 --decay 0.1

# The real model of the demo: a file of SmolLM2-135M-Instruct, or 1 to download it (90 MB) where it is not at hand.
MODEL ?=
DOWNLOAD ?=

.PHONY: help build demo python test check-long bench install format clean

help:
	@echo 'make build        the program, build/rosatune, and the library'
	@echo 'make demo         build, then train a small decoder to recall: attention, a window, a window and ROSA;'
	@echo '                  with MODEL=FILE or DOWNLOAD=1 a real model reads a story, with and without its memory'
	@echo 'make python       the Python package with all it can use, in build-python/venv'
	@echo 'make test         every check: gcc, clang, sanitizers, Python, short fuzzing, layout, installation'
	@echo 'make check-long   the same with larger tests, ThreadSanitizer and long fuzzing (hours)'
	@echo 'make bench        build, then time retrieval on this machine'
	@echo 'make install      install under PREFIX ($(PREFIX)); DESTDIR is put before it'
	@echo 'make format       lay out the sources with clang-format'
	@echo 'make clean        remove every build folder'

build:
	@scripts/install-deps build
	@cmake --preset release >/dev/null
	@cmake --build --preset release --target product -j $(JOBS)

demo: build
	@command -v gnuplot >/dev/null || echo 'without gnuplot there will be no picture (Debian: gnuplot-nox)'
	@build/rosatune mqar $(DEMO) $$(command -v gnuplot >/dev/null && echo '--plot build/mqar.png')
	@MODEL='$(MODEL)' DOWNLOAD='$(DOWNLOAD)' scripts/demo-book

python:
	@scripts/install-deps build
	@scripts/python-env
	@build-python/venv/bin/python -c 'import rosatune; print("rosatune", rosatune.__version__, "is in build-python/venv")'

test:
	@scripts/check

check-long:
	@scripts/check long

bench: build
	@for bits in 4 8 16; do for stream in uniform sticky correlated periodic; do \
		echo "$$stream, $$bits bits"; \
		build/rosatune bench retrieve --stream $$stream --bits $$bits || exit 1; \
	done; done

install: build
	DESTDIR='$(DESTDIR)' cmake --install build --prefix '$(PREFIX)'

format:
	@scripts/format

clean:
	rm -rf build build-*/
