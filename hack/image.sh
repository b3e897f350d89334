#!/usr/bin/env bash
# Builds the image without a daemon and runs its version command.
set -euo pipefail
cd "$(dirname "$0")/.."
image=${IMAGE:-localhost/ha-sidecar:dev}
options=(--storage-driver=vfs)
command -v buildah >/dev/null || { apt-get update -qq && apt-get install -y -qq buildah >/dev/null; }
buildah "${options[@]}" build --isolation=chroot --layers=false --format=oci -t "$image" .
container=$(buildah "${options[@]}" from --pull=never "$image")
trap 'buildah "${options[@]}" rm "$container" >/dev/null' EXIT
buildah "${options[@]}" run --isolation=chroot "$container" -- /ha-sidecar version
