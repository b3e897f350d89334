package app

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// labelList is a flag of labels: key=value,key=value. The replaced sidecars write
// key:value, which is taken too; neither sign can be in a label.
type labelList struct{ labels *map[string]string }

var _ pflag.Value = labelList{}

// String implements pflag.Value.
func (l labelList) String() string {
	if l.labels == nil {
		return ""
	}
	var items []string
	for _, key := range slices.Sorted(maps.Keys(*l.labels)) {
		items = append(items, key+"="+(*l.labels)[key])
	}
	return strings.Join(items, ",")
}

// Set implements pflag.Value. A flag that is given twice adds to the first.
func (l labelList) Set(text string) error {
	labels := maps.Clone(*l.labels)
	if labels == nil {
		labels = map[string]string{}
	}
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		sign := strings.IndexAny(item, "=:")
		switch {
		case item == "":
			continue
		case sign < 0:
			return fmt.Errorf("%q is no label: write key=value", item)
		}
		labels[item[:sign]] = item[sign+1:]
	}
	*l.labels = labels
	return nil
}

// Type implements pflag.Value.
func (labelList) Type() string { return "key=value,..." }
