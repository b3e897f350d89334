package csiclient

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"
)

func TestRedactorKnowsTheForms(t *testing.T) {
	pem := "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----\n"
	req := &csi.ControllerPublishVolumeRequest{
		VolumeId: "vol-1",
		Secrets: map[string]string{
			"plain": "s3cr3t-canary", "longer": "s3cr3t-canary-more", "odd": "a\"b\\c\nd", "url": "p/w&x=y z",
			"key": pem, "file": "from-a-file\n", "tiny": "ab",
		},
		VolumeContext: map[string]string{
			"csi.storage.k8s.io/serviceAccount.tokens": `{"aud":{"token":"jwt-canary"}}`,
			"pool": "fast",
		},
	}
	r := newRedactor(req)
	for _, leak := range []string{
		"s3cr3t-canary", "s3cr3t-canary-more", "a\"b\\c\nd", `a\"b\\c\nd`, "p/w&x=y z", "p%2Fw%26x%3Dy+z", "p%2Fw&x=y%20z",
		"MIIEvQIBADANBgkq", "from-a-file", base64.StdEncoding.EncodeToString([]byte("s3cr3t-canary")),
		`{"aud":{"token":"jwt-canary"}}`,
	} {
		got := r.clean("login with <" + leak + "> failed")
		if strings.Contains(got, leak) {
			t.Errorf("%q survived in %q", leak, got)
		}
	}
	if got := r.clean("s3cr3t-canary-more"); got != stripped {
		t.Errorf("The longer of two secrets became %q, want %q", got, stripped)
	}
	const harmless = "volume vol-1 in pool fast about ab"
	if got := r.clean(harmless); got != harmless {
		t.Errorf("clean(%q) = %q, want it unchanged", harmless, got)
	}
}

func TestRedactorWithoutSecrets(t *testing.T) {
	for _, req := range []any{nil, "no message", (*csi.ProbeRequest)(nil), &csi.ProbeRequest{}} {
		if got := newRedactor(req).clean("text"); got != "text" {
			t.Errorf("clean for %T = %q, want it unchanged", req, got)
		}
	}
}

// TestErrorNeverHoldsASecret: wherever in a text of whatever length the driver
// quotes a secret, cutting included.
func TestErrorNeverHoldsASecret(t *testing.T) {
	c := newClient(t, Config{Address: "/s"})
	rapid.Check(t, func(t *rapid.T) {
		secret := rapid.StringMatching(`[A-Z0-9"\\/+=]{6,40}`).Draw(t, "secret")
		format := rapid.SampledFrom([]string{"%s", "%q", "%+q"}).Draw(t, "format")
		before := strings.Repeat("x", rapid.IntRange(0, 1100).Draw(t, "before"))
		after := strings.Repeat("é", rapid.IntRange(0, 6000).Draw(t, "after"))
		req := &csi.ControllerUnpublishVolumeRequest{Secrets: map[string]string{"k": secret}}
		quoted := fmt.Sprintf(format, secret)
		e := c.callError(csi.Controller_ControllerUnpublishVolume_FullMethodName, req,
			status.Error(codes.Internal, before+quoted+after), true)
		for _, leak := range []string{secret, strings.Trim(quoted, `"`)} {
			if len(leak) >= 6 && strings.Contains(e.Error(), leak) {
				t.Fatalf("%q survived in %q", leak, e.Error())
			}
		}
		if len(e.Error()) > maxMessage {
			t.Fatalf("The error has %d bytes, want at most %d", len(e.Error()), maxMessage)
		}
	})
}

func TestRenderMasks(t *testing.T) {
	for name, msg := range map[string]any{
		"secrets":         &csi.ControllerPublishVolumeRequest{Secrets: map[string]string{"k": "CANARY"}},
		"service account": &csi.ControllerPublishVolumeRequest{VolumeContext: map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": "CANARY"}},
		"publish context": &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"session": "CANARY"}},
		"nested": &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{
			nil, {Volume: &csi.Volume{VolumeContext: map[string]string{"chapPassword": "CANARY"}}},
		}},
	} {
		got := render(msg)
		if strings.Contains(got, "CANARY") || !strings.Contains(got, stripped) {
			t.Errorf("%s: render = %s, want the canary stripped", name, got)
		}
	}
	msg := &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"a": "b"}}
	render(msg)
	if msg.PublishContext["a"] != "b" {
		t.Error("render changed the message itself")
	}
	big := &csi.GetPluginInfoResponse{Name: strings.Repeat("x", maxLogged+1)}
	if got := render(big); len(got) > 100 {
		t.Errorf("render of a large message has %d bytes, want its size only", len(got))
	}
}
