package audit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// line is a line of an audit log; what is "VERB resource subresource".
func line(agent, what string, code, second int) string {
	f := strings.Fields(what)
	return fmt.Sprintf(`{"stage":"ResponseComplete","verb":%q,"userAgent":%q,"objectRef":{"resource":%q,"subresource":%q},`+
		`"responseStatus":{"code":%d},"requestReceivedTimestamp":%q}`,
		f[0], agent, f[1], strings.TrimPrefix(f[2], "-"), code, start.Add(time.Duration(second)*time.Second).Format("2006-01-02T15:04:05.000000Z"))
}

func TestCount(t *testing.T) {
	const mine, peer = "ha-sidecar/v1 (linux)", "csi-attacher/v4 (linux)"
	log := strings.Join([]string{
		line(mine, "patch volumeattachments -", 200, 0), // before the burst
		line(mine, "patch volumeattachments -", 200, 10),
		line(mine, "patch volumeattachments status", 200, 11),
		line(mine, "patch volumeattachments status", 409, 12),
		line(mine, "create events -", 201, 12),
		line(mine, "get secrets -", 404, 13),
		line(mine, "list volumeattachments -", 200, 13),
		line(mine, "watch volumeattachments -", 200, 13),
		line(mine, "update leases -", 200, 14),
		line(peer, "patch persistentvolumes -", 200, 15),
		line("kubectl/v1", "patch persistentvolumes -", 200, 15),
		`{"stage":"ResponseStarted","verb":"watch","userAgent":"ha-sidecar/v1"}`,
		line(mine, "patch volumeattachments -", 200, 30), // after it
	}, "\n")
	ours, theirs := Program("ha-sidecar"), Program("csi-attacher")
	all, err := Read(strings.NewReader(log), ours, theirs)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		by   Agent
		want Requests
	}{
		{"ha-sidecar", ours, Requests{
			Kinds: map[string]int{
				"patch volumeattachments": 1, "patch volumeattachments/status": 2, "create events": 1, "get secrets": 1, "list volumeattachments": 1,
			},
			Total: 3, Events: 1, Reads: 2, Refused: 2,
		}},
		{"csi-attacher", theirs, Requests{Kinds: map[string]int{"patch persistentvolumes": 1}, Total: 1}},
	} {
		got := Count(all, tc.by, start.Add(5*time.Second), start.Add(20*time.Second))
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: want -, got +\n%s", tc.name, diff)
		}
	}
	if _, err := Read(strings.NewReader(log[:len(log)-10]), ours, theirs); err == nil {
		t.Error("a log that was cut off is taken for whole")
	}
}
