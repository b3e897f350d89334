package main

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// complete finds when the observer saw the two ends of each move.
func complete(changes []rig.Change, sightings []sighting, failed bool) error {
	pods, attachments := map[string][]time.Time{}, map[string][]time.Time{}
	for _, c := range changes {
		switch now := c.New.(type) {
		case *v1.Pod:
			if old, _ := c.Old.(*v1.Pod); abnormal(now) && !abnormal(old) {
				pods[now.Name] = append(pods[now.Name], c.At)
			}
		case *storagev1.VolumeAttachment:
			if old, _ := c.Old.(*storagev1.VolumeAttachment); now.Status.Attached && (old == nil || !old.Status.Attached) {
				attachments[now.Name] = append(attachments[now.Name], c.At)
			}
		}
	}
	for i := range sightings {
		s := &sightings[i]
		if s.attached = firstAfter(attachments[s.attachment], s.begun); s.attached.IsZero() {
			return fmt.Errorf("pod %s: nobody saw its volume attached to %s", s.pod, s.to)
		}
		if !failed {
			continue
		}
		if s.abnormal = firstAfter(pods[s.pod], s.begun); s.abnormal.IsZero() || s.abnormal.After(s.attached) {
			return fmt.Errorf("pod %s moved and nobody saw its volume fail", s.pod)
		}
	}
	return nil
}

func firstAfter(times []time.Time, from time.Time) time.Time {
	for _, t := range times {
		if !t.Before(from) {
			return t
		}
	}
	return time.Time{}
}

// abnormal reports whether the kubelet says that a volume of the pod is unwell.
func abnormal(pod *v1.Pod) bool {
	if pod == nil {
		return false
	}
	for _, h := range pod.Status.VolumeHealth {
		if len(h.HealthConditions) > 0 {
			return true
		}
	}
	return false
}
