package failover

import (
	"slices"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Targets decides afresh and returns the closure of a failing volume, one
// target per VolumeAttachment; a volume that fails from several nodes has one
// closure on each, and its targets name their nodes. It returns false where the
// volume is not (any more) to be moved: the verdict has recovered, the closure
// has come under a veto, a storm has begun. What has passed the brakes before
// is not counted again.
func (c *Controller) Targets(pv string) ([]volume.Target, bool) {
	targets, ok := c.TargetsOf([]string{pv})[pv]
	return targets, ok
}

// TargetsOf is Targets for many volumes by one decision. What is not to be moved
// is missing from the answer.
func (c *Controller) TargetsOf(pvs []string) map[string][]volume.Target {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running || c.cfg.Mode != ModeEnforce {
		return nil
	}
	all := map[string][]volume.Target{}
	if d, err := c.decide(); err == nil {
		for _, a := range d.Answers {
			if a.Action != ActionMove {
				continue
			}
			if targets := a.Closure.Targets(); len(targets) > 0 {
				all[a.PV] = append(all[a.PV], targets...)
			}
		}
	}
	asked := make(map[string][]volume.Target, len(pvs))
	for _, pv := range pvs {
		if targets, ok := all[pv]; ok && pv != "" {
			asked[pv] = targets
			continue
		}
		// The caller drops the name, so it has to be sent again should the
		// decision turn once more.
		delete(c.sent, pv)
		c.pokes.poke()
	}
	return asked
}

// Decisions returns the last decision, for people.
func (c *Controller) Decisions() Decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.last
	d.Answers = slices.Clone(d.Answers)
	d.Memory = Memory{}
	return d
}

// Explain returns the answers that concern a pod, decided afresh.
func (c *Controller) Explain(namespace, name string) ([]Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running {
		return nil, errNotRunning
	}
	d, err := c.decide()
	if err != nil {
		return nil, err
	}
	var answers []Answer
	for _, a := range d.Answers {
		if slices.ContainsFunc(a.Closure.Pods, func(p PodRef) bool { return p.Namespace == namespace && p.Name == name }) {
			answers = append(answers, a)
		}
	}
	return answers, nil
}
