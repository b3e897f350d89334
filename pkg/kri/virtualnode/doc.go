// Package virtualnode is a node agent on the interfaces of kri, small enough to
// read: it registers Node, Lease and CSINode, takes the pods that the scheduler
// binds to it, mounts their CSI volumes through the driver's node service, and
// runs their containers as processes of the machine. It authenticates as
// system:node:<name> and needs no permission beyond a kubelet's.
//
// Two halves meet at kri: nodeLoop and podLoop are the agent and know nothing of
// processes and mounts; nodeProvider and podProvider are the node and know
// nothing of the API's pods but what they are handed.
//
// What a pod may use: command and args (a container without command is refused;
// the image is ignored), env with literal values and fieldRef, volumes of the
// kinds emptyDir, hostPath, persistentVolumeClaim and ephemeral (CSI, file
// system), init containers in order, restartPolicy. A container is Ready while it
// runs: probes are not run. The root directory of a container is its working
// directory, in which every mountPath is a symbolic link: /data is ./data.
package virtualnode
