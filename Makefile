# Two commands: `make demo` and `make test`. Each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types unit mutants clean

demo: $(STAMP)
	$(BIN)/capwise demo

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .

# mypy must see the folders under their package names: a link farm, made anew each time.
types: $(STAMP)
	rm -rf .mypy && mkdir -p .mypy/capwise
	for f in compiler/*; do ln -s ../../$$f .mypy/capwise/; done
	for d in passes ops models; do ln -s ../../$$d .mypy/capwise/; done
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadfile

# Breaks one thing at a time and prints what no test notices. Not part of `test`: minutes on many cores.
mutants: $(STAMP)
	$(BIN)/python tests/mutants $(MUTANTS)

# torch comes first and alone: asked for together with others, pip may take a CUDA build.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)" "setuptools>=77"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[cpu,dev,debug,mlir,hf]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy .mypy_cache .ruff_cache .pytest_cache
