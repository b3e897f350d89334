#!/usr/bin/env bash
# Copies the CustomResourceDefinitions of snapshots out of the Go module that
# carries them, into the directory of $1. They are data of the Kubernetes
# project, under the Apache License 2.0.
set -euo pipefail
out=$(cd "$1" && pwd)
module=github.com/kubernetes-csi/external-snapshotter/client/v8
version=v8.7.0
sum=h1:HVaSUeRRHPu49aSiL8eXOjS9Re9G6pM0NzdTGI7mM14=
cd / # beside no go.mod: this is no dependency
told=$(go mod download -json "$module@$version")
dir=$(sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p' <<<"$told")
got=$(sed -n 's/^\t"Sum": "\(.*\)",\{0,1\}$/\1/p' <<<"$told")
if [ "$got" != "$sum" ]; then echo "$module@$version has the checksum $got, not $sum" >&2; exit 1; fi
for kind in volumesnapshots volumesnapshotcontents volumesnapshotclasses; do
  file=snapshot.storage.k8s.io_$kind.yaml
  {
    echo "# config/crd/$file of $module $version,"
    echo "# Copyright The Kubernetes Authors, Apache License 2.0. Copied by make generate; do not edit."
    cat "$dir/config/crd/$file"
  } >"$out/$file"
done
