package fault

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const method = "ControllerUnpublishVolume"

// call makes a call through the registry and says whether it took effect.
func call(ctx context.Context, r *Registry, volume, node string) (effect bool, err error) {
	_, err = r.Intercept(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: volume, NodeId: node},
		&grpc.UnaryServerInfo{FullMethod: "/csi.v1.Controller/" + method},
		func(ctx context.Context, _ any) (any, error) {
			if err := ctx.Err(); err != nil {
				return nil, status.FromContextError(err).Err()
			}
			effect = true
			return &csi.ControllerUnpublishVolumeResponse{}, nil
		})
	return effect, err
}

func registry() *Registry { return NewRegistry([]string{method, "Probe"}, "", clock.RealClock{}) }

func inject(t *testing.T, r *Registry, f Fault) string {
	t.Helper()
	f.Method = method
	id, err := r.Inject(f)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestValidate(t *testing.T) {
	for want, f := range map[string]Fault{
		"method":        {Code: codes.Internal},
		"none of":       {Method: "NodeStageVolume", Code: codes.Internal},
		"gRPC code":     {Method: method, Code: 17},
		"delay":         {Method: method, Delay: -1},
		"times":         {Method: method, Code: codes.Internal, Times: -1},
		"nothing would": {Method: method, Effect: true},
	} {
		if _, err := registry().Inject(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", f, err, want)
		}
	}
}

func TestMatching(t *testing.T) {
	for name, test := range map[string]struct {
		fault Fault
		hit   bool
	}{
		"any":          {Fault{}, true},
		"volume":       {Fault{Volume: "v"}, true},
		"other volume": {Fault{Volume: "w"}, false},
		"node":         {Fault{Volume: "v", Node: "n"}, true},
		"other node":   {Fault{Node: "m"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := registry()
			test.fault.Code = codes.Aborted
			inject(t, r, test.fault)
			effect, err := call(t.Context(), r, "v", "n")
			if (status.Code(err) == codes.Aborted) != test.hit || effect == test.hit {
				t.Errorf("effect %v, %v, want hit %v", effect, err, test.hit)
			}
		})
	}
}

// TestMatchingWhatHasNoVolumeYet: a volume that is to be made is known by its
// name, and by the ID that it will have; snapshots are too.
func TestMatchingWhatHasNoVolumeYet(t *testing.T) {
	for name, test := range map[string]struct {
		request any
		fits    []string
	}{
		"CreateVolume":   {&csi.CreateVolumeRequest{Name: "pvc-1"}, []string{"pvc-1", "vol-pvc-1"}},
		"DeleteVolume":   {&csi.DeleteVolumeRequest{VolumeId: "vol-pvc-1"}, []string{"vol-pvc-1"}},
		"CreateSnapshot": {&csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "vol-pvc-1"}, []string{"s", "snap-s", "vol-pvc-1"}},
		"DeleteSnapshot": {&csi.DeleteSnapshotRequest{SnapshotId: "snap-s"}, []string{"snap-s"}},
	} {
		for _, volume := range []string{"pvc-1", "vol-pvc-1", "s", "snap-s", "pvc-2", "vol-pvc-2"} {
			r := NewRegistry([]string{name}, "", clock.RealClock{})
			if _, err := r.Inject(Fault{Method: name, Volume: volume, Code: codes.Aborted}); err != nil {
				t.Fatal(err)
			}
			_, err := r.Intercept(t.Context(), test.request, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Controller/" + name},
				func(context.Context, any) (any, error) { return nil, nil })
			if got, want := status.Code(err) == codes.Aborted, slices.Contains(test.fits, volume); got != want {
				t.Errorf("%s of %v with a fault of %s: %v, want %v", name, test.request, volume, got, want)
			}
		}
	}
}

// TestOldestFirst: faults are used up one after the other.
func TestOldestFirst(t *testing.T) {
	r := registry()
	inject(t, r, Fault{Code: codes.Aborted, Times: 1})
	inject(t, r, Fault{Code: codes.Internal, Message: "second", Times: 2, Effect: true})
	var got []string
	for range 4 {
		_, err := call(t.Context(), r, "v", "n")
		got = append(got, status.Code(err).String())
	}
	if want := "Aborted Internal Internal OK"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if all := r.Faults(); len(all) != 2 || all[0].Hits != 1 || all[1].Hits != 2 {
		t.Errorf("faults: %+v", all)
	}
}

