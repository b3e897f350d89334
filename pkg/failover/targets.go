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
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running || c.cfg.Mode != ModeEnforce {
		return nil, false
	}
	d, err := c.decide()
	if err == nil {
		var targets []volume.Target
		for _, a := range d.Answers {
			if a.PV == pv && a.Action == ActionMove {
				targets = append(targets, a.Closure.Targets()...)
			}
		}
		if len(targets) > 0 {
			return targets, true
		}
	}
	// The caller drops the name, so it has to be sent again should the decision
	// turn once more.
	delete(c.sent, pv)
	c.pokes.poke()
	return nil, false
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
