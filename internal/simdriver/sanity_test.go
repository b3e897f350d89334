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

// variant is one way to run the driver.
type variant struct {
	text    string
	dialect health.Dialect
	// placed adds topology and capacity.
	placed bool
}

// variants are all health dialects, and everything at once.
var variants = []variant{
	{"health v1.13", health.V113, false},
	{"health legacy", health.Legacy, false},
	{"health none", health.None, false},
	{"topology and capacity", health.V113, true},
}

// TestSanity runs csi-sanity once for each variant, each on a driver of its own,
// with real mounts. Ginkgo runs only one suite in a process, so all are in it.
func TestSanity(t *testing.T) {
	var contexts []*sanity.TestContext
	for _, variant := range variants {
		flags := []string{"--health", string(variant.dialect)}
		if variant.placed {
			flags = append(flags, "--topology", "example.com/zone=a")
		}
		r := newRig(t, func(cfg *Config) {
			cfg.Health = variant.dialect
			if variant.placed {
				cfg.Topology, cfg.Capacity, cfg.MaximumVolumeSize = true, 1<<30, 1<<29
			}
		})
		node := r.node("node-a", flags...)
		config := sanity.NewTestConfig()
		config.Address = node.endpoint
		config.ControllerAddress = "unix://" + filepath.Join(r.run, "c")
		config.TargetPath = filepath.Join(r.dir, "target")
		config.StagingPath = filepath.Join(r.dir, "staging")
		config.TestVolumeSize = 1 << 20
		config.IDGen = sanityIDs{}
		config.TestVolumeMutableParameters = map[string]string{"iops": "100"}
		ginkgo.Describe(variant.text, func() {
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
	for _, variant := range variants {
		if tally.passed[variant.text] == 0 {
			t.Errorf("no spec ran with %s", variant.text)
		}
	}
}

// tally counts specs by variant.
type tally struct {
	passed, failed, skipped map[string]int
	// reasons of the skipped ones, with the variants that skip them.
	reasons map[string][]string
}

func newTally() *tally {
	return &tally{passed: map[string]int{}, failed: map[string]int{}, skipped: map[string]int{}, reasons: map[string][]string{}}
}

func (c *tally) add(spec types.SpecReport) {
	if spec.LeafNodeType != types.NodeTypeIt || len(spec.ContainerHierarchyTexts) == 0 {
		return
	}
	variant := spec.ContainerHierarchyTexts[0]
	switch spec.State {
	case types.SpecStatePassed:
		c.passed[variant]++
	case types.SpecStateSkipped, types.SpecStatePending:
		c.skipped[variant]++
		reason := spec.Failure.Message
		if spec.State == types.SpecStatePending {
			reason = "disabled in csi-sanity itself"
		}
		name := strings.TrimSpace(strings.TrimPrefix(spec.FullText(), variant))
		key := name + " (" + reason + ")"
		c.reasons[key] = append(c.reasons[key], variant)
	default:
		c.failed[variant]++
	}
}

func (c *tally) print() {
	for _, name := range slices.Sorted(maps.Keys(c.reasons)) {
		slices.Sort(c.reasons[name])
		fmt.Printf("csi-sanity: skipped: %s [%s]\n", name, strings.Join(c.reasons[name], ", "))
	}
	for _, variant := range variants {
		key := variant.text
		fmt.Printf("csi-sanity: %s: %d passed, %d skipped, %d failed\n", key, c.passed[key], c.skipped[key], c.failed[key])
	}
}
