package simdriver

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/health"
)

// sanityIDs are IDs of volumes and nodes that could exist and do not.
type sanityIDs struct{ sanity.DefaultIDGenerator }

func (sanityIDs) GenerateUniqueValidVolumeID() string {
	return fmt.Sprintf("vol-sanity-%s", sanity.PseudoUUID())
}

func (sanityIDs) GenerateUniqueValidNodeID() string {
	return fmt.Sprintf("node-sanity-%s", sanity.PseudoUUID())
}

// dialects are all that the driver speaks.
var dialects = []health.Dialect{health.V113, health.Legacy, health.None}

// TestSanity runs csi-sanity once for each health dialect, each on a driver of
// its own, with real mounts. Ginkgo runs only one suite in a process, so all are
// in it.
func TestSanity(t *testing.T) {
	var contexts []*sanity.TestContext
	for _, dialect := range dialects {
		r := newRig(t, func(cfg *Config) { cfg.Health = dialect })
		node := r.node("node-a", "--health", string(dialect))
		config := sanity.NewTestConfig()
		config.Address = node.endpoint
		config.ControllerAddress = "unix://" + filepath.Join(r.run, "c")
		config.TargetPath = filepath.Join(r.dir, "target")
		config.StagingPath = filepath.Join(r.dir, "staging")
		config.TestVolumeSize = 1 << 20
		config.IDGen = sanityIDs{}
		ginkgo.Describe(dialectText(dialect), func() {
			contexts = append(contexts, sanity.GinkgoTest(&config))
		})
	}
	tally := newTally()
	ginkgo.ReportAfterSuite("count", func(report ginkgo.Report) {
		for _, spec := range report.SpecReports {
			tally.add(spec)
		}
	})
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.Succinct = true
	ginkgo.RunSpecs(t, "csi-sanity", suite, reporter)
	for _, context := range contexts {
		context.Finalize()
	}
	tally.print()
	for _, dialect := range dialects {
		if tally.passed[dialectText(dialect)] == 0 {
			t.Errorf("no spec ran with health %s", dialect)
		}
	}
}

func dialectText(d health.Dialect) string { return "health " + string(d) }

// tally counts specs by health dialect.
type tally struct {
	passed, failed, skipped map[string]int
	// reasons of the skipped ones, with the dialects that skip them.
	reasons map[string][]string
}

func newTally() *tally {
	return &tally{passed: map[string]int{}, failed: map[string]int{}, skipped: map[string]int{}, reasons: map[string][]string{}}
}

func (c *tally) add(spec types.SpecReport) {
	if spec.LeafNodeType != types.NodeTypeIt || len(spec.ContainerHierarchyTexts) == 0 {
		return
	}
	dialect := spec.ContainerHierarchyTexts[0]
	switch spec.State {
	case types.SpecStatePassed:
		c.passed[dialect]++
	case types.SpecStateSkipped, types.SpecStatePending:
		c.skipped[dialect]++
		reason := spec.Failure.Message
		if spec.State == types.SpecStatePending {
			reason = "disabled in csi-sanity itself"
		}
		name := strings.TrimSpace(strings.TrimPrefix(spec.FullText(), dialect))
		key := name + " (" + reason + ")"
		c.reasons[key] = append(c.reasons[key], dialect)
	default:
		c.failed[dialect]++
	}
}

func (c *tally) print() {
	for _, name := range slices.Sorted(maps.Keys(c.reasons)) {
		slices.Sort(c.reasons[name])
		fmt.Printf("csi-sanity: skipped: %s [%s]\n", name, strings.Join(c.reasons[name], ", "))
	}
	for _, dialect := range dialects {
		key := dialectText(dialect)
		fmt.Printf("csi-sanity: %s: %d passed, %d skipped, %d failed\n", key, c.passed[key], c.skipped[key], c.failed[key])
	}
}
