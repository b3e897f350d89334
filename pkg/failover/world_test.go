package failover

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const testDriver = "sim.example.com"

// noon is when every story begins.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// world is a cluster written in lines of text; see (*world).line for the words.
type world struct {
	now         time.Time
	policy      Policy
	started     time.Time
	synced      bool
	driver      *storagev1.CSIDriver
	nodes       map[string]*v1.Node
	csiNodes    map[string]*storagev1.CSINode
	namespaces  map[string]*v1.Namespace
	volumes     map[string]*v1.PersistentVolume
	claims      map[string]*v1.PersistentVolumeClaim
	pods        map[string]*v1.Pod
	attachments map[string]*storagev1.VolumeAttachment
	verdicts    map[volume.Key]volume.Verdict
	memory      Memory
}

// newWorld starts with the driver, the namespace default, fence=unpublish in
// enforce, and a hold-off that is over.
func newWorld(lines ...string) *world {
	w := &world{
		now: noon, started: noon.Add(-time.Hour), synced: true, policy: DefaultPolicy(testDriver),
		nodes: map[string]*v1.Node{}, csiNodes: map[string]*storagev1.CSINode{}, namespaces: map[string]*v1.Namespace{},
		volumes: map[string]*v1.PersistentVolume{}, claims: map[string]*v1.PersistentVolumeClaim{},
		pods: map[string]*v1.Pod{}, attachments: map[string]*storagev1.VolumeAttachment{},
		verdicts: map[volume.Key]volume.Verdict{},
	}
	w.policy.Mode, w.policy.Fence = ModeEnforce, FenceUnpublish
	w.add("driver", "namespace default")
	w.add(lines...)
	return w
}

// add puts the lines' objects in place of what had their names.
func (w *world) add(lines ...string) *world {
	for _, line := range lines {
		if fields := strings.Fields(line); len(fields) > 0 {
			if err := w.line(fields[0], words(fields[1:])); err != nil {
				panic(fmt.Sprintf("%q: %v", line, err))
			}
		}
	}
	return w
}

type words []string

// flag reports whether the bare word is there.
func (ws words) flag(word string) bool { return slices.Contains(ws, word) }

// values lists what follows key= in every such word.
func (ws words) values(key string) []string {
	var out []string
	for _, word := range ws {
		if value, ok := strings.CutPrefix(word, key+"="); ok {
			out = append(out, value)
		}
	}
	return out
}

func (ws words) value(key, otherwise string) string {
	if values := ws.values(key); len(values) > 0 {
		return values[0]
	}
	return otherwise
}

func (ws words) pairs(key string) map[string]string {
	out := map[string]string{}
	for _, pair := range ws.values(key) {
		k, v, _ := strings.Cut(pair, "=")
		out[k] = strings.ReplaceAll(v, "_", " ")
	}
	return out
}

func (w *world) line(kind string, ws words) error {
	switch kind {
	case "policy":
		return w.setPolicy(ws)
	case "unsynced":
		w.synced = false
	case "started":
		w.started = w.now
	case "driver":
		w.driver = &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: testDriver, UID: "csidriver", Annotations: ws.pairs("annotation")}}
		required := !ws.flag("attach-not-required")
		w.driver.Spec.AttachRequired = &required
		if ws.flag("absent") {
			w.driver = nil
		}
	case "namespace":
		w.namespaces[ws[0]] = &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ws[0], Labels: ws.pairs("label"), Annotations: ws.pairs("annotation")}}
	case "node":
		w.addNode(ws)
	case "volume":
		w.addVolume(ws)
	case "claim":
		w.addClaim(ws)
	case "pod":
		return w.addPod(ws)
	case "attached":
		w.addAttachment(ws)
	case "verdict":
		return w.addVerdict(ws)
	case "remove":
		return w.remove(ws[0], ws[1:])
	default:
		return fmt.Errorf("unknown word %s", kind)
	}
	return nil
}

