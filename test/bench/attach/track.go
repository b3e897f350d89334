package main

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/ha-sidecar/ha-sidecar/test/bench/track"
)

// attached is what a VolumeAttachment becomes.
const attached = "attached"

// trackAttachments times what becomes of VolumeAttachments from now on.
func trackAttachments(ctx context.Context, client kubernetes.Interface) (*track.Tracker, error) {
	attachments := client.StorageV1().VolumeAttachments()
	return track.Start(ctx, track.Kind{
		What: "VolumeAttachments",
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return attachments.List(ctx, o)
		},
		Watch: attachments.Watch,
		Name:  func(o runtime.Object) string { return o.(*storagev1.VolumeAttachment).Name },
		Marks: func(o runtime.Object) []string {
			if o.(*storagev1.VolumeAttachment).Status.Attached {
				return []string{attached}
			}
			return nil
		},
	})
}
