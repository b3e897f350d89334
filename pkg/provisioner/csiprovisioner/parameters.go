package csiprovisioner

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Parameters of a class that are for us. All with the prefix are taken out of what
// the driver gets; the deprecated ones are not, as in external-provisioner.
const (
	parameterPrefix  = "csi.storage.k8s.io/"
	parameterFSType  = parameterPrefix + "fstype"
	deprecatedFSType = "fstype"

	parameterClaimName      = parameterPrefix + "pvc/name"
	parameterClaimNamespace = parameterPrefix + "pvc/namespace"
	parameterVolumeName     = parameterPrefix + "pv/name"
)

// secretKind is one of the secrets that a class can name.
type secretKind struct {
	// what the secret is for, in errors.
	what string
	// name and namespace are the parameters' names, and those of an earlier time.
	name, namespace                     string
	deprecatedName, deprecatedNamespace string
}

func kind(what, parameter, deprecated string) secretKind {
	k := secretKind{what: what, name: parameterPrefix + parameter + "-name", namespace: parameterPrefix + parameter + "-namespace"}
	if deprecated != "" {
		k.deprecatedName, k.deprecatedNamespace = deprecated+"Name", deprecated+"Namespace"
	}
	return k
}

// String names the secret in a sentence.
func (k secretKind) String() string { return strings.TrimSpace(k.what + " secret") }

var (
	anySecret              = kind("", "secret", "")
	provisionerSecret      = kind("provisioner", "provisioner-secret", "csiProvisionerSecret")
	controllerPublishKind  = kind("controller publish", "controller-publish-secret", "csiControllerPublishSecret")
	nodeStageSecret        = kind("node stage", "node-stage-secret", "csiNodeStageSecret")
	nodePublishSecret      = kind("node publish", "node-publish-secret", "csiNodePublishSecret")
	controllerExpandSecret = kind("controller expand", "controller-expand-secret", "")
	nodeExpandSecret       = kind("node expand", "node-expand-secret", "")
	controllerModifySecret = kind("controller modify", "controller-modify-secret", "")

	secretKinds = []secretKind{
		anySecret, provisionerSecret, controllerPublishKind, nodeStageSecret, nodePublishSecret,
		controllerExpandSecret, nodeExpandSecret, controllerModifySecret,
	}
)

// reserved are the parameters with our prefix that have a meaning.
func reserved() map[string]bool {
	keys := map[string]bool{parameterFSType: true}
	for _, k := range secretKinds {
		keys[k.name], keys[k.namespace] = true, true
	}
	return keys
}

// driverParameters are those of the class that the driver gets.
func driverParameters(class string, parameters map[string]string) (map[string]string, error) {
	known, kept := reserved(), make(map[string]string, len(parameters))
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		switch {
		case !strings.HasPrefix(key, parameterPrefix):
			kept[key] = parameters[key]
		case !known[key]:
			return nil, refusef("StorageClass %q: parameter %q is not known: the prefix %q is reserved; remove it or correct it in a new class", class, key, parameterPrefix)
		}
	}
	return kept, nil
}

// fsType is the filesystem that a class names. The fallback is for one that names
// none.
func fsType(class string, parameters map[string]string, fallback string) (string, error) {
	old, isOld := parameters[deprecatedFSType]
	current, isCurrent := parameters[parameterFSType]
	switch {
	case isOld && isCurrent:
		return "", refusef("StorageClass %q: parameters %q and %q both name a filesystem: keep only the second, in a new class", class, deprecatedFSType, parameterFSType)
	case isCurrent:
		return current, nil
	case isOld:
		return old, nil
	default:
		return fallback, nil
	}
}

// withMetadata adds the names that --extra-create-metadata is about.
func withMetadata(parameters map[string]string, claim *v1.PersistentVolumeClaim, pvName string) map[string]string {
	all := maps.Clone(parameters)
	all[parameterClaimName], all[parameterClaimNamespace], all[parameterVolumeName] = claim.Name, claim.Namespace, pvName
	return all
}
