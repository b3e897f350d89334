package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// at is a time in milliseconds after the start.
func at(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }

const (
	node    = "system:node:node-1"
	sidecar = "system:serviceaccount:csi-sim:sim-ha-sidecar"
	admin   = "admin"
)

// line is a line of an audit log; what is "VERB resource subresource name".
func line(user, what string, code, received, done int) string {
	f := strings.Fields(what)
	stamp := func(ms int) string { return at(ms).Format("2006-01-02T15:04:05.000000Z") }
	return fmt.Sprintf(`{"stage":"ResponseComplete","verb":%q,"user":{"username":%q},"objectRef":{"resource":%q,"subresource":%q,"name":%q},`+
		`"responseStatus":{"code":%d},"requestReceivedTimestamp":%q,"stageTimestamp":%q}`,
		f[0], user, f[1], strings.TrimPrefix(f[2], "-"), f[3], code, stamp(received), stamp(done))
}

func logOf(t *testing.T, lines ...string) auditLog {
	t.Helper()
	log, err := readAudit(strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// failover is a log with a whole failover of db-0 and what surrounds it.
var failover = []string{
	line(sidecar, "create pods eviction db-0", 201, 10, 12),   // of an earlier failover
	line(node, "patch pods status db-0", 200, 50, 55),         // the pod runs
	line(node, "patch pods status db-0", 200, 100, 105),       // its volume fails
	line(sidecar, "create pods eviction db-0", 429, 200, 201), // refused
	line(admin, "create pods eviction db-0", 201, 202, 203),   // by somebody else
	line(sidecar, "create pods eviction db-0", 201, 210, 220),
	line(sidecar, "delete pods - db-0", 200, 230, 240),
	line(node, "patch pods status db-0", 200, 250, 255),               // it ends
	line(sidecar, "patch volumeattachments status va", 200, 300, 310), // an error at first
	line(sidecar, "patch volumeattachments status va", 200, 400, 410),
	line(sidecar, "patch volumeattachments status va", 200, 500, 510), // when it was detached again
}

func TestSample(t *testing.T) {
	seen := sighting{
		pod: "db-0", from: "node-1", to: "node-2", attachment: "va",
		begun: at(90), abnormal: at(106), attached: at(411),
	}
	signal := func(ms int) *time.Time { t := at(ms); return &t }
	for _, tc := range []struct {
		name   string
		lines  []string
		change func(*sighting)
		want   Sample
		fails  string
	}{
		{name: "a failover", lines: failover, want: Sample{Signal: signal(105), Accepted: at(220), Attached: at(410)}},
		{
			name: "the watches were told before the responses were complete", lines: failover,
			change: func(s *sighting) { s.abnormal, s.attached = at(103), at(404) },
			want:   Sample{Signal: signal(103), Accepted: at(220), Attached: at(404)},
		},
		{
			name: "a drain is the administrator's", lines: failover,
			change: func(s *sighting) { s.abnormal = time.Time{} },
			want:   Sample{Asked: signal(90), Accepted: at(203), Attached: at(410)},
		},
		{
			name: "a deletion before the eviction", want: Sample{Signal: signal(105), Accepted: at(208), Attached: at(410)},
			lines: append([]string{line(sidecar, "delete pods - db-0", 200, 206, 208)}, failover...),
		},
		{name: "no signal", lines: failover[3:], fails: "no status"},
		{name: "no eviction", lines: append(append([]string{}, failover[:5]...), failover[7:]...), fails: "no eviction"},
		{name: "no attachment", lines: failover[:8], fails: "no attachment"},
		{
			name: "an attachment before the eviction", lines: failover, fails: "no attachment",
			change: func(s *sighting) { s.attached = at(150) },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := seen
			if tc.change != nil {
				tc.change(&s)
			}
			got, err := logOf(t, tc.lines...).samples([]sighting{s})
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Fatalf("error %v, want one with %q", err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			tc.want.Pod, tc.want.From, tc.want.To = s.pod, s.from, s.to
			if diff := cmp.Diff([]Sample{tc.want}, got); diff != "" {
				t.Errorf("want -, got +\n%s", diff)
			}
		})
	}
}

func TestReadAudit(t *testing.T) {
	log := logOf(t,
		line(node, "patch pods status b", 200, 30, 31),
		line(node, "patch pods status b", 200, 10, 40),
		line(node, "patch pods status b", 409, 20, 21),
		line(node, "get pods - b", 200, 20, 21),
		`{"stage":"ResponseStarted","verb":"patch"}`,
		`{"stage":"ResponseComplete","verb":"get","responseStatus":{"code":200}}`,
	)
	want := auditLog{podStatus + "b": {{node, at(10), at(40)}, {node, at(30), at(31)}}}
	if diff := cmp.Diff(want, log, cmp.AllowUnexported(request{})); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
	if _, err := readAudit(strings.NewReader(line(node, "patch pods status b", 200, 1, 2)[:40])); err == nil {
		t.Error("a log that was cut off is taken for whole")
	}
}
