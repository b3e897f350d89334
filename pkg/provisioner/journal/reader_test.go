package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestReaderReadsTheJournalsOfOthers: those of all nodes and the one for the whole
// cluster, however long the names, and none of other drivers, nor one's own.
func TestReaderReadsTheJournalsOfOthers(t *testing.T) {
	a := newAPI()
	want := map[string]string{}
	for _, c := range []struct {
		name  string
		reads bool
	}{
		{name, true}, {name + ".node-1", true}, {name + ".node-2", false}, {name + ".node-22", true}, {name + ".node-2.example.com", true},
		{name + "." + strings.Repeat("n", 100), true}, {name + "x", false}, {name + "-x", false}, {name + "-x.node-1", false},
	} {
		cfg := config(a)
		cfg.Name, cfg.PageBytes = c.name, 60
		j, _, stop := open(t, cfg)
		for i := range 2 { // a page each
			record := fmt.Sprintf("record %d of %.20s", i, c.name)
			must(t, j.Put(t.Context(), fmt.Sprintf("uid-%d", i), record))
			if c.reads {
				want[fmt.Sprintf("%s-%d", c.name, i)] += record
			}
		}
		must(t, stop())
	}
	must(t, a.Tracker().Add(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "csi", Name: name + "-7"}, Data: map[string]string{"x": "not a page: it has no label"}}))
	got := map[string]string{}
	writes := a.written()
	r := Reader{Client: a, Namespace: "csi", Name: name, Except: name + ".node-2"}
	must(t, r.Each(t.Context(), func(configMap, record string) bool {
		got[configMap] += record
		return true
	}))
	if diff := cmp.Diff(want, got); diff != "" || a.written() != writes {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	calls := 0
	must(t, r.Each(t.Context(), func(string, string) bool { calls++; return false }))
	if calls != 1 {
		t.Errorf("%d records shown, want an end after the first", calls)
	}
}

// TestReaderReadsAllPagesOfAList, and does not take half of one for all.
func TestReaderReadsAllPagesOfAList(t *testing.T) {
	lists := map[string]*v1.ConfigMapList{}
	for i := range 3 {
		list := &v1.ConfigMapList{Items: []v1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.n%d-0", name, i), Labels: map[string]string{LabelJournal: "x"}}, Data: map[string]string{"uid": fmt.Sprint(i)}}}}
		if i < 2 {
			list.Continue = fmt.Sprintf("more-%d", i+1)
		}
		lists[map[bool]string{true: fmt.Sprintf("more-%d", i)}[i > 0]] = list
	}
	broken := false
	c := fake.NewClientset()
	c.PrependReactor("list", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		o := action.(clienttesting.ListActionImpl).ListOptions
		if o.Limit == 0 || broken && o.Continue == "more-2" {
			return true, nil, errors.New("the list is too old")
		}
		return true, lists[o.Continue], nil
	})
	r := Reader{Client: c, Namespace: "csi", Name: name}
	read := func(ctx context.Context) (got []string, err error) {
		seen := map[string]bool{}
		err = r.Each(ctx, func(_, record string) bool { seen[record] = true; return true })
		return slices.Sorted(maps.Keys(seen)), err
	}
	if got, err := read(t.Context()); err != nil || !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("read %v, %v", got, err)
	}
	broken = true
	if _, err := read(t.Context()); err == nil || !strings.Contains(err.Error(), "reading the journals "+name) {
		t.Errorf("error %v", err)
	}
}
