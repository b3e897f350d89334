package cache

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

type volumeModel struct {
	spec  string
	multi bool
	pods  string // sorted, with a space after each
}

// desiredModel is the desired state of the world: its nodes, and their volumes.
type desiredModel struct {
	nodes   map[string]bool
	volumes map[pairKey]volumeModel
}

func newDesiredModel() *desiredModel {
	return &desiredModel{map[string]bool{}, map[pairKey]volumeModel{}}
}

func (m *desiredModel) clone() model {
	return &desiredModel{maps.Clone(m.nodes), maps.Clone(m.volumes)}
}

func (m *desiredModel) text() string { return fmt.Sprint(m.nodes, m.volumes) }

func (m *desiredModel) apply(o op) string {
	k := pairKey{o.volume, o.node}
	v, exists := m.volumes[k]
	pods := strings.Fields(v.pods)
	put := func() {
		slices.Sort(pods)
		if v.pods = strings.Join(pods, " "); len(pods) == 0 {
			delete(m.volumes, k)
		} else {
			m.volumes[k] = v
		}
	}
	switch o.kind {
	case "addNode":
		m.nodes[o.node] = true
	case "deleteNode":
		for k := range m.volumes {
			if k.node == o.node {
				return "error"
			}
		}
		delete(m.nodes, o.node)
	case "addPod":
		if !m.nodes[o.node] {
			return "error"
		}
		if !exists {
			v.spec = "of " + o.dev
		}
		if !slices.Contains(pods, o.pod) {
			pods = append(pods, o.pod)
		}
		put()
	case "deletePod":
		pods = slices.DeleteFunc(pods, func(p string) bool { return p == o.pod })
		put()
	case "setMulti":
		v.multi = true
		put()
	case "nodeExists":
		return fmt.Sprint(m.nodes[o.node])
	case "exists":
		return fmt.Sprint(exists)
	case "multi":
		return fmt.Sprint(v.multi)
	default:
		return m.read(o)
	}
	return "ok"
}

func (m *desiredModel) read(o op) string {
	var lines []string
	for k, v := range m.volumes {
		switch {
		case o.kind == "toAttach":
			lines = append(lines, fmt.Sprintf("%s on %s spec=%s: %s", k.volume, k.node, v.spec, v.pods))
		case o.kind == "pods":
			lines = append(lines, strings.Fields(v.pods)...)
		case o.kind == "podsOn" && k.volume == o.volume && slices.Contains(o.list, k.node):
			lines = append(lines, strings.Fields(v.pods)...)
		}
	}
	if o.kind == "podsOn" {
		slices.Sort(lines)
		return strings.Join(lines, " ")
	}
	slices.Sort(lines)
	return sorted(slices.Compact(lines))
}
