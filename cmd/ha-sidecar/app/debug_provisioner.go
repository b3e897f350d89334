package app

import (
	"net/http"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/csiprovisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/journal"
)

// maxListed bounds each list of the provisioner's page: after an outage there may
// be thousands of claims. The oldest are shown.
const maxListed = 200

// provisionerPage is what the provisioner has begun and not brought to its end. It
// has neither requests nor parameters: either may hold what is secret.
type provisionerPage struct {
	Journal journal.Status `json:"journal"`
	// Begun are the records of the journal.
	Begun        []csiprovisioner.Progress `json:"begun"`
	BegunLeftOut int                       `json:"begunLeftOut,omitempty"`
	// Pending are the claims that are worked on though they may have gone.
	Pending        []provisioner.Pending `json:"pending"`
	PendingLeftOut int                   `json:"pendingLeftOut,omitempty"`
}

// showProvisioner is all that; with ?claim=NAMESPACE/NAME what concerns that claim.
func showProvisioner(c *controllers, r *http.Request) (any, error) {
	p := c.provisioner
	if p == nil {
		return nil, errDisabled
	}
	claim := r.URL.Query().Get("claim")
	page := provisionerPage{Journal: p.journal.Status()}
	page.Begun, page.BegunLeftOut = atMost(p.begun.Progress(), func(b csiprovisioner.Progress) bool { return claim == "" || b.Claim == claim })
	page.Pending, page.PendingLeftOut = atMost(p.controller.Pending(), func(b provisioner.Pending) bool { return claim == "" || b.Claim == claim })
	return page, nil
}

// atMost keeps the first maxListed of those that are wanted, and counts the others
// of them.
func atMost[T any](all []T, wanted func(T) bool) (kept []T, leftOut int) {
	kept = []T{}
	for _, one := range all {
		switch {
		case !wanted(one):
		case len(kept) < maxListed:
			kept = append(kept, one)
		default:
			leftOut++
		}
	}
	return kept, leftOut
}
