#!/bin/sh
# Builds bin/localcluster at the root of the repository, or where $1 says.
# The first build compiles all of Kubernetes: about ten minutes on two cores.
set -eu
cd "$(dirname "$0")"
# The sources from the module proxy call themselves v0.0.0-master: tell them the
# version that go.mod asks for.
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
flags=
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
	flags="$flags -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
	flags="$flags -X $package.gitTreeState=clean"
done
CGO_ENABLED=0 exec go build -ldflags "$flags" -o "${1:-../bin/localcluster}" .