func TestTiming(t *testing.T) {
	const minute = Duration(time.Minute)
	for name, test := range map[string]struct {
		fault  Fault
		effect bool
		code   codes.Code
		took   time.Duration
	}{
		"delay":                 {Fault{Delay: minute}, true, codes.OK, time.Minute},
		"delay and code":        {Fault{Delay: minute, Code: codes.Aborted}, false, codes.Aborted, time.Minute},
		"caller gives up":       {Fault{Delay: 10 * minute}, false, codes.DeadlineExceeded, 5 * time.Minute},
		"hang":                  {Fault{Hang: true}, false, codes.DeadlineExceeded, 5 * time.Minute},
		"answer lost":           {Fault{Hang: true, Effect: true}, true, codes.DeadlineExceeded, 5 * time.Minute},
		"lands late":            {Fault{Delay: 10 * minute, Detach: true}, true, codes.OK, 10 * time.Minute},
		"effect, then an error": {Fault{Delay: minute, Effect: true, Code: codes.Aborted}, true, codes.Aborted, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := registry()
				inject(t, r, test.fault)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				start := time.Now()
				effect, err := call(ctx, r, "v", "n")
				if effect != test.effect || status.Code(err) != test.code || time.Since(start) != test.took {
					t.Errorf("effect %v, %v after %v", effect, err, time.Since(start))
				}
			})
		})
	}
}

// TestLettingGo: Release, Clear and Close all end a hang; the first two let the
// call happen.
func TestLettingGo(t *testing.T) {
	for name, test := range map[string]struct {
		do     func(r *Registry, id string) error
		effect bool
	}{
		"release": {func(r *Registry, id string) error { return r.Release(id) }, true},
		"clear":   {func(r *Registry, id string) error { return r.Clear(id) }, true},
		"all":     {func(r *Registry, _ string) error { return r.Clear("") }, true},
		"close":   {func(r *Registry, _ string) error { r.Close(); return nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := registry()
				id := inject(t, r, Fault{Hang: true, Detach: true})
				ended := make(chan error, 1)
				go func() {
					effect, err := call(t.Context(), r, "v", "n")
					if effect != test.effect {
						err = errors.Join(err, errors.New("wrong effect"))
					}
					ended <- err
				}()
				if now, err := r.AwaitHits(t.Context(), id, 1); err != nil || now.Hits != 1 {
					t.Errorf("waiting for the call: %+v, %v", now, err)
				}
				synctest.Wait()
				if now := r.Faults()[0]; now.Waiting != 1 {
					t.Errorf("the call does not hang: %+v", now)
				}
				if err := test.do(r, id); err != nil {
					t.Error(err)
				}
				if err := <-ended; (err == nil) != test.effect {
					t.Error(err)
				}
			})
		})
	}
}

func TestUnknownFaults(t *testing.T) {
	r := registry()
	_, awaited := r.AwaitHits(t.Context(), "9", 1)
	for _, err := range []error{awaited, r.Release("9"), r.Clear("9")} {
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("%v, want ErrUnknown", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.AwaitHits(ctx, inject(t, r, Fault{Hang: true}), 1); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting without end: %v", err)
	}
}

func TestDuration(t *testing.T) {
	encoded, err := json.Marshal(Fault{Method: "Probe", Delay: Duration(1500 * time.Millisecond)})
	if err != nil || !strings.Contains(string(encoded), `"delay":"1.5s"`) {
		t.Errorf("%s, %v", encoded, err)
	}
	var f Fault
	if err := json.Unmarshal(encoded, &f); err != nil || f.Delay != Duration(1500*time.Millisecond) {
		t.Errorf("%+v, %v", f, err)
	}
	for _, bad := range []string{`{"delay":5}`, `{"delay":"soon"}`} {
		if err := json.Unmarshal([]byte(bad), &f); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}
