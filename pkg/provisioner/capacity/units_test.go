package capacity

import (
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics"
	"pgregory.net/rapid"
)

// The values are those that external-provisioner gives such nodes, but for the
// last, which would begin with a dash.
func TestManagedByIsALabelValue(t *testing.T) {
	node := func(n int) string { return "node" + strings.Repeat("a", n) }
	for name, test := range map[string]struct{ node, want string }{
		"short":          {"node01", "external-provisioner-node01"},
		"just fits":      {node(38), "external-provisioner-" + node(38)},
		"one too long":   {node(39), "external-p-53f40b57-" + node(39)},
		"far too long":   {node(63), "external-provisioner-df38e37f"},
		"no room at all": {node(49), "external-provisioner-" + shortHash("external-provisioner-"+node(49))},
	} {
		t.Run(name, func(t *testing.T) {
			got := ManagedBy(test.node)
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?`).Draw(t, "node")
		if errs := validation.IsValidLabelValue(ManagedBy(name)); len(errs) > 0 {
			t.Fatalf("%s: %v", ManagedBy(name), errs)
		}
	})
}

func TestAConfigIsChecked(t *testing.T) {
	bubble(t, func(r *rig) {
		for name, change := range map[string]func(*Config){
			"DriverName must be set":   func(c *Config) { c.DriverName = "" },
			"DriverName is \"a/b\"":    func(c *Config) { c.DriverName = "a/b" },
			"ManagedBy must be set":    func(c *Config) { c.ManagedBy = "" },
			"ManagedBy is":             func(c *Config) { c.ManagedBy = strings.Repeat("x", 64) },
			"Namespace must be set":    func(c *Config) { c.Namespace = "" },
			"Driver, Segments, Client": func(c *Config) { c.Driver = nil },
			"Segments, Client":         func(c *Config) { c.Segments = nil },
			"Client and":               func(c *Config) { c.Client = nil },
			"Classes must":             func(c *Config) { c.Classes = nil },
			"Threads is -1":            func(c *Config) { c.Threads = -1 },
			"PollInterval -1s":         func(c *Config) { c.PollInterval = -time.Second },
			"Timeout -1s":              func(c *Config) { c.Timeout = -time.Second },
			"RetryIntervalStart 10m0s": func(c *Config) { c.RetryIntervalStart, c.RetryIntervalMax = 10*time.Minute, time.Minute },
			"RetryIntervalStart -1s":   func(c *Config) { c.RetryIntervalStart = -time.Second },
			"duplicate metrics collector": func(c *Config) {
				if _, err := New(*c); err != nil {
					t.Fatal(err)
				}
			},
		} {
			r.registry = metrics.NewKubeRegistry()
			cfg, _ := r.config()
			change(&cfg)
			if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("want an error that says %q, got %v", name, err)
			}
		}
		cfg, _ := r.config()
		cfg, err := cfg.withDefaults()
		if err != nil || cfg.Threads != 1 || cfg.PollInterval != time.Minute || cfg.RetryIntervalStart != time.Second || cfg.RetryIntervalMax != 5*time.Minute || cfg.Timeout != 10*time.Second {
			t.Errorf("defaults are %+v, %v", cfg, err)
		}
	})
}

func controlled(by, kind, apiVersion string) []metav1.OwnerReference {
	is := true
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Unrelated", Name: "x", UID: "x"}, {APIVersion: apiVersion, Kind: kind, Name: by, UID: types.UID("uid-" + by), Controller: &is}}
}

func meta(name string, owners []metav1.OwnerReference) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), OwnerReferences: owners}
}

func TestTheOwnerIsFound(t *testing.T) {
	objects := []runtime.Object{
		&v1.Pod{ObjectMeta: meta("pod", controlled("rs", "ReplicaSet", "apps/v1"))},
		&appsv1.ReplicaSet{ObjectMeta: meta("rs", controlled("deploy", "Deployment", "apps/v1"))},
		&appsv1.Deployment{ObjectMeta: meta("deploy", controlled("operator", "Operator", "example.com/v1"))},
		&v1.Pod{ObjectMeta: meta("bare", nil)},
		&v1.Pod{ObjectMeta: meta("of-set", controlled("set", "StatefulSet", "apps/v1"))},
		&appsv1.StatefulSet{ObjectMeta: meta("set", nil)},
		&v1.Pod{ObjectMeta: meta("of-daemon", controlled("daemon", "DaemonSet", "apps/v1"))},
		&appsv1.DaemonSet{ObjectMeta: meta("daemon", controlled("operator", "Operator", "example.com/v1"))},
		&v1.Pod{ObjectMeta: meta("of-old", controlled("old", "ReplicaSet", "apps/v1"))},
		&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "old", UID: "another"}},
		&v1.Pod{ObjectMeta: meta("orphan", controlled("gone", "ReplicaSet", "apps/v1"))},
	}
	for name, test := range map[string]struct {
		pod   string
		level int
		want  string
		err   string
	}{
		"none":                           {"pod", -1, "", ""},
		"the pod":                        {"pod", 0, "v1 Pod pod", ""},
		"its ReplicaSet":                 {"pod", 1, "apps/v1 ReplicaSet rs", ""},
		"its Deployment":                 {"pod", 2, "apps/v1 Deployment deploy", ""},
		"what controls that":             {"pod", 3, "example.com/v1 Operator operator", ""},
		"beyond what is known":           {"pod", 4, "", "what controls a Operator of example.com/v1 is not known"},
		"of a bare pod":                  {"bare", 0, "v1 Pod bare", ""},
		"above a bare pod":               {"bare", 1, "", "nothing controls Pod storage/bare, so CSIStorageCapacity objects have no owner at level 1 above pod bare: set --capacity-ownerref-level to 0"},
		"a StatefulSet":                  {"of-set", 1, "apps/v1 StatefulSet set", ""},
		"above a StatefulSet":            {"of-set", 2, "", "--capacity-ownerref-level to 1"},
		"above a DaemonSet":              {"of-daemon", 2, "example.com/v1 Operator operator", ""},
		"a ReplicaSet that is made anew": {"of-old", 2, "", "another one than the pod's owner"},
		"a ReplicaSet that is gone":      {"orphan", 2, "", "getting ReplicaSet storage/gone"},
		"a pod that is gone":             {"nobody", 0, "", "getting pod storage/nobody"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := FindOwner(t.Context(), fake.NewClientset(objects...), namespace, test.pod, test.level)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("got %v, want an error that says %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if test.want == "" {
				if got != nil {
					t.Errorf("got %v", got)
				}
				return
			}
			if is := got.APIVersion + " " + got.Kind + " " + got.Name; is != test.want || string(got.UID) != "uid-"+got.Name {
				t.Errorf("got %s of UID %s, want %s", is, got.UID, test.want)
			}
		})
	}
}

// Level 1 needs no more than the pod: it says who controls it.
func TestTheOwnerOfThePodNeedsNoPermissionOnIt(t *testing.T) {
	client := fake.NewClientset(&v1.Pod{ObjectMeta: meta("pod", controlled("rs", "ReplicaSet", "apps/v1"))})
	client.PrependReactor("get", "replicasets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("forbidden")
	})
	if _, err := FindOwner(t.Context(), client, namespace, "pod", 1); err != nil {
		t.Error(err)
	}
}

func version(uid types.UID, v, segment string) *storagev1.CSIStorageCapacity {
	o := object(segment, "c", driverName, ManagedByCentral)
	o.UID, o.ResourceVersion, o.Name = uid, v, string(uid)
	return o
}

// What our own write answered is not undone by an older event.
func TestTheTableKeepsTheLatest(t *testing.T) {
	tab := newTable()
	a := item{segment: at("zone=a"), class: "c"}
	if it, n := tab.put(version("u", "5", "zone=a")); it != a || n != 1 {
		t.Errorf("got %v, %d", it, n)
	}
	tab.put(version("u", "10", "zone=a"))
	if it, n := tab.put(version("u", "9", "zone=a")); it != a || n != 1 {
		t.Errorf("got %v, %d", it, n)
	}
	if got := tab.of(a)[0].ResourceVersion; got != "10" {
		t.Errorf("version %s is kept", got)
	}
	tab.put(version("v", "11", "zone=a"))
	if got := tab.of(a); len(got) != 2 || got[0].Name != "u" {
		t.Errorf("got %v", got)
	}
	tab.put(version("v", "what", "zone=b")) // no order is known
	if n := len(tab.of(a)); n != 1 {
		t.Errorf("%d objects", n)
	}
	if it, n, known := tab.remove("v"); it.segment != at("zone=b") || n != 0 || !known {
		t.Errorf("got %v, %d, %v", it, n, known)
	}
	if _, _, known := tab.remove("v"); known {
		t.Error("it is still known")
	}
	tab.remove("u")
	if len(tab.items()) != 0 || len(tab.byUID) != 0 {
		t.Error("something is left")
	}
}

func TestWhatAnObjectIsFor(t *testing.T) {
	everywhere := version("u", "1", "zone=a")
	everywhere.NodeTopology = &metav1.LabelSelector{}
	if it := itemOf(everywhere); it != (item{class: "c"}) {
		t.Errorf("got %v", it)
	}
	for name, change := range map[string]func(*storagev1.CSIStorageCapacity){
		"no topology": func(o *storagev1.CSIStorageCapacity) { o.NodeTopology = nil },
		"no class":    func(o *storagev1.CSIStorageCapacity) { o.StorageClassName = "" },
		"expressions": func(o *storagev1.CSIStorageCapacity) {
			o.NodeTopology.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "x", Operator: metav1.LabelSelectorOpExists}}
		},
	} {
		o := version("u", "1", "zone=a")
		change(o)
		if it := itemOf(o); it != (item{stray: "u"}) {
			t.Errorf("%s: got %v", name, it)
		}
	}
}
