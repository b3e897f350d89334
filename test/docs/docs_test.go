// Package docs tests that the documentation speaks of what there is.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// source is what the product's code says in so many words.
type source struct {
	// literals are all string constants.
	literals map[string]bool
	// inAttach are those of pkg/attach, which puts its metrics' names together.
	inAttach map[string]bool
	// events are the reasons of events.
	events []string
}

// eventName are the names of constants that hold the reason of an event.
var eventName = map[string]*regexp.Regexp{
	"failover":     regexp.MustCompile(`^Event`),
	"health":       regexp.MustCompile(`^Event`),
	"attach":       regexp.MustCompile(`^Reason`),
	"provisioner":  regexp.MustCompile(`^Reason`),
	"capacity":     regexp.MustCompile(`^Reason`),
	"hacontroller": regexp.MustCompile(`EventReason$`),
}

func readSource(t *testing.T, root string) source {
	t.Helper()
	s := source{literals: map[string]bool{}, inAttach: map[string]bool{}}
	for _, dir := range []string{"cmd", "internal", "pkg"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err == nil {
				s.take(file)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *source) take(file *ast.File) {
	pattern := eventName[file.Name.Name]
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
				s.literals[text] = true
				s.inAttach[text] = s.inAttach[text] || file.Name.Name == "attach"
			}
		case *ast.ValueSpec:
			for i, name := range n.Names {
				// A reason has no type of its own; a Reason of a refusal has.
				if pattern == nil || n.Type != nil || !pattern.MatchString(name.Name) || i >= len(n.Values) {
					continue
				}
				if lit, ok := n.Values[i].(*ast.BasicLit); ok {
					text, _ := strconv.Unquote(lit.Value)
					s.events = append(s.events, text)
				}
			}
		}
		return true
	})
}

func (s *source) metric(name string) bool {
	for _, suffix := range []string{"", "_bucket", "_count", "_sum"} {
		name := strings.TrimSuffix(name, suffix)
		short, ours := strings.CutPrefix(name, "ha_sidecar_attach_")
		if s.literals[name] || ours && s.inAttach[short] {
			return true
		}
	}
	return false
}

// pages are the documents by their path.
func pages(t *testing.T, root string) map[string]string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(found) < 4 {
		t.Fatalf("%v, %v", found, err)
	}
	all := map[string]string{}
	for _, path := range append(found, filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md")) {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = string(content)
	}
	return all
}

var (
	metricName   = regexp.MustCompile(`ha_sidecar_[a-z_]*[a-z]`)
	metricLabels = regexp.MustCompile(`ha_sidecar_[a-z_]+\{([^}]*)\}`)
	label        = regexp.MustCompile(`([a-z_]+)="([^"]*)"`)
	annotation   = regexp.MustCompile(`[a-z.]*ha-sidecar\.io/[a-z-]*`)
	eventWord    = regexp.MustCompile(`\b(?:Failover|Force|Fence|Unfence|VolumeCondition)[A-Z][A-Za-z]+\b`)
	link         = regexp.MustCompile(`\]\(([^)#]*)#?([^)]*)\)`)
	heading      = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInAnchor  = regexp.MustCompile(`[^a-z0-9 _-]`)
	// eventRow is a row of the table of events: its reasons come first.
	eventRow = regexp.MustCompile(`(?m)^\| ([A-Z][A-Za-z]+(?:, [A-Z][A-Za-z]+)*) \|`)
)

func TestMetricsNamedExist(t *testing.T) {
	root, s := load(t)
	seen := 0
	for path, text := range pages(t, root) {
		for _, name := range metricName.FindAllString(text, -1) {
			if seen++; !s.metric(name) {
				t.Errorf("%s: there is no metric %s", path, name)
			}
		}
		for _, m := range metricLabels.FindAllStringSubmatch(text, -1) {
			for _, l := range label.FindAllStringSubmatch(m[1], -1) {
				if !s.literals[l[1]] || !s.literals[l[2]] {
					t.Errorf("%s: there is no label %s", path, l[0])
				}
			}
		}
	}
	if seen < 6 {
		t.Errorf("only %d metrics are named", seen)
	}
}

