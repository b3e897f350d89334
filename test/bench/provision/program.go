package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/process"
	"github.com/ha-sidecar/ha-sidecar/test/bench/track"
	"github.com/ha-sidecar/ha-sidecar/test/bench/usage"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// running is a side that provisions.
type running interface {
	// memory is that of the side's own process, nothing where it has none.
	memory() (usage.Memory, error)
	// stop ends it; the error is also that of having ended before, or of failing at
	// what it had to do.
	stop() error
}

// start starts a side and waits until it works.
func (w *stage) start(ctx context.Context, s side, flags []string) (running, error) {
	if s.key == floor.key {
		return startFloor(ctx, w.cluster.RESTConfig())
	}
	return w.startProgram(ctx, s, flags)
}

// startProgram starts a side of bin/.
func (w *stage) startProgram(ctx context.Context, s side, flags []string) (*program, error) {
	// The lease that an earlier run has left would have to run out first.
	if err := w.admin.CoordinationV1().Leases(leaseNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return nil, fmt.Errorf("deleting old leases: %w", err)
	}
	path, err := rig.Program(s.name)
	if err != nil {
		return nil, err
	}
	endpoint, err := freeEndpoint(ctx)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(w.dir, "logs", s.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	args := append([]string{"--csi-address=" + w.socket(), "--kubeconfig=" + w.cluster.Kubeconfig(), "--http-endpoint=" + endpoint}, s.flags...)
	p, err := process.Start(process.Config{Path: path, Args: append(args, flags...), Env: s.env, Log: log})
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	r := &program{Process: p, log: log, url: "http://" + endpoint}
	if err := r.answers(ctx, r.url+s.ready); err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", s.title, err), r.stop())
	}
	return r, nil
}

// program is a side of bin/.
type program struct {
	*process.Process
	log *os.File
	// url is that of its HTTP endpoint.
	url string
}

const (
	readyBound = time.Minute
	stopBound  = 30 * time.Second
)

// answers waits until a path of its HTTP endpoint does.
func (p *program) answers(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyBound, fmt.Errorf("%s does not answer after %v", url, readyBound))
	defer cancel()
	for {
		select {
		case <-p.Done():
			return p.Err()
		default:
		}
		if get(ctx, url, io.Discard) == nil {
			return nil
		}
		if err := world.Pause(ctx, look); err != nil {
			return fmt.Errorf("%w; it has said: %s", err, p.Tail())
		}
	}
}

// get copies what a path answers.
func get(ctx context.Context, url string, to io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, errors.New(response.Status))
	}
	return errors.Join(err, response.Body.Close())
}

func (p *program) memory() (usage.Memory, error) { return usage.ReadMemory(p.Pid()) }

func (p *program) stop() error {
	early := p.Err()
	return errors.Join(early, p.Stop(stopBound), p.log.Close())
}

// freeEndpoint is a port of the loopback interface that nobody has.
func freeEndpoint(ctx context.Context) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// warmBound is far above what a first volume takes.
const warmBound = 2 * time.Minute

// warm has a first claim provisioned and deleted: the caches of the side are warm
// then, its connections made, and it leads if it has to.
func (w *stage) warm(ctx context.Context, s side) error {
	ctx, cancel := context.WithTimeoutCause(ctx, warmBound, fmt.Errorf("the first volume of %s took longer than %v", s.title, warmBound))
	defer cancel()
	claims, err := trackClaims(ctx, w.admin)
	if err != nil {
		return err
	}
	defer claims.Stop()
	volumes, err := trackVolumes(ctx, w.admin)
	if err != nil {
		return err
	}
	defer volumes.Stop()
	b := w.newBatch(1)
	if err := b.create(ctx, 0); err != nil {
		return err
	}
	if _, err := claims.Await(ctx, b.names, bound); err != nil {
		return err
	}
	if err := b.delete(ctx, 0); err != nil {
		return err
	}
	if _, err := volumes.Await(ctx, b.names, track.Gone); err != nil {
		return err
	}
	return errors.Join(w.driver.AwaitEmpty(ctx), w.rest(ctx, s))
}
