package main

import (
	"fmt"
	"strings"

	"github.com/ha-sidecar/ha-sidecar/test/bench/audit"
)

// driverName is the driver's, and the provisioner of the StorageClass.
const driverName = "bench.csi.ha-sidecar.io"

// leaseNamespace is where a side has its lease, if it has one.
const leaseNamespace = "bench-system"

// side is who provisions.
type side struct {
	// key is what the flag --sides calls it.
	key string
	// name is the program's in bin/, and its user agent.
	name string
	// title is for people.
	title string
	// flags are those that it always has, ready the path that answers once it runs.
	flags []string
	ready string
	// env are its variables.
	env []string
}

// agent picks the side's requests.
func (s side) agent() audit.Agent { return audit.Program(s.name) }

func (s side) String() string { return s.key }

var (
	ours = side{
		key: "ours", name: "ha-sidecar", title: "ha-sidecar", ready: "/readyz",
		flags: []string{"--controllers=provisioner", "--leader-election-namespace=" + leaseNamespace},
		env:   []string{"POD_NAMESPACE=" + leaseNamespace},
	}
	theirs = side{
		key: "peer", name: "csi-provisioner", title: "csi-provisioner v6.4.0", ready: "/metrics",
		// The last two are for its CSIStorageCapacity objects.
		env: []string{"POD_NAMESPACE=" + leaseNamespace, "NAMESPACE=" + leaseNamespace, "POD_NAME=bench-0"},
	}
	// floor is no program: the bench itself provisions, with neither a driver nor a
	// limit.
	floor = side{key: "floor", name: "bench-floor", title: "the floor"}

	allSides = []side{ours, theirs, floor}
)

// setting is how everyone is set.
type setting struct {
	name, title string
	// flags are those of a side, by its key.
	flags map[string][]string
	// manager are flags of kube-controller-manager.
	manager []string
	// plan says what is measured in it.
	plan func(setting, options) plan
}

func (s setting) String() string { return s.name }

func (s setting) flagsOf(who side) []string { return s.flags[who.key] }

// both gives both programs the same flags.
func both(flags ...string) map[string][]string {
	return map[string][]string{ours.key: flags, theirs.key: flags}
}

// raised are flags of kube-controller-manager with which it is not what is measured.
var raised = []string{"--kube-api-qps=1000", "--kube-api-burst=2000"}

var capacityFlags = []string{"--enable-capacity", "--capacity-ownerref-level=-1", "--capacity-poll-interval=1m"}

var settings = []setting{
	{
		name:    "DEFAULT",
		title:   "everyone's shipped defaults: kube-controller-manager with 20 requests/s and burst 30, csi-provisioner with 5 and 10",
		manager: []string{"--kube-api-qps=20", "--kube-api-burst=30"},
		plan:    func(s setting, o options) plan { return comparison(s, o, o.shipped) },
	},
	{
		name:  "TUNED",
		title: "csi-provisioner as drivers ship it, with 100 requests/s and burst 200, ha-sidecar with no limit of its own, as is its default; both with 100 threads; kube-controller-manager with 1000 requests/s and burst 2000",
		flags: map[string][]string{
			ours.key:   {"--worker-threads=100"},
			theirs.key: {"--kube-api-qps=100", "--kube-api-burst=200", "--worker-threads=100"},
		},
		manager: raised,
		plan:    func(s setting, o options) plan { return comparison(s, o, o.claims) },
	},
	{
		name:    "UNLIMITED",
		title:   "all three with --kube-api-qps=1000 --kube-api-burst=2000, both provisioners with --worker-threads=100",
		flags:   both("--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=100"),
		manager: raised,
		plan:    func(s setting, o options) plan { return comparison(s, o, o.claims) },
	},
	{
		name:  "MEMORY",
		title: "resident memory beside volumes and claims that are bound and need nothing; shipped defaults",
		// The claims are made as the binder and the protection of volumes leave them.
		manager: []string{"--controllers=-persistentvolume-binder-controller,-persistentvolume-protection-controller,-persistentvolumeclaim-protection-controller"},
		plan:    remembering,
	},
	{
		name:  "CAPACITY",
		title: "CSIStorageCapacity objects; shipped defaults",
		flags: map[string][]string{
			ours.key:   capacityFlags,
			theirs.key: append([]string{"--feature-gates=Topology=true"}, capacityFlags...),
		},
		// The nodes have no kubelet, and stay as they are.
		manager: []string{"--controllers=-node-lifecycle-controller"},
		plan:    telling,
	},
}

// clusterArgs are those of the control plane.
func (s setting) clusterArgs() (args []string) {
	for _, flag := range s.manager {
		args = append(args, "kube-controller-manager="+flag)
	}
	return args
}

// names lists what a flag may name.
func names[T fmt.Stringer](all []T) string {
	var words []string
	for _, one := range all {
		words = append(words, one.String())
	}
	return strings.Join(words, ",")
}

// chosen are those that a flag names, in their own order; an empty flag names all.
func chosen[T fmt.Stringer](flag, value string, all []T) (some []T, err error) {
	if value == "" {
		return all, nil
	}
	wanted := map[string]bool{}
	for word := range strings.SplitSeq(value, ",") {
		wanted[strings.TrimSpace(word)] = true
	}
	for _, one := range all {
		if wanted[one.String()] {
			some = append(some, one)
			delete(wanted, one.String())
		}
	}
	for word := range wanted {
		return nil, fmt.Errorf("--%s names %q: give some of %s", flag, word, names(all))
	}
	return some, nil
}
