#!/usr/bin/env bash
# Write the lock files: the newest releases on PyPI that pyproject.toml admits, but the CUDA libraries of
# tested.txt, for each system and each Python from 3.11 on, with the hash of every file of theirs. The libraries
# of services (node, dicomweb, metrics, postgres), which are small, are in all of them. Needs uv (pip install uv).
set -euo pipefail
cd "$(dirname "$0")/../.."

for extra in cpu cuda12 cuda13; do
    asked=(--extra node --extra dicomweb --extra metrics --extra postgres)
    [ "$extra" = cpu ] || asked+=(--extra "$extra")
    uv pip compile --quiet --no-config --default-index https://pypi.org/simple --universal --python-version 3.11 \
        --generate-hashes --custom-compile-command "bash docs/locks/make.sh" --upgrade \
        --constraint docs/locks/tested.txt "${asked[@]}" pyproject.toml --output-file "docs/locks/$extra.txt"
done
