// Package events delivers events: best effort, aggregated, and never in the
// way of the work that they tell of.
package events

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Limits per object: an object that keeps changing its mind is heard of, and
// does not drown the API server. Each failover says four things of a pod.
const (
	burstPerObject = 25
	ratePerSecond  = 1.0 / 60
)

// Recorder is a record.EventRecorder with an end.
type Recorder struct {
	record.EventRecorder
	broadcaster record.EventBroadcaster
}

// New returns a recorder that writes through client, a client of its own lane,
// as component. Call Shutdown at the end.
func New(ctx context.Context, client kubernetes.Interface, component string) *Recorder {
	b := record.NewBroadcaster(
		record.WithContext(ctx),
		record.WithCorrelatorOptions(record.CorrelatorOptions{BurstSize: burstPerObject, QPS: ratePerSecond}))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &Recorder{EventRecorder: b.NewRecorder(scheme.Scheme, v1.EventSource{Component: component}), broadcaster: b}
}

// Shutdown drops what is not delivered yet.
func (r *Recorder) Shutdown() { r.broadcaster.Shutdown() }
