#!/bin/bash
# Runs every GPU case on this machine and checks it. Needs an NVIDIA GPU, root,
# python3 with torch (jax and cupy: their cases are reported missing without),
# and nvcc. Builds gpumemtrace where there is Go, else takes bin/gpumemtrace.
#   test/gpu/run.sh [-o DIR] [CASE...]
set -euo pipefail
cd "$(dirname "$0")/../.."
if command -v go >/dev/null; then make build; fi
exec python3 -u test/gpu/run.py "$@"
