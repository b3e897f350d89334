package hacontroller

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
)

// A change of what the seed exports does not compile.
var (
	_ func(string, kubernetes.Interface, <-chan string, ...Option) *haController = NewHAController
	_ func(*haController, context.Context) error                                 = (*haController).Run
	_ func(hac *haController)                                                    = Option(nil)
	_ func(string) Option                                                        = WithAttacherName
	_ func(record.EventRecorder) Option                                          = WithEventRecorder
	_ func(LeaderElector) Option                                                 = WithLeaderElector
	_ func(metav1.ListOptions) Option                                            = WithPodSelector
	_ func(time.Duration) Option                                                 = WithReconcileInterval
	_ interface{ IsLeader() bool }                                               = LeaderElector(nil)
)

const (
	_ = uint(len(PodDeleteEventReason) - len("ForceDeleted"))
	_ = uint(len(VADeleteEventReason) - len("ForceDetached"))
)

// seedObjects are as bare as the seed's users make them: no UIDs, no node, no
// owner, no PersistentVolume.
func seedObjects() []any {
	pv := "fake-pv"
	return []any{
		&v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "fake-pod", Namespace: "fake"},
			Spec: v1.PodSpec{Volumes: []v1.Volume{{
				Name: "data",
				VolumeSource: v1.VolumeSource{
					PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "fake-pvc"},
				},
			}}},
		},
		&v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "fake-pvc", Namespace: "fake"},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: pv},
		},
		&storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "fake-va"},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: "fake.attacher",
				Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
			},
		},
	}
}

type follower struct{}

func (follower) IsLeader() bool { return false }

// runSeed sends the failing name to a controller that runs for a second, and
// says what is left.
func runSeed(t *testing.T, opts ...Option) (podLeft, vaLeft bool) {
	t.Helper()
	objs := seedObjects()
	client := fake.NewClientset(objs[0].(*v1.Pod), objs[1].(*v1.PersistentVolumeClaim), objs[2].(*storagev1.VolumeAttachment))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	updates := make(chan string)
	go func() {
		select {
		case updates <- "fake-pv":
		case <-ctx.Done():
		}
	}()
	err := NewHAController("test", client, updates, opts...).Run(ctx)
	if err == nil || err.Error() != "context deadline exceeded" {
		t.Fatalf("Run returned %v, want context deadline exceeded", err)
	}
	_, err = client.CoreV1().Pods("fake").Get(t.Context(), "fake-pod", metav1.GetOptions{})
	podLeft = !apierrors.IsNotFound(err)
	_, err = client.StorageV1().VolumeAttachments().Get(t.Context(), "fake-va", metav1.GetOptions{})
	return podLeft, !apierrors.IsNotFound(err)
}

func TestSeed(t *testing.T) {
	for name, tc := range map[string]struct {
		opts []Option
		left bool
	}{
		"Basic":                 {left: false},
		"WithAttacherName":      {opts: []Option{WithAttacherName("fake.attacher")}, left: false},
		"WithWrongAttacherName": {opts: []Option{WithAttacherName("other.attacher")}, left: true},
		"NoChangeIfNotLeader":   {opts: []Option{WithLeaderElector(follower{})}, left: true},
		"ShortInterval":         {opts: []Option{WithReconcileInterval(10 * time.Millisecond)}, left: false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod, va := runSeed(t, tc.opts...)
			if pod != tc.left || va != tc.left {
				t.Errorf("pod left: %v, VolumeAttachment left: %v, want %v", pod, va, tc.left)
			}
		})
	}
}

func TestRunNamesTheCause(t *testing.T) {
	closed := make(chan string)
	close(closed)
	client := fake.NewClientset()
	for name, tc := range map[string]struct {
		hac  *haController
		want string
	}{
		"closed channel": {NewHAController("t", client, closed), "channel of failing PersistentVolumes was closed"},
		"nil channel":    {NewHAController("t", client, nil), "channel of failing PersistentVolumes is required"},
		"nil client":     {NewHAController("t", nil, closed), "client is required"},
		"interval":       {NewHAController("t", client, closed, WithReconcileInterval(0)), "must be positive"},
		"label selector": {NewHAController("t", client, closed, WithPodSelector(metav1.ListOptions{LabelSelector: "a in"})), "label selector"},
		"field selector": {NewHAController("t", client, closed, WithPodSelector(metav1.ListOptions{FieldSelector: "spec.nosuch=1"})), "no selectable field"},
		"fencer alone":   {NewHAController("t", client, closed, WithFencer(&fakeFencer{})), "of no use without Targets"},
		"nameless hold":  {NewHAController("t", client, closed, WithTargets(&fakeTargets{})), "attacher's name"},
		"nil factory":    {NewHAController("t", client, closed, WithInformerFactory(nil)), "factory is nil"},
		"no workers":     {NewHAController("t", client, closed, WithWorkers(0)), "at least one"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := tc.hac.Run(ctx)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Run returned %v, want one that says %q", err, tc.want)
			}
		})
	}
}
