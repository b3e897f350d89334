#!/usr/bin/env bash
# Renders the chart with the example's values.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "# Generated from the chart deploy/kubernetes/ha-sidecar by \`make generate\`. Do not edit."
bin/helm template csi deploy/kubernetes/ha-sidecar --namespace csi-example --values deploy/kubernetes/example-values.yaml
