#!/usr/bin/env bash
# The entry point of the cluster test, by its old name: it finds out where it is, and runs `gpuproof validate`.
set -euo pipefail
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ ! -d "$checkout/.venv/bin" ] || PATH=$checkout/.venv/bin:$PATH
echo "scripts/entrypoint.sh is containers/entrypoint.sh, and starts: gpuproof validate" >&2
exec bash "$checkout/containers/entrypoint.sh" "$@"
