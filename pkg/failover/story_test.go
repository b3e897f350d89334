package failover

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestStories runs the transcripts in testdata: a cluster in lines of text, and
// what is decided about it. "go test -rewrite" writes them anew.
//
//	cluster   adds to the cluster, or replaces what has the same name
//	decide    lets time pass (after=10s) and decides
func TestStories(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("stories: %v, %v", paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) { tell(t, path) })
	}
}

func tell(t *testing.T, path string) {
	w := newWorld()
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "cluster":
			w.add(strings.Split(d.Input, "\n")...)
			return "ok\n"
		case "decide":
			if d.HasArg("after") {
				var after string
				d.ScanArgs(t, "after", &after)
				pause, err := time.ParseDuration(after)
				if err != nil {
					d.Fatalf(t, "after=%s: %v", after, err)
				}
				w.now = w.now.Add(pause)
			}
			return renderDecision(w.decide(), w.now)
		default:
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		}
	})
}

func renderDecision(d Decision, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d of %d nodes fail, %s\n", now.Format("15:04:05"), len(d.Brake.Failing), d.Brake.Carriers, renderBrake(d.Brake))
	if len(d.Answers) == 0 {
		b.WriteString("nothing to decide\n")
	}
	for _, a := range d.Answers {
		node := a.Key.Node
		if node == "" {
			node = "everywhere"
		}
		fmt.Fprintf(&b, "%s from %s: %s", a.Key.Handle, node, strings.ToUpper(string(a.Action)))
		if !a.Lead && len(a.Closure.Volumes) > 0 {
			b.WriteString(" (its closure is spoken for)")
		}
		b.WriteString("\n")
		for _, r := range a.Reasons {
			sign := "-"
			if r.Action == ActionMove {
				sign = "+"
			}
			fmt.Fprintf(&b, "  %s %s: %s\n", sign, r.Code, r.Message)
		}
		if len(a.Closure.Volumes) > 0 {
			fmt.Fprintf(&b, "  closure: %s\n", renderClosure(a.Closure))
		}
		if !a.Look.IsZero() {
			fmt.Fprintf(&b, "  look again in %s\n", a.Look.Sub(now))
		}
	}
	return b.String()
}

func renderBrake(b Brake) string {
	switch {
	case b.Limit < 0:
		return "breaker off"
	case b.Open:
		return fmt.Sprintf("%d may, breaker open", b.Limit)
	default:
		return fmt.Sprintf("%d may", b.Limit)
	}
}

func renderClosure(c Closure) string {
	var pods, volumes []string
	for _, p := range c.Pods {
		pods = append(pods, p.Namespace+"/"+p.Name)
	}
	for _, v := range c.Volumes {
		volumes = append(volumes, v.PV)
	}
	slices.Sort(pods)
	if len(pods) == 0 {
		pods = []string{"none"}
	}
	return fmt.Sprintf("pods %s; volumes %s", strings.Join(pods, ", "), strings.Join(volumes, ", "))
}
