// Package topology turns what the cluster knows of places into what CSI calls
// topology, and back.
//
// Requirements tells a driver where the volume of a claim may be
// (CreateVolumeRequest.accessibility_requirements); NodeAffinity turns the
// driver's answer (Volume.accessible_topology) into the affinity of the
// PersistentVolume; Segments are the places that a driver has, for
// CSIStorageCapacity objects.
//
// Nothing here remembers anything: every call looks at the listers afresh, so a
// label that came late counts at once, and equal states give equal answers. A
// caller that must repeat a request word for word keeps the request. Nothing
// that a lister returned is changed, and no two results share memory.
package topology
