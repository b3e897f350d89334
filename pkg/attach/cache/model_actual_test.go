package cache

import (
	"fmt"
	"maps"
	"slices"
)

type pairKey struct{ volume, node string }

// pairModel is a pair. mounted is what was said of it, or nil if nothing was
// since it was added or its node last had a list.
type pairModel struct {
	dev, spec string
	confirmed bool
	mounted   *bool
	everTrue  bool
	since     int
}

// actualModel is the actual state of the world as Kubernetes keeps it: maps.
type actualModel struct {
	mode   Mode
	now    int
	pairs  map[pairKey]pairModel
	report map[string]map[string]bool // by node: what was ever reported
	needed map[string]bool
	inUse  map[string]map[string]bool // by node: its last list
}

func newActualModel(mode Mode) *actualModel {
	return &actualModel{
		mode: mode, pairs: map[pairKey]pairModel{}, report: map[string]map[string]bool{},
		needed: map[string]bool{}, inUse: map[string]map[string]bool{},
	}
}

func cloneNested(m map[string]map[string]bool) map[string]map[string]bool {
	c := maps.Clone(m)
	for k, v := range c {
		c[k] = maps.Clone(v)
	}
	return c
}

func (m *actualModel) clone() model {
	return &actualModel{m.mode, m.now, maps.Clone(m.pairs), cloneNested(m.report), maps.Clone(m.needed), cloneNested(m.inUse)}
}

func (m *actualModel) text() string {
	var pairs []string
	for k, p := range m.pairs {
		mounted := "unsaid"
		if p.mounted != nil {
			mounted = fmt.Sprint(*p.mounted)
		}
		pairs = append(pairs, fmt.Sprint(k, p.dev, p.spec, p.confirmed, mounted, p.everTrue, p.since))
	}
	return fmt.Sprint(sorted(pairs), m.report, m.needed, m.inUse, m.now)
}

func (m *actualModel) apply(o op) string {
	k := pairKey{o.volume, o.node}
	p, exists := m.pairs[k]
	put := func() { m.pairs[k] = p }
	switch o.kind {
	case "add":
		if o.noSpec && !o.named {
			return "error"
		}
		spec := "of " + o.dev
		if o.noSpec {
			spec = ""
		}
		return m.add(k, o.dev, spec, o.yes)
	case "attached":
		return m.add(k, o.dev, "of "+o.dev, true)
	case "uncertain":
		return m.add(k, "", "", false)
	case "delete":
		delete(m.pairs, k)
		if exists {
			m.unreport(k)
		}
		return "ok"
	case "allMounted":
		return m.allMounted(o)
	case "resetDetach":
		if p.since = -1; exists {
			put()
		}
		return "ok"
	case "rereport":
		if exists {
			m.reportPair(k)
		}
		return "ok"
	case "setNeeded", "resetNeeded":
		if m.report[o.node] == nil {
			return "error"
		}
		m.needed[o.node] = o.kind == "setNeeded" || m.mode == Modern && m.needed[o.node]
		return "ok"
	case "unreport":
		if !m.unreport(k) {
			return "error"
		}
		return "ok"
	case "setDetach":
		if !exists {
			return "error0"
		}
		if p.since < 0 {
			p.since = m.now
		}
		put()
		return fmt.Sprint("ok", m.now-p.since)
	case "mounted":
		if !exists {
			return "error"
		}
		p.everTrue = p.everTrue || o.yes
		if o.yes || p.everTrue || m.mode == Modern {
			p.mounted = &o.yes
		}
		if put(); !o.yes {
			delete(m.inUse[o.node], o.volume)
		}
		return "ok"
	default:
		return m.read(o, p, exists)
	}
}

func (m *actualModel) add(k pairKey, dev, spec string, attached bool) string {
	p, exists := m.pairs[k]
	if !exists {
		p.since = -1
	}
	p.confirmed = attached
	m.pairs[k] = p
	for other, p := range m.pairs {
		if other == k || other.volume == k.volume && m.mode == Seed {
			if p.dev = dev; spec != "" {
				p.spec = spec
			}
			m.pairs[other] = p
		}
	}
	if attached {
		m.reportPair(k)
	}
	return "ok"
}

func (m *actualModel) allMounted(o op) string {
	if m.mode == Modern {
		m.inUse[o.node] = map[string]bool{}
		for _, v := range o.list {
			m.inUse[o.node][v] = true
		}
	}
	for k, p := range m.pairs {
		if k.node == o.node {
			in := slices.Contains(o.list, k.volume)
			p.mounted, p.everTrue = &in, p.everTrue || in
			m.pairs[k] = p
		}
	}
	return "ok"
}

func (m *actualModel) reportPair(k pairKey) {
	if m.report[k.node] == nil {
		m.report[k.node] = map[string]bool{}
	}
	if !m.report[k.node][k.volume] {
		m.report[k.node][k.volume] = true
		m.needed[k.node] = true
	}
}

func (m *actualModel) unreport(k pairKey) bool {
	if !m.report[k.node][k.volume] {
		return false
	}
	delete(m.report[k.node], k.volume)
	m.needed[k.node] = true
	return true
}

func (m *actualModel) isMounted(k pairKey) bool {
	if p := m.pairs[k]; p.mounted != nil {
		return *p.mounted
	}
	return m.mode == Seed || m.inUse[k.node][k.volume]
}

func (m *actualModel) reportLine(node string) string {
	var list []string
	for v := range m.report[node] {
		list = append(list, v+"="+m.pairs[pairKey{v, node}].dev)
	}
	slices.Sort(list)
	return fmt.Sprint(list)
}

func (m *actualModel) read(o op, p pairModel, exists bool) string {
	var lines []string
	switch o.kind {
	case "state":
		state := AttachStateDetached
		if exists {
			state = AttachStateUncertain
		}
		if p.confirmed {
			state = AttachStateAttached
		}
		return fmt.Sprint(state)
	case "exists":
		return fmt.Sprint(exists)
	case "report":
		for node, needed := range m.needed {
			if needed {
				lines = append(lines, node+": "+m.reportLine(node))
			}
		}
		if m.mode == Modern {
			clear(m.needed)
		}
	case "reportOf":
		if !m.needed[o.node] {
			return "false[]"
		}
		m.needed[o.node] = false
		return "true" + m.reportLine(o.node)
	default:
		for k, p := range m.pairs {
			switch {
			case o.kind == "all", o.kind == "on" && k.node == o.node:
				lines = append(lines, pairText(k.volume, k.node, p.dev, p.spec, m.isMounted(k), p.since))
			case o.kind == "perNode" && p.confirmed:
				lines = append(lines, k.node+" "+k.volume)
			case o.kind == "nodes" && p.confirmed && k.volume == o.volume:
				lines = append(lines, k.node)
			}
		}
	}
	return sorted(lines)
}
