package journal

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// put puts a ConfigMap into the cluster as another version, or a person, does.
func (a *api) put(cm string, data map[string]string, binary map[string][]byte, epoch string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.maps[cm] = &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "csi", Name: cm, UID: types.UID("uid of " + cm), ResourceVersion: strconv.Itoa(a.version),
			Labels: map[string]string{LabelJournal: labelValue(name)}, Annotations: map[string]string{AnnotationEpoch: epoch},
		},
		Data: data, BinaryData: binary,
	}
}

func (a *api) binary(name string) map[string][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.maps[name] == nil {
		return nil
	}
	return a.maps[name].BinaryData
}

func TestStatus(t *testing.T) {
	a := newAPI()
	cfg := config(a)
	cfg.PageBytes = 20
	a.put(name+"-0", map[string]string{"k": "v"}, nil, "6")
	j, err := New(cfg)
	must(t, err)
	if diff := cmp.Diff(Status{Namespace: "csi", Name: name}, j.Status()); diff != "" {
		t.Errorf("before it is open (-want +got):\n%s", diff)
	}
	j, _, stop := open(t, cfg)
	must(t, j.Put(t.Context(), "key-1", strings.Repeat("x", 14)))
	must(t, j.Put(t.Context(), "key-2", strings.Repeat("x", 14)))
	j.Remove("key-2")
	want := Status{Namespace: "csi", Name: name, Opened: true, Epoch: 7, ConfigMaps: 3, Records: 2, Bytes: 2 + 19}
	if diff := cmp.Diff(want, j.Status()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if page := j.Page("key-1"); page == nil || page.Name != name+"-1" || page.Namespace != "csi" || page.Kind != "ConfigMap" {
		t.Errorf("Page() = %v", page)
	}
	if page := j.Page("k"); page == nil || page.UID != types.UID("uid of "+name+"-0") {
		t.Errorf("Page() = %v, want one with its UID", page)
	}
	if page := j.Page("none"); page != nil {
		t.Errorf("Page() of no record = %v", page)
	}
	must(t, stop())
}

// TestWhatCannotBeReadStays as it is and where it is, through takeovers, writes of
// the page, conflicts and its deletion, and is told of.
func TestWhatCannotBeReadStays(t *testing.T) {
	a := newAPI()
	odd := map[string][]byte{"uid-b": {0xff, 0}}
	a.put(name+"-0", map[string]string{"uid-a": "1"}, odd, "3")
	a.put(name+"-00", map[string]string{"uid-c": "2", "uid-d": "3"}, map[string][]byte{"uid-e": {1}}, "99")
	a.put(name+"-backup", nil, nil, "99")
	stays := func(when string) {
		t.Helper()
		if diff := cmp.Diff(odd, a.binary(name+"-0")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
		if diff := cmp.Diff(map[string]string{"uid-c": "2", "uid-d": "3"}, a.maps[name+"-00"].Data); diff != "" || len(a.binary(name+"-00")) != 1 {
			t.Errorf("%s, on the other (-want +got):\n%s", when, diff)
		}
	}
	j, records, stop := open(t, config(a))
	if diff := cmp.Diff(map[string]string{"uid-a": "1"}, records); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if got := j.Status(); got.Epoch != 4 {
		t.Errorf("the epoch is %d, want 4", got.Epoch)
	}
	var got []string
	for _, u := range j.Unread() {
		got = append(got, u.ConfigMap.Name+" "+string(u.ConfigMap.UID)+" "+u.Key+": "+u.Why)
	}
	page, other := name+"-0 uid of "+name+"-0 ", name+"-00 uid of "+name+"-00 "
	const stray = ": the ConfigMap has the label of the journal and not the name of a page"
	want := []string{page + "uid-b: it is binary data", other + "uid-c" + stray, other + "uid-d" + stray, other + "uid-e: it is binary data"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unread (-want +got):\n%s", diff)
	}
	stays("after the takeover")
	must(t, j.Put(t.Context(), "uid-f", "4"))
	j.Remove("uid-a")
	must(t, j.Put(t.Context(), "uid-g", "5"))
	stays("after a write")

	a.mu.Lock()
	delete(a.maps, name+"-0")
	a.mu.Unlock()
	must(t, j.Put(t.Context(), "uid-h", "6"))
	stays("after the page was deleted")

	// An earlier holder of another version gets one more in.
	a.mu.Lock()
	late := a.maps[name+"-0"].DeepCopy()
	a.mu.Unlock()
	odd = map[string][]byte{"uid-b": {0xff, 0}, "uid-i": {2}}
	a.put(name+"-0", late.Data, odd, "3")
	must(t, j.Put(t.Context(), "uid-j", "7"))
	stays("after a conflict")
	must(t, stop())
	j, _, stop = open(t, config(a))
	if n := len(j.Unread()); n != 5 {
		t.Errorf("the next holder cannot read %d, want 5", n)
	}
	stays("after the next takeover")
	must(t, stop())
}

// TestBinaryRecordsTakeRoom of the page.
func TestBinaryRecordsTakeRoom(t *testing.T) {
	a := newAPI()
	cfg := config(a)
	cfg.PageBytes = 50
	a.put(name+"-0", nil, map[string][]byte{"b": make([]byte, 40)}, "1")
	j, _, stop := open(t, cfg)
	must(t, j.Put(t.Context(), "key", strings.Repeat("x", 10)))
	if page := j.Page("key"); page.Name != name+"-1" {
		t.Errorf("the record is on %s", page.Name)
	}
	must(t, stop())
}

// TestEpochThatCannotBeRead is no reason to give the journal up.
func TestEpochThatCannotBeRead(t *testing.T) {
	for _, epoch := range []string{"", "soon", "-7", "9223372036854775807", "9223372036854775808"} {
		a := newAPI()
		a.put(name+"-0", map[string]string{"k": "v"}, nil, epoch)
		j, records, stop := open(t, config(a))
		if records["k"] != "v" || j.Status().Epoch != 1 {
			t.Errorf("%q: %v, epoch %d", epoch, records, j.Status().Epoch)
		}
		must(t, j.Put(context.WithoutCancel(t.Context()), "l", "w"))
		must(t, stop())
	}
}
