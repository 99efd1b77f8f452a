#!/bin/bash
# Runs every GPU case on this machine and checks it. Needs an NVIDIA GPU, root,
# python3 with nvidia-ml-py and torch, and nvcc. What further packages cases need is in
# test/gpu/cases: one whose package is not installed is not run, and says so, and so is
# one whose program (test/gpu/cases/published.py) is not in PATH. Builds
# gpumemtrace where there is Go, else takes bin/gpumemtrace.
#   test/gpu/run.sh [-o DIR] [-j N] [--gpus N] [CASE...]
# -j runs so many cases side by side, but for those that measure times or take most of
# a GPU; --gpus runs the cases that need exactly so many GPUs.
set -euo pipefail
cd "$(dirname "$0")/../.."
if command -v go >/dev/null; then make build; fi
exec python3 -u test/gpu/run.py "$@"
