package topology

import (
	"hash/fnv"
	"strconv"
	"strings"
)

// spread tells which of n places is preferred for a claim, so that the claims
// of a StatefulSet go to one place after the other.
//
// These are named <template>-<set>-<ordinal>. The hash is of the last part of
// the name before the ordinal, so that two templates of one set agree, and the
// volumes of a pod are together; the ordinal is added. Other claims go by a
// hash of their whole name. The hash, FNV-1 of 32 bits, is that of
// external-provisioner, so that a set begun with it goes on; it wraps in 32 bits
// there, and not here, where it would put two neighbours in one place.
func spread(claimName string, n int) int {
	if n == 0 {
		return 0
	}
	name, ordinal := claimName, uint64(0)
	if dash := strings.LastIndexByte(claimName, '-'); dash >= 0 {
		if number, err := strconv.ParseUint(claimName[dash+1:], 10, 32); err == nil {
			name, ordinal = claimName[:dash], number
			name = name[strings.LastIndexByte(name, '-')+1:]
		}
	}
	hash := fnv.New32()
	_, _ = hash.Write([]byte(name)) // it never fails
	return int((uint64(hash.Sum32()) + ordinal) % uint64(n))
}
