package differential

import (
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
)

// op is one operation on both caches.
type op struct {
	Kind         string
	Volume, Node int
	// Path is the device path, Attached whether an added pair is confirmed.
	Path     string
	Attached bool
	// Named adds a pair by the volume's name and without a spec.
	Named bool
	// Mounted are the volumes that the node has in use.
	Mounted []int
	// Pause is how much time passes.
	Pause time.Duration
}

// actualOps are the operations of ActualStateOfWorld by name.
var actualOps = map[string]func(a *actual, o op) error{
	"add": func(a *actual, o op) error {
		s := specsOf(o.Volume)
		name := nameOf(o.Volume)
		a.note(o)
		switch {
		case o.Named:
			gotName, got := a.ours.AddVolumeNodeAs(name, nil, nodeOf(o.Node), o.Path, o.Attached)
			wantName, want := a.theirs.AddVolumeNode(a.log, name, nil, theirNode(o.Node), o.Path, o.Attached)
			return errors.Join(sameError(got, want), same(gotName, wantName))
		case o.Attached:
			gotName, got := a.ours.AddVolumeNode(s.ours, nodeOf(o.Node), o.Path)
			wantName, want := a.theirs.AddVolumeNode(a.log, "", s.theirs, theirNode(o.Node), o.Path, true)
			return errors.Join(sameError(got, want), same(gotName, wantName))
		}
		gotName, got := a.ours.AddVolumeNodeAs("", s.ours, nodeOf(o.Node), o.Path, false)
		wantName, want := a.theirs.AddVolumeNode(a.log, "", s.theirs, theirNode(o.Node), o.Path, false)
		return errors.Join(sameError(got, want), same(gotName, wantName))
	},
	"add nothing": func(a *actual, o op) error {
		_, got := a.ours.AddVolumeNodeAs("", nil, nodeOf(o.Node), o.Path, o.Attached)
		_, want := a.theirs.AddVolumeNode(a.log, "", nil, theirNode(o.Node), o.Path, o.Attached)
		return sameError(got, want)
	},
	"attached": func(a *actual, o op) error {
		s := specsOf(o.Volume)
		a.note(o)
		return sameError(a.ours.MarkVolumeAsAttached(nameOf(o.Volume), s.ours, nodeOf(o.Node), o.Path),
			a.theirs.MarkVolumeAsAttached(a.log, nameOf(o.Volume), s.theirs, theirNode(o.Node), o.Path))
	},
	"uncertain": func(a *actual, o op) error {
		s := specsOf(o.Volume)
		o.Path = ""
		a.note(o)
		return sameError(a.ours.MarkVolumeAsUncertain(nameOf(o.Volume), s.ours, nodeOf(o.Node)),
			a.theirs.MarkVolumeAsUncertain(a.log, nameOf(o.Volume), s.theirs, theirNode(o.Node)))
	},
	"detached": func(a *actual, o op) error {
		a.forget(o)
		a.ours.MarkVolumeAsDetached(nameOf(o.Volume), nodeOf(o.Node))
		a.theirs.MarkVolumeAsDetached(nameOf(o.Volume), theirNode(o.Node))
		return nil
	},
	"delete": func(a *actual, o op) error {
		a.forget(o)
		a.ours.DeleteVolumeNode(nameOf(o.Volume), nodeOf(o.Node))
		a.theirs.DeleteVolumeNode(nameOf(o.Volume), theirNode(o.Node))
		return nil
	},
	"unreport": func(a *actual, o op) error {
		return sameError(a.ours.RemoveVolumeFromReportAsAttached(nameOf(o.Volume), nodeOf(o.Node)),
			a.theirs.RemoveVolumeFromReportAsAttached(nameOf(o.Volume), theirNode(o.Node)))
	},
	"report again": func(a *actual, o op) error {
		a.ours.AddVolumeToReportAsAttached(nameOf(o.Volume), nodeOf(o.Node))
		a.theirs.AddVolumeToReportAsAttached(a.log, nameOf(o.Volume), theirNode(o.Node))
		return nil
	},
	"mounted": func(a *actual, o op) error {
		names := make([]v1.UniqueVolumeName, 0, len(o.Mounted))
		told := map[v1.UniqueVolumeName]bool{}
		for _, i := range o.Mounted {
			names = append(names, nameOf(i))
			told[nameOf(i)] = true
		}
		delete(a.assumed, nodeOf(o.Node))
		a.told[nodeOf(o.Node)] = told
		a.ours.SetVolumesMountedByNode(names, nodeOf(o.Node))
		a.theirs.SetVolumesMountedByNode(a.log, names, theirNode(o.Node))
		return nil
	},
	"request detach": func(a *actual, o op) error {
		elapsed, got := a.ours.SetDetachRequestTime(nameOf(o.Volume), nodeOf(o.Node))
		wantElapsed, want := a.theirs.SetDetachRequestTime(a.log, nameOf(o.Volume), theirNode(o.Node))
		return errors.Join(sameError(got, want), same(elapsed, wantElapsed))
	},
	"end detach": func(a *actual, o op) error {
		a.ours.ResetDetachRequestTime(nameOf(o.Volume), nodeOf(o.Node))
		a.theirs.ResetDetachRequestTime(a.log, nameOf(o.Volume), theirNode(o.Node))
		return nil
	},
	"update needed": func(a *actual, o op) error {
		// Theirs logs the error that ours returns.
		_ = a.ours.SetNodeStatusUpdateNeeded(nodeOf(o.Node))
		a.theirs.SetNodeStatusUpdateNeeded(a.log, theirNode(o.Node))
		return nil
	},
	"report": func(a *actual, _ op) error {
		got := map[string][]v1.AttachedVolume{}
		for node, list := range a.ours.GetVolumesToReportAttached() {
			got[node] = list
		}
		want := map[string][]v1.AttachedVolume{}
		for node, list := range a.theirs.GetVolumesToReportAttached(a.log) {
			want[string(node)] = a.reported(string(node), list)
		}
		return same(got, want)
	},
	"report node": func(a *actual, o op) error {
		needed, got := a.ours.GetVolumesToReportAttachedForNode(nodeOf(o.Node))
		wantNeeded, want := a.theirs.GetVolumesToReportAttachedForNode(a.log, theirNode(o.Node))
		return errors.Join(same(needed, wantNeeded), same(got, a.reported(nodeOf(o.Node), want)))
	},
	"wait": func(_ *actual, o op) error {
		time.Sleep(o.Pause)
		return nil
	},
}
