package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func claimOf(name, provisioner, volume string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace, UID: types.UID("uid-" + name),
			Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": provisioner},
		},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: volume},
	}
}

// TestFloor plays the part of kube-controller-manager.
func TestFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(claimOf("mine", driverName, ""), claimOf("other", "other", ""), claimOf("bound", driverName, "pv"))
		f, err := startFloorWith(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		volumes := client.CoreV1().PersistentVolumes()
		want := func(when string, names ...string) {
			t.Helper()
			synctest.Wait()
			list, err := volumes.List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != len(names) {
				t.Fatalf("%s: %v, %v, want %v", when, list.Items, err, names)
			}
			for i, name := range names {
				if list.Items[i].Name != name {
					t.Errorf("%s: %s, want %s", when, list.Items[i].Name, name)
				}
			}
		}
		want("at the start", "pvc-uid-mine")
		v, err := volumes.Get(t.Context(), "pvc-uid-mine", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := volumes.Delete(t.Context(), v.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want("a volume that was deleted under its claim", "pvc-uid-mine")
		if err := client.CoreV1().PersistentVolumeClaims(namespace).Delete(t.Context(), "mine", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want("before it is released", "pvc-uid-mine")
		v.Status.Phase, v.UID = v1.VolumeReleased, "released"
		if _, err := volumes.Update(t.Context(), v, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		want("released")
		if err := f.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestFloorFails: what the floor could not do, its figures must not hide.
func TestFloorFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, refused := fake.NewClientset(), errors.New("refused")
		client.PrependReactor("create", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refused })
		f, err := startFloorWith(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().PersistentVolumeClaims(namespace).Create(t.Context(), claimOf("mine", driverName, ""), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := f.stop(); !errors.Is(err, refused) {
			t.Errorf("%v, want %v", err, refused)
		}
	})
}

func TestVolumeFor(t *testing.T) {
	v := volumeFor(claimOf("a", driverName, ""), time.UnixMilli(5))
	if v.Name != "pvc-uid-a" || v.Spec.ClaimRef.UID != "uid-a" || v.Spec.CSI.VolumeHandle != "vol-pvc-uid-a" ||
		v.Spec.CSI.VolumeAttributes["storage.kubernetes.io/csiProvisionerIdentity"] != "5-1234-"+driverName {
		t.Errorf("%+v", v)
	}
}

// TestTrackVolumes: a volume goes by the name of its claim.
func TestTrackVolumes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := fake.NewClientset()
	volumes, err := trackVolumes(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	defer volumes.Stop()
	claims, err := trackClaims(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	defer claims.Stop()
	c := claimOf("a", driverName, "")
	c.Status.Phase = v1.ClaimBound
	if _, err := client.CoreV1().PersistentVolumes().Create(ctx, volumeFor(c, time.Now()), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := volumes.Await(ctx, []string{"a"}, made); err != nil {
		t.Error(err)
	}
	if _, err := claims.Await(ctx, []string{"a"}, bound); err != nil {
		t.Error(err)
	}
}