func (w *world) setPolicy(ws words) error {
	p := &w.policy
	p.Mode, p.Fence = Mode(ws.value("mode", string(p.Mode))), Fence(ws.value("fence", string(p.Fence)))
	p.MaxFailingNodes = intstr.Parse(ws.value("max-failing-nodes", p.MaxFailingNodes.String()))
	if _, err := fmt.Sscan(ws.value("moves-per-minute", fmt.Sprint(p.MovesPerMinute)), &p.MovesPerMinute); err != nil {
		return err
	}
	return p.Validate()
}

func (w *world) addNode(ws words) {
	name := ws[0]
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name), Labels: ws.pairs("label"), Annotations: ws.pairs("annotation")}}
	node.Labels[v1.LabelHostname] = name
	ready := v1.ConditionTrue
	if ws.flag("not-ready") {
		ready = v1.ConditionUnknown
	}
	node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}
	node.Spec.Unschedulable = ws.flag("cordoned")
	if ws.flag("held") {
		node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: volume.HoldKey(testDriver), Effect: v1.TaintEffectNoSchedule})
	}
	for _, taint := range ws.values("taint") {
		key, effect, _ := strings.Cut(taint, ":")
		key, value, _ := strings.Cut(key, "=")
		node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: key, Value: value, Effect: v1.TaintEffect(effect)})
	}
	w.nodes[name] = node
	w.csiNodes[name] = &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if !ws.flag("without-driver") {
		w.csiNodes[name].Spec.Drivers = []storagev1.CSINodeDriver{{Name: "other.example.com", NodeID: name}, {Name: testDriver, NodeID: name}}
	}
}

func onNodes(names []string) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: names}},
	}}}}
}

// addVolume adds a PersistentVolume and a claim of the same name, bound to each
// other. A claim alone may name any volume.
func (w *world) addVolume(ws words) {
	name, ns := ws[0], ws.value("ns", "default")
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, mode := range strings.Split(ws.value("modes", "RWO"), ",") {
		pv.Spec.AccessModes = append(pv.Spec.AccessModes, map[string]v1.PersistentVolumeAccessMode{
			"RWO": v1.ReadWriteOnce, "RWX": v1.ReadWriteMany, "ROX": v1.ReadOnlyMany, "RWOP": v1.ReadWriteOncePod,
		}[mode])
	}
	if nodes := ws.value("nodes", ""); nodes != "" {
		pv.Spec.NodeAffinity = onNodes(strings.Split(nodes, ","))
	}
	switch local := ws.value("local", ""); {
	case local != "":
		pv.Spec.Local = &v1.LocalVolumeSource{Path: "/disk"}
		pv.Spec.NodeAffinity = onNodes([]string{local})
	default:
		pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: ws.value("driver", testDriver), VolumeHandle: ws.value("handle", "h-"+name)}
	}
	if !ws.flag("unclaimed") {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: ns, Name: name, UID: types.UID(ws.value("claim-ref", "claim-"+name))}
	}
	w.volumes[name] = pv
	w.addClaim(ws)
}

func (w *world) addClaim(ws words) {
	name, ns := ws[0], ws.value("ns", "default")
	w.claims[ns+"/"+name] = &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID("claim-" + name)},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: ws.value("names", name)},
	}
}

func (w *world) addPod(ws words) error {
	name, ns := ws[0], ws.value("ns", "default")
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(ws.value("uid", "uid-"+name)), Labels: ws.pairs("label"), Annotations: ws.pairs("annotation")},
		Spec:       v1.PodSpec{NodeName: ws.value("on", ""), NodeSelector: ws.pairs("selector"), Containers: []v1.Container{{Name: "main"}}},
		Status:     v1.PodStatus{Phase: v1.PodPhase(ws.value("phase", "Running"))},
	}
	if owner := ws.value("owner", "StatefulSet/db"); owner != "none" {
		kind, of, _ := strings.Cut(owner, "/")
		yes := true
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: of, UID: types.UID("owner-" + of), Controller: &yes}}
	}
	if stop := ws.value("stop", ""); stop != "" {
		d, err := time.ParseDuration(stop)
		if err != nil {
			return err
		}
		at := metav1.NewTime(w.now.Add(d))
		pod.DeletionTimestamp = &at
	}
	for _, key := range ws.values("tolerates") {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Key: strings.TrimSuffix(key, "*"), Operator: v1.TolerationOpExists})
	}
	for _, topology := range []string{v1.LabelHostname, v1.LabelTopologyZone} {
		if near := ws.pairs("near-" + topology); len(near) > 0 {
			pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
				TopologyKey: topology, LabelSelector: &metav1.LabelSelector{MatchLabels: near},
			}}}}
		}
	}
	w.mount(pod, ws)
	w.pods[ns+"/"+name] = pod
	return nil
}

