package rig

import (
	"testing"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

func TestCheckExclusive(t *testing.T) {
	const one, many = "SINGLE_NODE_WRITER", "MULTI_NODE_MULTI_WRITER"
	entry := func(op, volume, node, mode string) state.Entry {
		return state.Entry{Op: op, Volume: volume, Node: node, Mode: mode}
	}
	for name, c := range map[string]struct {
		ledger []state.Entry
		bad    bool
	}{
		"a handover": {ledger: []state.Entry{
			entry(state.OpPublish, "v", "a", one), entry(state.OpUnpublish, "v", "a", ""), entry(state.OpPublish, "v", "b", one),
		}},
		"again on the same node": {ledger: []state.Entry{entry(state.OpPublish, "v", "a", one), entry(state.OpPublish, "v", "a", one)}},
		"a shared volume":        {ledger: []state.Entry{entry(state.OpPublish, "v", "a", many), entry(state.OpPublish, "v", "b", many)}},
		"two volumes":            {ledger: []state.Entry{entry(state.OpPublish, "v", "a", one), entry(state.OpPublish, "w", "b", one)}},
		"two nodes": {bad: true, ledger: []state.Entry{
			entry(state.OpPublish, "v", "a", one), entry(state.OpPublish, "v", "b", one), entry(state.OpUnpublish, "v", "a", ""),
		}},
		"the unpublish was of another node": {bad: true, ledger: []state.Entry{
			entry(state.OpPublish, "v", "a", one), entry(state.OpUnpublish, "v", "c", ""), entry(state.OpPublish, "v", "b", one),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := CheckExclusive(c.ledger); (err != nil) != c.bad {
				t.Errorf("CheckExclusive() = %v, want a complaint: %v", err, c.bad)
			}
		})
	}
}
