package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// LabelJournal on a ConfigMap names the journal that it is a page of.
	LabelJournal = "ha-sidecar.io/journal"
	// AnnotationEpoch on a page counts the holders: a higher one has taken over.
	AnnotationEpoch = "ha-sidecar.io/journal-epoch"
	// AnnotationHolder on a page names the process that wrote it last.
	AnnotationHolder = "ha-sidecar.io/journal-holder"
)

// page is one ConfigMap as it is in the cluster, as far as we know.
type page struct {
	number int
	// version is its resourceVersion; empty: it is not there yet.
	version string
	// holder is who wrote it last, where it was just read.
	holder  string
	records map[string]string
	// binary is what else the page holds. We write no such records, and so cannot
	// read them: they stay on the page as they are.
	binary map[string][]byte
	// uid is that of the ConfigMap, for events; empty: it is not there yet.
	uid   types.UID
	bytes int
}

func recordBytes(key, value string) int { return len(key) + len(value) }

// changed returns what the page is to hold after a batch.
func (p *page) changed(puts map[string]string, removals map[string]bool) map[string]string {
	records := make(map[string]string, len(p.records)+len(puts))
	for key, value := range p.records {
		if !removals[key] {
			records[key] = value
		}
	}
	maps.Copy(records, puts)
	return records
}

func (p *page) hold(records map[string]string) {
	p.records, p.bytes = records, 0
	for key, value := range records {
		p.bytes += recordBytes(key, value)
	}
	for key, value := range p.binary {
		p.bytes += len(key) + len(value)
	}
}

// labelValue fits a name into a label.
func labelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

func (j *Journal) configMap(p *page, records map[string]string) *v1.ConfigMap {
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: j.cfg.Namespace, Name: j.pageName(p.number), ResourceVersion: p.version,
			Labels:      map[string]string{LabelJournal: labelValue(j.cfg.Name)},
			Annotations: map[string]string{AnnotationEpoch: strconv.FormatInt(j.epoch, 10), AnnotationHolder: j.holder},
		},
		Data: records, BinaryData: p.binary,
	}
}

func (j *Journal) pageName(number int) string { return fmt.Sprintf("%s-%d", j.cfg.Name, number) }

// pageNumber reads the number off a ConfigMap's name.
func (j *Journal) pageNumber(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, j.cfg.Name+"-")
	if !ok {
		return 0, false
	}
	number, err := strconv.Atoi(digits)
	return number, err == nil && number >= 0 && j.pageName(number) == name
}

// epochOf reads the epoch of a page. One that cannot be read, or that none can
// follow, is the lowest: the page is written anew.
func epochOf(cm *v1.ConfigMap) int64 {
	epoch, err := strconv.ParseInt(cm.Annotations[AnnotationEpoch], 10, 64)
	if err != nil || epoch < 0 || epoch == math.MaxInt64 {
		return 0
	}
	return epoch
}
