package volume

// Annotations and labels that people set.
const (
	// ScopeKey is read on a pod (annotation over label), else on its namespace:
	// "enabled" or "disabled".
	ScopeKey = "ha-sidecar.io/failover"
	// AnnotationAllowUnsafe on a pod, "true": move it although it also uses a
	// volume that we cannot fence.
	AnnotationAllowUnsafe = "ha-sidecar.io/allow-unsafe-volumes"
	// AnnotationAllowOwnerless on a pod, "true": move it although no controller
	// will make it again.
	AnnotationAllowOwnerless = "ha-sidecar.io/allow-ownerless"
	// AnnotationPaused on a CSIDriver, or on a Node for maintenance: any value,
	// the reason. Nothing is moved meanwhile.
	AnnotationPaused = "ha-sidecar.io/paused"
	// AnnotationUnfence on a Node: a person's word that the node is clean.
	AnnotationUnfence = "ha-sidecar.io/unfence"
)

// Names that we write.
const (
	// AnnotationFenced on a VolumeAttachment holds its FenceRecord.
	AnnotationFenced = "ha-sidecar.io/fenced"
	holdPrefix       = "fenced.ha-sidecar.io/"

	// AnnotationNodeID on a VolumeAttachment is the node ID that the volume was
	// published with; the name is external-attacher's.
	AnnotationNodeID = "csi.alpha.kubernetes.io/node-id"
)

// HoldKey is the key of the NoSchedule taint, and of the Node annotation with
// its HoldRecord, that keep pods off a node which failed a volume of driver.
func HoldKey(driver string) string { return holdPrefix + driver }
