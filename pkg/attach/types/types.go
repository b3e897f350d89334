// Package types holds the names that the caches of pkg/attach/cache are keyed by.
package types

import k8stypes "k8s.io/apimachinery/pkg/types"

// UniquePodName is the UID of a pod: unlike its name it is never used twice.
type UniquePodName k8stypes.UID
