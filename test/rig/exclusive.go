package rig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// CheckExclusive finds in the driver's ledger what must never be: a volume of a
// single-node mode that was published to two nodes at once. In the ledger an
// entry stands when its effect does, so the order of entries is the order of
// effects.
func CheckExclusive(ledger []state.Entry) error {
	published := map[string][]string{}
	for i, entry := range ledger {
		if !singleNode(entry.Mode) && entry.Op == state.OpPublish {
			continue
		}
		nodes := published[entry.Volume]
		switch entry.Op {
		case state.OpPublish:
			if !slices.Contains(nodes, entry.Node) {
				nodes = append(nodes, entry.Node)
			}
		case state.OpUnpublish:
			nodes = slices.DeleteFunc(nodes, func(n string) bool { return n == entry.Node })
		}
		published[entry.Volume] = nodes
		if len(nodes) > 1 {
			return fmt.Errorf("entry %d of the ledger, %s: volume %s is published to %s at once",
				i+1, entry.Time.Format("15:04:05.000"), entry.Volume, strings.Join(nodes, " and "))
		}
	}
	return nil
}

func singleNode(mode string) bool { return strings.HasPrefix(mode, "SINGLE_NODE") }
