#!/usr/bin/env bash
# Renders the chart with the values of an example: that of $1, or the first.
set -euo pipefail
cd "$(dirname "$0")/.."
values=deploy/kubernetes/${1:-example-values.yaml}
echo "# Generated from the chart deploy/kubernetes/ha-sidecar and $values by \`make generate\`. Do not edit."
bin/helm template csi deploy/kubernetes/ha-sidecar --namespace csi-example --values "$values"
