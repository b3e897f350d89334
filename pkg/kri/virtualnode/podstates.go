package virtualnode

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
)

// podStates lists all pods of the node, those without a worker as leftovers.
func (a *Agent) podStates() []nodectl.Pod {
	out := []nodectl.Pod{}
	seen := map[types.UID]bool{}
	for _, st := range a.pods.snapshot() {
		seen[st.pod.UID] = true
		out = append(out, nodectl.Pod{
			UID: string(st.pod.UID), Namespace: st.pod.Namespace, Name: st.pod.Name,
			Phase: string(st.phase), Gone: st.gone, Containers: a.containerStates(st.pod.UID),
		})
	}
	for _, uid := range a.runtime.Pods() {
		if seen[uid] {
			continue
		}
		pod := nodectl.Pod{UID: string(uid), Phase: "leftover", Containers: a.containerStates(uid)}
		if known := a.runs.known(uid); known != nil {
			pod.Namespace, pod.Name = known.Namespace, known.Name
		}
		out = append(out, pod)
	}
	slices.SortFunc(out, func(x, y nodectl.Pod) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID))
	})
	return out
}

func (a *Agent) containerStates(uid types.UID) []nodectl.Container {
	out := []nodectl.Container{}
	for _, rec := range a.runtime.Records(uid) {
		st := containerStatus(rec)
		c := nodectl.Container{
			Name: st.Name, State: string(st.State), Restarts: st.RestartCount, ExitCode: st.ExitCode, Log: a.runtime.LogPath(rec.ID()),
		}
		if !rec.Exited {
			c.PID = rec.PID
		}
		out = append(out, c)
	}
	return out
}
