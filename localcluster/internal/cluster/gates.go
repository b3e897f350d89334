package cluster

import (
	"slices"
	"strconv"
	"strings"
)

// defaultGate is on unless the user says otherwise: it is what the project is
// about. All three Kubernetes components register it.
const defaultGate = "CSIVolumeHealth"

// featureGates checks a value of --feature-gates and adds the default gate when
// the value does not name it.
func featureGates(value string) (string, error) {
	var gates []string
	for _, gate := range strings.Split(value, ",") {
		if gate = strings.TrimSpace(gate); gate == "" {
			continue
		}
		name, setting, _ := strings.Cut(gate, "=")
		if _, err := strconv.ParseBool(setting); err != nil || name == "" {
			return "", Usagef("--feature-gates holds %q: write NAME=true or NAME=false", gate)
		}
		gates = append(gates, gate)
	}
	named := slices.ContainsFunc(gates, func(gate string) bool {
		name, _, _ := strings.Cut(gate, "=")
		return name == defaultGate || strings.HasSuffix(name, ":"+defaultGate)
	})
	if !named {
		gates = append(gates, defaultGate+"=true")
	}
	return strings.Join(gates, ","), nil
}
