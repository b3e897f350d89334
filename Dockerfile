# The image is the static binary and nothing else. Build the binary first:
#   make bin/ha-sidecar
FROM scratch
COPY bin/ha-sidecar /ha-sidecar
USER 65532:65532
ENTRYPOINT ["/ha-sidecar"]
