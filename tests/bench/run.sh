#!/usr/bin/env bash
# Runs the benchmarks against PyTorch and diffusers and writes RESULTS.md, RESULTS.json, PLUGINS.md and PLUGINS.json beside this file.
#
#   tests/bench/run.sh [--quick] [--only PART[,PART...]]     parts: flux flux-512 flux-bf16 wan sdxl sd vae batch plugins flux1-dev
#
# The checkpoints (7 GB), built once, lie in $PRECAST_BENCH_DIR, else in tests/bench/.models. The machine should do nothing else.
set -euo pipefail
cd "$(dirname "$0")"
./setup.sh
mkdir -p .build
CGO_ENABLED=0 go build -o .build/ ./denoiser ../../cmd/precast
exec .venv/bin/python bench.py "$@"
