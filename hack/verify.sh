#!/usr/bin/env bash
# Checks what no linter does: formatting, tidy modules, generated files.
set -euo pipefail
cd "$(dirname "$0")/.."
fail=0
unformatted=$(git ls-files '*.go' | xargs gofmt -l)
if [ -n "$unformatted" ]; then echo "not formatted by gofmt: $unformatted"; fail=1; fi
# The modules tools and test/bench/peers/* list programs only; tidying them would ask
# for what their tests need.
for module in . localcluster test/bench; do
  (cd "$module" && go mod tidy -diff >/dev/null) || { echo "go.mod of $module is not tidy: run go mod tidy there"; fail=1; }
done
if [ -x bin/ha-sidecar ] && ! ./hack/flags.sh | diff -q docs/flags.md - >/dev/null; then
  echo "docs/flags.md is stale: run make generate"; fail=1
fi
crds=$(mktemp -d)
trap 'rm -rf "$crds"' EXIT
if ! ./hack/snapshot-crds.sh "$crds" || ! diff -rq "$crds" test/rig/crds >/dev/null; then
  echo "test/rig/crds is stale: run make generate"; fail=1
fi
exit $fail