// mount gives the pod its volumes: uses=a,b:ro for claims, has=KIND[:ro] for
// the rest.
func (w *world) mount(pod *v1.Pod, ws words) {
	put := func(spec string, source v1.VolumeSource) {
		_, mode, _ := strings.Cut(spec, ":")
		name := fmt.Sprintf("vol-%d", len(pod.Spec.Volumes))
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
		c := &pod.Spec.Containers[0]
		if mode == "block" {
			c.VolumeDevices = append(c.VolumeDevices, v1.VolumeDevice{Name: name})
			return
		}
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: name, ReadOnly: mode == "ro"})
	}
	for _, list := range ws.values("uses") {
		for _, spec := range strings.Split(list, ",") {
			claim, mode, _ := strings.Cut(spec, ":")
			put(spec, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: mode == "source-ro"}})
		}
	}
	for _, list := range ws.values("has") {
		for _, spec := range strings.Split(list, ",") {
			kind, mode, _ := strings.Cut(spec, ":")
			put(spec, map[string]v1.VolumeSource{
				"hostPath":    {HostPath: &v1.HostPathVolumeSource{Path: "/etc/localtime"}},
				"nfs":         {NFS: &v1.NFSVolumeSource{Server: "s", Path: "/"}},
				"iscsi":       {ISCSI: &v1.ISCSIVolumeSource{}},
				"cephfs":      {CephFS: &v1.CephFSVolumeSource{}},
				"emptyDir":    {EmptyDir: &v1.EmptyDirVolumeSource{}},
				"configMap":   {ConfigMap: &v1.ConfigMapVolumeSource{}},
				"secret":      {Secret: &v1.SecretVolumeSource{}},
				"projected":   {Projected: &v1.ProjectedVolumeSource{}},
				"downwardAPI": {DownwardAPI: &v1.DownwardAPIVolumeSource{}},
				"inline":      {CSI: &v1.CSIVolumeSource{Driver: "inline.example.com", ReadOnly: ptrIf(mode == "source-ro")}},
			}[kind])
		}
	}
}

func ptrIf(b bool) *bool {
	if !b {
		return nil
	}
	return &b
}

func (w *world) addAttachment(ws words) {
	pv, node := ws[0], ws[1]
	name := "va-" + pv + "-" + node
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(ws.value("uid", "uid-"+name)), Annotations: ws.pairs("annotation")},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: ws.value("driver", testDriver), NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
		Status: storagev1.VolumeAttachmentStatus{Attached: !ws.flag("not-yet")},
	}
	if ws.flag("finalizer") {
		va.Finalizers = []string{"external-attacher/sim-example-com"}
	}
	if ws.flag("fenced") {
		va.Annotations[volume.AnnotationFenced] = "{}"
	}
	w.attachments[name] = va
}

func (w *world) addVerdict(ws words) error {
	key := volume.Key{Handle: volume.Handle("h-" + ws[0]), Node: ws[1]}
	if key.Node == "everywhere" {
		key.Node = ""
	}
	age, err := time.ParseDuration(ws.value("age", "10s"))
	if err != nil {
		return err
	}
	v := volume.Verdict{
		Key: key, State: volume.State(ws.value("state", "Inaccessible")), Confirmed: !ws.flag("unconfirmed"),
		Since: w.now.Add(-age), ConfirmedAt: w.now, Reason: "PathLost", Source: volume.SourcePodStatus,
	}
	if !v.Confirmed {
		v.ConfirmedAt = time.Time{}
	}
	if suspect := ws.value("suspect", ""); suspect != "" {
		d, err := time.ParseDuration(suspect)
		if err != nil {
			return err
		}
		v.SuspectUntil = w.now.Add(d)
	}
	w.verdicts[key] = v
	return nil
}

