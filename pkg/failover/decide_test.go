package failover

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// base is a cluster in which "data" fails from n1 and db-0 moves.
func base() []string {
	return []string{
		"node n1", "node n2", "node n3", "volume data", "pod db-0 on=n1 uses=data",
		"attached data n1", "verdict data n1",
	}
}

// TestRules changes one thing of a cluster in which the pod moves, and names
// the reasons that are given beside the verdict itself.
func TestRules(t *testing.T) {
	for _, tc := range []struct {
		name   string
		lines  []string
		action Action
		codes  []Code
	}{
		{"the base moves", nil, ActionMove, nil},

		// R1: a fence, or somebody who can be asked.
		{"no fence, node Ready", []string{"policy fence=none"}, ActionMove, nil},
		{"no fence, node not Ready", []string{"policy fence=none", "node n1 not-ready"}, ActionRefuse, []Code{CodeNoFence}},
		{"a fence, node not Ready", []string{"node n1 not-ready"}, ActionMove, nil},
		{"network fence, node Ready", []string{"policy fence=network"}, ActionMove, nil},
		{"network fence, node not Ready", []string{"policy fence=network", "node n1 not-ready"}, ActionMove, nil},
		{"out of service, but Ready", []string{"policy fence=none", "node n1 taint=node.kubernetes.io/out-of-service=x:NoExecute"}, ActionMove, nil},
		{"out of service and not Ready", []string{"policy fence=none", "node n1 not-ready taint=node.kubernetes.io/out-of-service=x:NoExecute"}, ActionRefuse, []Code{CodeOutOfService}},
		{"a fence, out of service and not Ready", []string{"node n1 not-ready taint=node.kubernetes.io/out-of-service=x:NoExecute"}, ActionMove, nil},
		{"our own out-of-service taint", []string{"policy fence=none", "node n1 not-ready taint=node.kubernetes.io/out-of-service=ha-sidecar:NoExecute"}, ActionRefuse, []Code{CodeNoFence}},

		// R3: only what is on the node.
		{"a pod elsewhere is no user", []string{"pod db-0 on=n2 uses=data", "remove attached data n1"}, ActionReport, []Code{CodeNotAttached}},
		{"an opted-out pod elsewhere is no veto", []string{"volume data modes=RWX", "pod web on=n2 uses=data annotation=ha-sidecar.io/failover=disabled"}, ActionMove, nil},

		// R4: what nothing fences.
		{"hostPath", []string{"pod db-0 on=n1 uses=data has=hostPath"}, ActionRefuse, []Code{CodeUnsafeVolume}},
		{"hostPath, read-only", []string{"pod db-0 on=n1 uses=data has=hostPath:ro"}, ActionMove, nil},
		{"harmless volumes", []string{"pod db-0 on=n1 uses=data has=emptyDir,configMap,secret,projected,downwardAPI"}, ActionMove, nil},
		{"inline volume", []string{"pod db-0 on=n1 uses=data has=inline"}, ActionRefuse, []Code{CodeUnsafeVolume}},
		{"inline volume, read-only", []string{"pod db-0 on=n1 uses=data has=inline:source-ro"}, ActionMove, nil},
		{"nfs", []string{"pod db-0 on=n1 uses=data has=nfs"}, ActionRefuse, []Code{CodeUnsafeVolume}},
		{"a kind nobody lists", []string{"pod db-0 on=n1 uses=data has=cephfs"}, ActionRefuse, []Code{CodeUnsafeVolume}},
		{"another driver", []string{"volume b driver=b.example.com", "pod db-0 on=n1 uses=data,b"}, ActionRefuse, []Code{CodeUnsafeVolume}},
		{"another driver, read-only mount", []string{"volume b driver=b.example.com", "pod db-0 on=n1 uses=data,b:ro"}, ActionMove, nil},
		{"another driver, read-only source", []string{"volume b driver=b.example.com", "pod db-0 on=n1 uses=data,b:source-ro"}, ActionMove, nil},
		{"another driver, for readers only", []string{"volume b driver=b.example.com modes=ROX", "pod db-0 on=n1 uses=data,b"}, ActionMove, nil},
		{"another driver, as a device", []string{"volume b driver=b.example.com", "pod db-0 on=n1 uses=data,b:block"}, ActionRefuse, []Code{CodeUnsafeVolume}},
		{"another driver, allowed", []string{"volume b driver=b.example.com", "pod db-0 on=n1 uses=data,b annotation=ha-sidecar.io/allow-unsafe-volumes=true"}, ActionMove, []Code{CodeUnsafeAllowed}},
		{"allowed by a word that is not true", []string{"pod db-0 on=n1 uses=data has=hostPath annotation=ha-sidecar.io/allow-unsafe-volumes=yes"}, ActionRefuse, []Code{CodeUnsafeVolume}},
		{"local volume", []string{"volume disk local=n1", "pod db-0 on=n1 uses=data,disk"}, ActionRefuse, []Code{CodeUnsafeVolume, CodeNowhereToGo}},
		{"local volume, allowed, has nowhere to go", []string{"volume disk local=n1", "pod db-0 on=n1 uses=data,disk annotation=ha-sidecar.io/allow-unsafe-volumes=true"}, ActionRefuse, []Code{CodeUnsafeAllowed, CodeNowhereToGo}},
		{"our own block device is fenced", []string{"pod db-0 on=n1 uses=data:block"}, ActionMove, nil},

		// R5.
		{"attachRequired=false", []string{"driver attach-not-required"}, ActionRefuse, []Code{CodeAttachNotRequired}},

		// R6: pods that are left alone.
		{"DaemonSet", []string{"pod db-0 on=n1 uses=data owner=DaemonSet/d"}, ActionRefuse, []Code{CodeDaemonSet}},
		{"mirror pod", []string{"pod db-0 on=n1 uses=data annotation=kubernetes.io/config.mirror=x"}, ActionRefuse, []Code{CodeMirror}},
		{"owned by its node", []string{"pod db-0 on=n1 uses=data owner=Node/n1"}, ActionRefuse, []Code{CodeMirror}},
		{"ownerless", []string{"pod db-0 on=n1 uses=data owner=none"}, ActionRefuse, []Code{CodeOwnerless}},
		{"ownerless, allowed", []string{"pod db-0 on=n1 uses=data owner=none annotation=ha-sidecar.io/allow-ownerless=true"}, ActionMove, []Code{CodeOwnerlessAllowed}},
		{"not started", []string{"pod db-0 on=n1 uses=data phase=Pending"}, ActionRefuse, []Code{CodeNotStarted}},
		{"a finished pod is ignored", []string{"pod job on=n1 uses=data phase=Succeeded owner=none"}, ActionMove, nil},
		{"only a finished pod", []string{"pod db-0 on=n1 uses=data phase=Failed"}, ActionWait, []Code{CodeDetaching}},
		{"only a finished pod, and no fence", []string{"policy fence=none", "pod db-0 on=n1 uses=data phase=Failed"}, ActionReport, []Code{CodeNoUser}},
		{"being stopped", []string{"pod db-0 on=n1 uses=data stop=20s"}, ActionWait, []Code{CodeBeingStopped}},
		{"being stopped, the kubelet stuck", []string{"pod db-0 on=n1 uses=data stop=-31s"}, ActionMove, []Code{CodeStopStuck}},
		{"being stopped, stuck, no fence", []string{"policy fence=none", "pod db-0 on=n1 uses=data stop=-31s"}, ActionRefuse, []Code{CodeCannotStop}},
		{"being stopped, node not Ready", []string{"node n1 not-ready", "pod db-0 on=n1 uses=data stop=20s"}, ActionMove, nil},
		{"bound to its node", []string{"pod db-0 on=n1 uses=data selector=kubernetes.io/hostname=n1"}, ActionRefuse, []Code{CodeNowhereToGo}},
		{"volume bound to the node", []string{"volume data nodes=n1"}, ActionRefuse, []Code{CodeNowhereToGo}},
		{"podAffinity to a pod on the node", []string{"pod web on=n1 label=app=web", "pod db-0 on=n1 uses=data near-kubernetes.io/hostname=app=web"}, ActionRefuse, []Code{CodePodAffinity}},
		{"podAffinity to a pod that is gone", []string{"pod db-0 on=n1 uses=data near-kubernetes.io/hostname=app=web"}, ActionMove, nil},
		{"podAffinity within the zone", []string{
			"node n1 label=topology.kubernetes.io/zone=a", "node n2 label=topology.kubernetes.io/zone=b", "node n3 label=topology.kubernetes.io/zone=a",
			"pod db-0 on=n1 uses=data near-topology.kubernetes.io/zone=app=web",
		}, ActionMove, nil},
		{"podAffinity, alone in the zone", []string{
			"node n1 label=topology.kubernetes.io/zone=a", "node n2 label=topology.kubernetes.io/zone=b", "node n3 label=topology.kubernetes.io/zone=b",
			"pod db-0 on=n1 uses=data near-topology.kubernetes.io/zone=app=web",
		}, ActionRefuse, []Code{CodeNowhereToGo}},

		// Scope.
		{"opted out by annotation", []string{"pod db-0 on=n1 uses=data annotation=ha-sidecar.io/failover=disabled"}, ActionRefuse, []Code{CodeOptedOut}},
		{"opted out by label", []string{"pod db-0 on=n1 uses=data label=ha-sidecar.io/failover=disabled"}, ActionRefuse, []Code{CodeOptedOut}},
		{"annotation over label", []string{"pod db-0 on=n1 uses=data label=ha-sidecar.io/failover=disabled annotation=ha-sidecar.io/failover=enabled"}, ActionMove, nil},
		{"opted out by namespace", []string{"namespace default label=ha-sidecar.io/failover=disabled"}, ActionRefuse, []Code{CodeOptedOut}},
		{"pod over namespace", []string{"namespace default label=ha-sidecar.io/failover=disabled", "pod db-0 on=n1 uses=data label=ha-sidecar.io/failover=enabled"}, ActionMove, nil},
		{"a word that is neither", []string{"pod db-0 on=n1 uses=data label=ha-sidecar.io/failover=no"}, ActionRefuse, []Code{CodeScopeInvalid}},

		// Pauses.
		{"driver paused", []string{"driver annotation=ha-sidecar.io/paused=upgrade"}, ActionRefuse, []Code{CodePaused}},
		{"node paused", []string{"node n1 annotation=ha-sidecar.io/paused=disk_swap"}, ActionRefuse, []Code{CodePaused}},
		{"another node paused", []string{"node n2 annotation=ha-sidecar.io/paused=disk_swap"}, ActionMove, nil},

		// R8.
		{"one other node is enough", []string{"node n2 cordoned"}, ActionMove, nil},
		{"all others cordoned", []string{"node n2 cordoned", "node n3 cordoned"}, ActionRefuse, []Code{CodeNowhereToGo}},
		{"all others without the driver", []string{"node n2 without-driver", "node n3 without-driver", "policy max-failing-nodes=100%"}, ActionRefuse, []Code{CodeNowhereToGo}},
		{"all others tainted", []string{"node n2 taint=x=y:NoSchedule", "node n3 taint=x=y:NoExecute"}, ActionRefuse, []Code{CodeNowhereToGo}},
		{"a taint that only advises", []string{"node n2 taint=x=y:PreferNoSchedule", "node n3 cordoned"}, ActionMove, nil},
		{"a held node, though the pod tolerates all", []string{"node n2 held", "node n3 cordoned", "policy max-failing-nodes=100%", "pod db-0 on=n1 uses=data tolerates=*"}, ActionRefuse, []Code{CodeNowhereToGo}},
		{"suspect elsewhere", []string{"node n3 cordoned", "verdict data n2 suspect=5m", "policy max-failing-nodes=100%"}, ActionRefuse, []Code{CodeNowhereToGo}},
		{"another volume suspect elsewhere", []string{"node n3 cordoned", "verdict b n2 suspect=5m", "policy max-failing-nodes=100%"}, ActionMove, nil},

		// R9.
		{"inaccessible everywhere as well", []string{"verdict data everywhere"}, ActionRefuse, []Code{CodeVolumeUnusable}},
		{"perhaps inaccessible everywhere", []string{"verdict data everywhere unconfirmed"}, ActionWait, []Code{CodeMaybeEverywhere}},
		{"data lost as well", []string{"verdict data everywhere state=DataLoss"}, ActionRefuse, []Code{CodeVolumeUnusable}},
		{"degraded as well", []string{"verdict data everywhere state=Degraded"}, ActionMove, nil},
		{"healthy from the controller", []string{"verdict data everywhere state=Healthy"}, ActionMove, nil},

		// Whose volume it is.
		{"claim of an earlier life", []string{"volume data claim-ref=claim-old"}, ActionRefuse, []Code{CodeClaimMismatch}},
		{"claim names another volume", []string{"volume data2", "volume data names=data2"}, ActionRefuse, []Code{CodeClaimMismatch, CodeDetaching}},
		{"a stranger's claim names the volume", []string{
			"namespace shy annotation=ha-sidecar.io/failover=disabled", "claim grab ns=shy names=data", "pod grab ns=shy on=n1 uses=grab phase=Pending",
		}, ActionMove, nil},
		{"a stranger's claim of the same name", []string{
			"namespace shy annotation=ha-sidecar.io/failover=disabled", "claim data ns=shy", "pod grab ns=shy on=n1 uses=data phase=Pending",
		}, ActionMove, nil},
		{"a pod of the closure uses a claim that grabs", []string{"claim grab names=data", "pod db-0 on=n1 uses=data,grab"}, ActionWait, []Code{CodeClaimMissing}},
		{"unclaimed", []string{"volume data unclaimed"}, ActionRefuse, []Code{CodeClaimMismatch}},
		{"two volumes with one handle", []string{"volume twin handle=h-data"}, ActionRefuse, []Code{CodeAmbiguousHandle, CodeAttachmentMissing}},

		{"a volume of the closure has a twin", []string{
			"volume logs", "volume twin handle=h-logs", "pod db-0 on=n1 uses=data,logs", "attached logs n1",
		}, ActionRefuse, []Code{CodeAmbiguousHandle, CodeAttachmentMissing}},
		{"a pod elsewhere uses the twin", []string{
			"volume logs", "volume twin handle=h-logs", "pod db-0 on=n1 uses=data,logs", "attached logs n1", "pod web on=n2 uses=twin",
		}, ActionRefuse, []Code{CodeAmbiguousHandle, CodeAttachmentMissing}},
		{"an opted-out pod uses the twin", []string{
			"volume logs", "volume twin handle=h-logs", "pod db-0 on=n1 uses=data,logs", "attached logs n1",
			"pod web on=n1 uses=twin annotation=ha-sidecar.io/failover=disabled", "attached twin n1",
		}, ActionRefuse, []Code{CodeAmbiguousHandle, CodeOptedOut}},

		// Not knowing is never a reason to delete.
		{"caches not synced", []string{"unsynced"}, ActionWait, []Code{CodeNotSynced}},
		{"no CSIDriver", []string{"driver absent"}, ActionWait, []Code{CodeDriverMissing}},
		{"no Node", []string{"remove node n1"}, ActionWait, []Code{CodeNodeMissing}},
		{"no PersistentVolume", []string{"remove volume data"}, ActionWait, []Code{CodeVolumeMissing}},
		{"no claim", []string{"remove claim data"}, ActionWait, []Code{CodeClaimMissing, CodeDetaching}},
		{"no claim of the pod's other volume", []string{"pod db-0 on=n1 uses=data,unheard"}, ActionWait, []Code{CodeClaimMissing}},
		{"no Namespace", []string{"remove namespace default"}, ActionWait, []Code{CodeNamespaceMissing}},
		{"no attachment", []string{"remove attached data n1"}, ActionWait, []Code{CodeAttachmentMissing}},
		{"an attachment of another driver", []string{"attached data n1 driver=other.example.com"}, ActionWait, []Code{CodeAttachmentMissing}},
		{"never attached", []string{"attached data n1 not-yet"}, ActionWait, []Code{CodeAttachmentMissing}},
		{"perhaps attached", []string{"attached data n1 not-yet finalizer"}, ActionMove, nil},
		{"being fenced", []string{"attached data n1 fenced"}, ActionWait, []Code{CodeInProgress}},

		// Verdicts.
		{"unconfirmed", []string{"verdict data n1 unconfirmed"}, ActionWait, []Code{CodeUnconfirmed}},
		{"mode off", []string{"policy mode=off"}, ActionReport, []Code{CodeModeOff}},
		{"mode observe decides the same", []string{"policy mode=observe"}, ActionMove, nil},
		{"just started", []string{"started"}, ActionWait, []Code{CodeHoldOff}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(base()...).add(tc.lines...)
			a, ok := answerTo(w.decide(), "data", "n1")
			if !ok {
				t.Fatal("no answer")
			}
			got := slices.DeleteFunc(codes(a), func(c Code) bool { return c == CodeConfirmedInaccessible })
			if a.Action != tc.action {
				t.Errorf("action %s, want %s: %+v", a.Action, tc.action, a.Reasons)
			}
			if diff := cmp.Diff(tc.codes, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
			for _, r := range a.Reasons {
				if r.Message == "" {
					t.Errorf("%s has nothing to say", r.Code)
				}
			}
		})
	}
}

