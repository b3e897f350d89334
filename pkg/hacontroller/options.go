package hacontroller

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Defaults of the options.
const (
	DefaultReconcileInterval = 10 * time.Second
	DefaultEvictDeadline     = 60 * time.Second
	DefaultEvictGraceMax     = 30 * time.Second
	DefaultFenceTimeout      = 60 * time.Second
	DefaultRequestTimeout    = 10 * time.Second
	DefaultWorkers           = 8
)

// Option changes how a controller works; see the functions that return one.
type Option func(hac *haController)

// LeaderElector tells whether this process leads now.
type LeaderElector interface{ IsLeader() bool }

// Target is one VolumeAttachment of a closure and the pods that go with it.
type Target = volume.Target

// Targeter says what has to move when a PersistentVolume is said to fail.
type Targeter interface {
	// Targets is the closure of pv as it is now, one Target per
	// VolumeAttachment. ok=false: do not move it, or not any more. It is asked
	// again in every pass until a record is written.
	Targets(pv string) (targets []Target, ok bool)
}

// BatchTargeter is a Targeter that answers for many names at once, for the price
// of one where each answer takes a look at everything that fails.
type BatchTargeter interface {
	Targeter
	// TargetsOf is Targets for each of pvs. What is not to be moved is missing
	// from the answer.
	TargetsOf(pvs []string) map[string][]Target
}

// Fencer revokes a node's access to volumes.
type Fencer interface {
	// Fence revokes the access that va grants. The record is on va when it is
	// called. nil: acknowledged by the storage, the node can not write.
	Fence(ctx context.Context, va *storagev1.VolumeAttachment) error
	// Unfence gives a clean node its access back. Only fences that cut off the
	// whole node have something to do here.
	Unfence(ctx context.Context, node string) error
}

// WithAttacherName considers only VolumeAttachments of this attacher, which is
// the driver's name. Required with WithTargets, since the hold is named by it.
func WithAttacherName(name string) Option {
	return func(hac *haController) { hac.driver = name }
}

// WithEventRecorder sets where events about pods, VolumeAttachments and nodes
// go. Without it there are none.
func WithEventRecorder(ev record.EventRecorder) Option {
	return func(hac *haController) { hac.recorder = ev }
}

// WithLeaderElector makes every write depend on leading at that moment. A
// follower keeps what it was told, and writes nothing.
func WithLeaderElector(el LeaderElector) Option {
	return func(hac *haController) { hac.elector = el }
}

// WithPodSelector considers only the pods that the label and field selectors of
// opts select. A volume that another pod uses on the same node is refused: it
// must not be detached under that pod.
func WithPodSelector(opts metav1.ListOptions) Option {
	return func(hac *haController) { hac.podListOptions = opts }
}

// WithReconcileInterval sets the longest time between two looks at the same
// unfinished work. 10 s by default.
func WithReconcileInterval(d time.Duration) Option {
	return func(hac *haController) { hac.interval = d }
}

// WithTargets makes a failing name a hint and t the judge; see the package. A
// BatchTargeter is asked once for all names at hand.
func WithTargets(t Targeter) Option {
	return func(hac *haController) { hac.targeter = t }
}

// WithFencer sets the fence. Without one a failed node is refused, and pods on
// a Ready node are only asked.
func WithFencer(f Fencer) Option {
	return func(hac *haController) { hac.fencer = f }
}

// WithInformerFactory uses the informers of f, which somebody else starts.
// Without it the controller runs its own.
func WithInformerFactory(f informers.SharedInformerFactory) Option {
	return func(hac *haController) { hac.factory, hac.ownFactory = f, false }
}

// WithStrictScope never touches mirror pods, pods of a DaemonSet and, unless
// they are annotated ha-sidecar.io/allow-ownerless, pods without a controller.
// One such pod vetoes its whole closure.
func WithStrictScope() Option {
	return func(hac *haController) { hac.strict = true }
}

// WithEvictDeadline sets how long evicted pods of a Ready node have to go
// before the next step. 60 s by default.
func WithEvictDeadline(d time.Duration) Option {
	return func(hac *haController) { hac.evictDeadline = d }
}

// WithEvictGraceMax caps the grace period of an eviction, which is never below
// 1 s. 30 s by default.
func WithEvictGraceMax(d time.Duration) Option {
	return func(hac *haController) { hac.evictGraceMax = d }
}

// WithOverridePDB fences pods of a Ready node although a disruption budget
// refused their eviction until the deadline.
func WithOverridePDB() Option {
	return func(hac *haController) { hac.overridePDB = true }
}

// WithRecovery tells whether a volume works again as seen from a node, so that
// the node's hold may come off once it is clean. Without it a clean, Ready node
// counts as recovered.
func WithRecovery(recovered func(handle volume.Handle, node string) bool) Option {
	return func(hac *haController) { hac.recovered = recovered }
}

// WithFenceTimeout bounds one call of Fencer.Fence. 60 s by default.
func WithFenceTimeout(d time.Duration) Option {
	return func(hac *haController) { hac.fenceTimeout = d }
}

// WithRegistry registers the metrics of the controller on r.
func WithRegistry(r metrics.KubeRegistry) Option {
	return func(hac *haController) { hac.registry = r }
}

// WithClock replaces the clock that deadlines and backoffs are measured by.
func WithClock(c clock.WithTicker) Option {
	return func(hac *haController) { hac.clock = c }
}

// WithWorkers sets how many nodes are worked on at a time. 8 by default.
func WithWorkers(n int) Option {
	return func(hac *haController) { hac.workers = n }
}

// WithTracer records a span for each failover, with a milestone as an event
// each.
func WithTracer(t trace.Tracer) Option {
	return func(hac *haController) { hac.tracer = t }
}

// WithObserver is called with every step of every walk, once each, from the
// goroutine that took it. It must not block.
func WithObserver(observe func(StepEvent)) Option {
	return func(hac *haController) { hac.observer = observe }
}
