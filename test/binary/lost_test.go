package binary

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// write is a request of a replica, told apart by its token, that is no read.
type write struct {
	at         time.Time
	credential string
	verb, uri  string
	code       int
}

// audited reads the writes of all replicas from the audit log.
func audited(t *testing.T) (writes []write) {
	t.Helper()
	f, err := os.Open(filepath.Join(common.dir, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var e struct {
			Stage     string    `json:"stage"`
			Verb      string    `json:"verb"`
			URI       string    `json:"requestURI"`
			UserAgent string    `json:"userAgent"`
			At        time.Time `json:"requestReceivedTimestamp"`
			User      struct {
				Extra map[string][]string `json:"extra"`
			} `json:"user"`
			Status struct {
				Code int `json:"code"`
			} `json:"responseStatus"`
		}
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			continue // the server is still writing this line
		}
		credential := e.User.Extra["authentication.kubernetes.io/credential-id"]
		if e.Stage != "ResponseComplete" || !strings.Contains(e.UserAgent, "ha-sidecar/") || len(credential) == 0 {
			continue
		}
		switch e.Verb {
		case "get", "list", "watch":
		default:
			writes = append(writes, write{at: e.At, credential: credential[0], verb: e.Verb, uri: e.URI, code: e.Status.Code})
		}
	}
	if err := scanner.Err(); err != nil {
		t.Fatal(err)
	}
	return writes
}

// W5: a leader that is stopped for longer than its lease, and goes on while
// another one leads, ends, and writes nothing more: not the attachment that waits
// for it, and not the lease, which is another's.
func TestLostLease(t *testing.T) {
	r, ctx := world(t), bounded(t)
	old, other := pair(ctx, t, r)
	_, err := r.NewVolume(ctx, "lost-lease")
	if err != nil {
		t.Fatal(err)
	}
	identity := holders(ctx, t, r)
	if err := old.Pause(); err != nil {
		t.Fatal(err)
	}
	paused := time.Now()
	r.Sidecars = []*rig.Sidecar{other} // the paused one does not answer
	defer func() { r.Sidecars = append(r.Sidecars, old) }()
	await(ctx, t, r, "the other replica leads", func() bool { return r.Leader() == other })
	if took := time.Since(paused); took < renewDeadline {
		t.Errorf("the other replica leads after %v, before the paused one has stopped believing that it does", took)
	}
	attach(ctx, t, r, "lost-lease")
	taken := holders(ctx, t, r)

	if err := old.Continue(); err != nil {
		t.Fatal(err)
	}
	if code := ended(ctx, t, old.Process); code != 1 {
		t.Errorf("the old leader ended with %d, want 1", code)
	}
	if tail := old.Tail(); !strings.Contains(tail, "ha-sidecar: ") || !strings.Contains(tail, "leadership lost") || strings.Contains(tail, "goroutine ") {
		t.Errorf("the old leader's last words: %s", tail)
	}
	await(ctx, t, r, "the volume is attached", func() bool {
		va := r.Attachment("lost-lease", "node-1")
		return va != nil && va.Status.Attached
	})
	for name, holder := range holders(ctx, t, r) {
		if holder != taken[name] || holder == identity[name] {
			t.Errorf("lease %s is held by %q, was taken by %q", name, holder, taken[name])
		}
	}
	checkWrites(t, paused)
}

// attach asks for the volume on node-1.
func attach(ctx context.Context, t *testing.T, r *rig.Rig, pv string) {
	t.Helper()
	_, err := r.Client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va-" + pv},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: rig.Driver, NodeName: "node-1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// checkWrites finds the old leader by the last renewal before it was paused.
func checkWrites(t *testing.T, paused time.Time) {
	t.Helper()
	writes := audited(t)
	var old string
	for _, w := range writes {
		if w.at.Before(paused) && w.code == 200 && strings.Contains(w.uri, "/leases/ha-sidecar-") {
			old = w.credential
		}
	}
	if old == "" {
		t.Fatal("the audit log has no renewal before the pause")
	}
	others := 0
	for _, w := range writes {
		switch {
		case !w.at.After(paused.Add(renewDeadline)):
		case w.credential == old:
			t.Errorf("the old leader sent %s %s, %v after its deadline", w.verb, w.uri, w.at.Sub(paused.Add(renewDeadline)))
		case strings.Contains(w.uri, "volumeattachments"):
			others++
		}
	}
	if others == 0 {
		t.Error("the audit log has no write of the new leader: the test shows nothing")
	}
}
