#!/usr/bin/env bash
# Makes tests/bench/.venv with the peers, once for each requirements.txt. pip takes them from the index that it is configured for: some gigabytes.
set -euo pipefail
cd "$(dirname "$0")"
stamp=.venv/requirements.txt
if cmp -s requirements.txt "$stamp"; then
	exit 0
fi
python3 -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
cp requirements.txt "$stamp"
