package nodeshare

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"
)

func TestDecide(t *testing.T) {
	immediate, delayed := storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer
	class := func(mode *storagev1.VolumeBindingMode) *storagev1.StorageClass {
		return &storagev1.StorageClass{VolumeBindingMode: mode}
	}
	open := situation{node: "n1", class: class(&immediate), immediate: true, admitted: true}
	for name, c := range map[string]struct {
		change func(*situation)
		want   verdict
	}{
		"open to all":                        {func(*situation) {}, compete},
		"no mode is immediate binding":       {func(s *situation) { s.class = class(nil) }, compete},
		"waits for a pod":                    {func(s *situation) { s.class = class(&delayed) }, leave},
		"no class":                           {func(s *situation) { s.class = nil }, leave},
		"elsewhere by the class":             {func(s *situation) { s.admitted = false }, leave},
		"immediate binding is for others":    {func(s *situation) { s.immediate = false }, leave},
		"another's":                          {func(s *situation) { s.selected = "n2" }, leave},
		"ours":                               {func(s *situation) { s.selected = "n1" }, provision},
		"ours, and waited for a pod":         {func(s *situation) { s.selected, s.class = "n1", class(&delayed) }, provision},
		"ours, though the class is gone":     {func(s *situation) { s.selected, s.class = "n1", nil }, provision},
		"ours, though the class has it not":  {func(s *situation) { s.selected, s.admitted = "n1", false }, provision},
		"ours, though others share such":     {func(s *situation) { s.selected, s.immediate = "n1", false }, provision},
		"another's, though waited for a pod": {func(s *situation) { s.selected, s.class = "n2", class(&delayed) }, leave},
	} {
		s := open
		c.change(&s)
		if got := decide(s); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
