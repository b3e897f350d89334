package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// bound is how long the whole demonstration may take.
const bound = 5 * time.Minute

// The flags that the demonstration sets, to show in a minute what takes longer
// with the defaults.
var (
	values = []string{
		"failover.mode=enforce", "failover.fence=unpublish", "failover.evictDeadline=10s", "failover.evictGraceMax=5s",
		"failover.holdOff=1s", "health.confirmAfter=2s",
	}
	sidecarArgs = []string{"--suspect-for=5s"}
	nodeArgs    = []string{"--volume-health-interval=1s", "--lease-renew-interval=2s"}
	clusterArgs = []string{"kube-controller-manager=--attach-detach-reconcile-sync-period=5s"}
)

// Result is demo-out/timeline.json.
type Result struct {
	Started time.Time `json:"started"`
	Scenes  []*Scene  `json:"scenes"`
	// Bystanders that did not move, and what was said of them.
	Bystanders []Bystander `json:"bystanders"`
	Lines      int         `json:"lines"`
	// Provisioned is how many seconds it took from each claim to its being bound.
	Provisioned map[string]float64 `json:"provisionedSeconds"`
	// Removed is how many seconds it took from the deletion of the database and its
	// claim until its volume was gone at the driver; none if all was kept.
	Removed float64 `json:"removedSeconds,omitempty"`
	OK      bool    `json:"ok"`
	Error   string  `json:"error,omitempty"`
}

func run(ctx context.Context, out string, keep bool) (err error) {
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	result := &Result{Started: time.Now()}
	explain()
	// Unix sockets have short names: the world lives in a short directory.
	dir, err := os.MkdirTemp("", "ha-demo-")
	if err != nil {
		return err
	}
	world, err := rig.Start(ctx, rig.Config{
		Dir: dir, Nodes: 3, Replicas: 2, Values: values, SidecarArgs: sidecarArgs, NodeArgs: nodeArgs, ClusterArgs: clusterArgs,
		AuditLog: filepath.Join(dir, "audit.log"), Log: progress{},
	})
	if err != nil {
		return fmt.Errorf("%w; the logs are in %s", err, filepath.Join(dir, "logs"))
	}
	actors, err := play(ctx, world, keep, result)
	if keep && err == nil {
		waitForInterrupt(ctx, actors, dir)
	}
	err = errors.Join(err, world.Stop())
	result.OK = err == nil
	if err != nil {
		result.Error = err.Error()
	}
	if err := errors.Join(err, save(out, dir, result)); err != nil {
		return err
	}
	fmt.Printf("\nAll of it held. The timeline is in %s.\n", filepath.Join(out, "timeline.json"))
	return nil
}

// play runs the scenes in order and checks the file. Unless all is to be kept,
// it removes the database at the end.
func play(ctx context.Context, world *rig.Rig, keep bool, result *Result) (*cast, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the demonstration took longer than %v", bound))
	defer cancel()
	actors, err := enter(ctx, world)
	if err != nil {
		return nil, err
	}
	result.Provisioned = actors.took
	show := func(scene func(context.Context, *cast) (*Scene, error)) error {
		s, err := scene(ctx, actors)
		if s != nil {
			result.Scenes = append(result.Scenes, s)
		}
		return err
	}
	if err := show(graceful); err != nil {
		return nil, err
	}
	if result.Bystanders, err = actors.checkBystanders(ctx); err != nil {
		return nil, err
	}
	if err := actors.heal(ctx); err != nil {
		return nil, err
	}
	if err := show(fenced); err != nil {
		return nil, err
	}
	lines, err := world.CheckVolume(database, actors.uids...)
	if err != nil {
		return nil, fmt.Errorf("checking the database's file: %w", err)
	}
	result.Lines = len(lines)
	fmt.Printf("\nThe database's file: %d lines, by the first pod and the %d that took its place, one after the other.\n"+
		"No line that was synced is lost, none is doubled, no two pods wrote at once.\n", len(lines), len(actors.uids)-1)
	if !keep {
		result.Removed, err = actors.remove(ctx)
	}
	return actors, err
}

// save writes the result, and the logs beside it.
func save(out, dir string, result *Result) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	content, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "timeline.json"), append(content, '\n'), 0o600); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(out, "logs"), os.DirFS(filepath.Join(dir, "logs"))); err != nil {
		return err
	}
	audit, err := os.ReadFile(filepath.Join(dir, "audit.log"))
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(out, "audit.log"), audit, 0o600), os.RemoveAll(dir))
}

func waitForInterrupt(ctx context.Context, actors *cast, dir string) {
	world := actors.world
	node, endpoint := firstNode, world.Sidecars[0].Endpoint
	if pod := world.Pod(rig.Namespace, database+"-0"); pod != nil {
		node = pod.Spec.NodeName
	}
	if leader := world.Leader(); leader != nil {
		endpoint = leader.Endpoint
	}
	path := fmt.Sprintf("%s %s", actors.id(database), node)
	fmt.Printf(`
The cluster stays up. Look at it, from here, with
  export KUBECONFIG=%[1]s
  bin/localcluster kubectl get pods -A -o wide
  bin/localcluster kubectl get volumeattachments,events
  curl -s http://%[2]s/metrics | grep ha_sidecar
  bin/virtualnode ctl --control=%[3]s status
  tail -f %[4]s/*.log
Move the database once more, and bring the path back:
  bin/simdriver ctl --state-dir=%[5]s fail-path %[6]s
  bin/simdriver ctl --state-dir=%[5]s heal-path %[6]s
Or delete the database and its claim, which deletes the volume at the driver:
  bin/localcluster kubectl delete statefulset/%[8]s pvc/%[8]s
Ctrl-C, or kill -INT %[7]d, ends everything and writes the results.
`, world.Cluster.Kubeconfig(), endpoint, filepath.Join(dir, node+"-agent.sock"), filepath.Join(dir, "logs"),
		world.StateDir(), path, os.Getpid(), database)
	<-ctx.Done()
}