// provisionerMetric is a whole name; those that external-provisioner has are put
// together of three parts.
var provisionerMetric = regexp.MustCompile(`^(ha_sidecar_(provisioner|capacity)|csistoragecapacities)_[a-z_]+$`)

// TestMetricsOfTheProvisionerAreNamed where a person looks for them.
func TestMetricsOfTheProvisionerAreNamed(t *testing.T) {
	root, s := load(t)
	operations := pages(t, root)[filepath.Join(root, "docs", "operations.md")]
	var names []string
	for text := range s.literals {
		if provisionerMetric.MatchString(text) {
			names = append(names, text)
		}
	}
	if len(names) < 11 {
		t.Fatalf("only %d metrics were found", len(names))
	}
	for _, name := range []string{"provision_total", "provision_failed_total", "provision_duration_seconds"} {
		names = append(names, "controller_persistentvolumeclaim_"+name)
	}
	for _, name := range []string{"delete_total", "delete_failed_total", "delete_duration_seconds"} {
		names = append(names, "controller_persistentvolume_"+name)
	}
	for _, name := range names {
		if !strings.Contains(operations, "`"+name+"`") && !strings.Contains(operations, "`"+name+"{") {
			t.Errorf("docs/operations.md does not name the metric %s", name)
		}
	}
}

func TestEventsNamedExistAndAllAreNamed(t *testing.T) {
	root, s := load(t)
	if len(s.events) < 20 {
		t.Fatalf("only these reasons were found: %v", s.events)
	}
	all := pages(t, root)
	for path, text := range all {
		for _, word := range eventWord.FindAllString(text, -1) {
			if !s.literals[word] {
				t.Errorf("%s: there is no event %s", path, word)
			}
		}
	}
	operations := filepath.Join(root, "docs", "operations.md")
	_, events, found := strings.Cut(all[operations], "\n## Events\n")
	if !found {
		t.Fatalf("%s has no section on events", operations)
	}
	events, _, _ = strings.Cut(events, "\n## ")
	var named []string
	for _, row := range eventRow.FindAllStringSubmatch(events, -1) {
		named = append(named, strings.Split(row[1], ", ")...)
	}
	for _, reason := range s.events {
		if !slices.Contains(named, reason) {
			t.Errorf("%s: the event %s is not in the table", operations, reason)
		}
	}
	for _, reason := range named {
		if !slices.Contains(s.events, reason) {
			t.Errorf("%s: there is no event %s", operations, reason)
		}
	}
}

// holdPrefix begins the key of a hold.
const holdPrefix = "fenced.ha-sidecar.io/"

func TestAnnotationsNamedExist(t *testing.T) {
	root, s := load(t)
	for path, text := range pages(t, root) {
		for _, key := range annotation.FindAllString(text, -1) {
			if strings.HasPrefix(key, holdPrefix) {
				key = holdPrefix // and then the driver's name
			}
			if !s.literals[key] {
				t.Errorf("%s: there is no annotation %s", path, key)
			}
		}
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	root, _ := load(t)
	for path, text := range pages(t, root) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := path
			if strings.Contains(m[1], "://") {
				continue
			}
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(path), m[1])
			}
			content, err := os.ReadFile(target)
			if info, statErr := os.Stat(target); statErr == nil && info.IsDir() && m[2] == "" {
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", path, err)
			} else if m[2] != "" && !slices.Contains(anchors(string(content)), m[2]) {
				t.Errorf("%s: %s has no heading for #%s", path, target, m[2])
			}
		}
	}
}

// anchors are the names of a page's headings in links.
func anchors(text string) []string {
	var all []string
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
	}
	return all
}

func load(t *testing.T) (string, source) {
	t.Helper()
	root, err := rig.Root()
	if err != nil {
		t.Fatal(err)
	}
	return root, readSource(t, root)
}
