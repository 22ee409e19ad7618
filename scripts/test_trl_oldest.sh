#!/usr/bin/env bash
# Run the TRL adapter's tests against the oldest TRL release that we support.
#
#   scripts/test_trl_oldest.sh [folder for the virtual environment] [TRL version]
#
# torch is pinned to the one version that needs no accelerator packages on our machines.
set -euo pipefail

cd "$(dirname "$0")/.."
venv="${1:-.venv-trl-oldest}"
version="${2:-0.29.1}"

if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet "torch==2.13.0"
  "$venv/bin/python" -m pip install --quiet \
    "trl==$version" "transformers>=5.0,<5.25" accelerate datasets safetensors jmespath requests \
    "torch==2.13.0" pytest hypothesis
  "$venv/bin/python" -m pip install --quiet --no-deps --editable .
  "$venv/bin/python" -m pip install --quiet "numpy>=2.0" "scipy>=1.13" "polars>=1.20" "typer>=0.15"
fi

"$venv/bin/python" -c 'import trl, transformers; print("trl", trl.__version__, "transformers", transformers.__version__)'
HF_HUB_OFFLINE=1 CI=1 OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest \
  tests/integrations -q -W default -p no:cacheprovider --ignore=tests/integrations/verl
