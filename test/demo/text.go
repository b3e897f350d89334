package main

import (
	"fmt"
	"strings"
)

// progress prints what the rig tells.
type progress struct{}

func (progress) Write(p []byte) (int, error) {
	fmt.Printf("  %s", p)
	return len(p), nil
}

func explain() {
	fmt.Printf(`A database runs as a StatefulSet on a CSI volume with ReadWriteOnce, which ha-sidecar provisions
for its claim. Its storage becomes unreachable from its node: first the node can still stop the
pod; then it is up and reports, but its agent hangs in killing the container, as with a process
stuck in I/O. ha-sidecar moves the pod both times; the volume is never published to two nodes.
At the end the claim is deleted, and with it the volume.

Set for the demonstration, to be quick:
  ha-sidecar     %s
  nodes          %s
  control plane  %s
With the defaults: the kubelet looks at volumes each minute, a report is confirmed after 10 s,
pods get up to 60 s to go, and kube-controller-manager needs up to 60 s to see a detach on the
second path.

`, strings.Join(append(values, sidecarArgs...), " "), strings.Join(nodeArgs, " "), strings.Join(clusterArgs, " "))
}