// TestPodsOfAnExclusiveVolumeGoTogether: each of the two could go somewhere,
// but to no node both.
func TestPodsOfAnExclusiveVolumeGoTogether(t *testing.T) {
	for modes, want := range map[string]Action{"RWO": ActionRefuse, "RWX": ActionMove} {
		w := newWorld("node n1", "node n2", "node n3", "volume shared modes="+modes,
			"volume a nodes=n1,n2", "volume b nodes=n1,n3", "pod a-0 on=n1 uses=shared,a", "pod b-0 on=n1 uses=shared,b",
			"attached shared n1", "attached a n1", "attached b n1", "verdict shared n1")
		a, _ := answerTo(w.decide(), "shared", "n1")
		if a.Action != want || want == ActionRefuse && a.Primary().Code != CodeNowhereToGo {
			t.Errorf("%s: %s %v", modes, a.Action, codes(a))
		}
	}
}

// TestNetworkFenceTakesTheWholeNode: it cuts off all that the driver has there,
// so one pod that must stay vetoes all of it; but only on a failed node.
func TestNetworkFenceTakesTheWholeNode(t *testing.T) {
	w := newWorld(append(base(), "policy fence=network", "volume b", "attached b n1", "pod b-0 on=n1 uses=b", "pod other on=n1 has=emptyDir")...)
	if a, _ := answerTo(w.decide(), "data", "n1"); a.Action != ActionMove || len(a.Closure.Pods) != 1 {
		t.Fatalf("Ready: %s %+v", a.Action, a.Closure)
	}
	w.add("node n1 not-ready")
	if a, _ := answerTo(w.decide(), "data", "n1"); a.Action != ActionMove || len(a.Closure.Pods) != 2 || len(a.Closure.Volumes) != 2 {
		t.Fatalf("not Ready: %s %+v", a.Action, a.Closure)
	}
	w.add("pod b-0 on=n1 uses=b owner=none")
	if a, _ := answerTo(w.decide(), "data", "n1"); a.Action != ActionRefuse || a.Primary().Code != CodeOwnerless {
		t.Fatalf("vetoed: %s %v", a.Action, codes(a))
	}
}

// TestStrayPod: a pod filed under another node than its own is nobody's.
func TestStrayPod(t *testing.T) {
	w := newWorld(append(base(), "volume data modes=RWX", "pod web on=n2 uses=data")...)
	s := w.snapshot()
	s.Pods["n1"] = append(s.Pods["n1"], w.pods["default/web"])
	if a, _ := answerTo(Decide(s, w.now), "data", "n1"); len(a.Closure.Pods) != 1 {
		t.Errorf("closure %+v", a.Closure)
	}
}