func (w *world) remove(kind string, ws words) error {
	switch kind {
	case "pod":
		delete(w.pods, ws.value("ns", "default")+"/"+ws[0])
	case "node":
		delete(w.nodes, ws[0])
	case "namespace":
		delete(w.namespaces, ws[0])
	case "claim":
		delete(w.claims, "default/"+ws[0])
	case "volume":
		delete(w.volumes, ws[0])
	case "attached":
		delete(w.attachments, "va-"+ws[0]+"-"+ws[1])
	case "verdict":
		key := volume.Key{Handle: volume.Handle("h-" + ws[0]), Node: ws[1]}
		if key.Node == "everywhere" {
			key.Node = ""
		}
		delete(w.verdicts, key)
	default:
		return fmt.Errorf("cannot remove a %s", kind)
	}
	return nil
}

// snapshot renders the world as Decide sees it.
func (w *world) snapshot() Snapshot {
	s := Snapshot{
		Policy: w.policy, Synced: w.synced, Started: w.started, CSIDriver: w.driver, Nodes: w.nodes, CSINodes: w.csiNodes,
		Namespaces: w.namespaces, Volumes: w.volumes, Memory: w.memory,
		Claims: map[types.NamespacedName]*v1.PersistentVolumeClaim{}, Pods: map[string][]*v1.Pod{},
		Attachments: map[string][]*storagev1.VolumeAttachment{},
	}
	for _, pvc := range w.claims {
		s.Claims[types.NamespacedName{Namespace: pvc.Namespace, Name: pvc.Name}] = pvc
	}
	for _, key := range slices.Sorted(maps.Keys(w.pods)) {
		s.Pods[w.pods[key].Spec.NodeName] = append(s.Pods[w.pods[key].Spec.NodeName], w.pods[key])
	}
	for _, key := range slices.Sorted(maps.Keys(w.attachments)) {
		s.Attachments[w.attachments[key].Spec.NodeName] = append(s.Attachments[w.attachments[key].Spec.NodeName], w.attachments[key])
	}
	for _, v := range w.verdicts {
		s.Verdicts = append(s.Verdicts, v)
	}
	return s
}

// decide decides and keeps the memory for the next time.
func (w *world) decide() Decision {
	d := Decide(w.snapshot(), w.now)
	w.memory = d.Memory
	return d
}

// objects lists the world for a fake clientset.
func (w *world) objects() []runtime.Object {
	var out []runtime.Object
	if w.driver != nil {
		out = append(out, w.driver)
	}
	out = appendAll(out, w.nodes)
	out = appendAll(out, w.csiNodes)
	out = appendAll(out, w.namespaces)
	out = appendAll(out, w.volumes)
	out = appendAll(out, w.claims)
	out = appendAll(out, w.pods)
	return appendAll(out, w.attachments)
}

func appendAll[T runtime.Object](out []runtime.Object, from map[string]T) []runtime.Object {
	for _, key := range slices.Sorted(maps.Keys(from)) {
		out = append(out, from[key])
	}
	return out
}

// answerTo finds the answer on a volume of a node.
func answerTo(d Decision, vol, node string) (Answer, bool) {
	for _, a := range d.Answers {
		if a.Key == (volume.Key{Handle: volume.Handle("h-" + vol), Node: node}) {
			return a, true
		}
	}
	return Answer{}, false
}

// codes lists an answer's reasons.
func codes(a Answer) []Code {
	out := []Code{}
	for _, r := range a.Reasons {
		out = append(out, r.Code)
	}
	return out
}
