#!/usr/bin/env bash
# Writes the reference of flags from the binary's own help.
set -euo pipefail
cd "$(dirname "$0")/.."
printf '# Flags of ha-sidecar\n\nGenerated from `ha-sidecar --help` by `make generate`. Do not edit.\n\n```\n'
bin/ha-sidecar --help
printf '```\n'
