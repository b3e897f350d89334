package csiclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// ErrNoPublished: the driver does not tell where its volumes are published.
var ErrNoPublished = errors.New("the driver does not tell where volumes are published: it lacks LIST_VOLUMES_PUBLISHED_NODES with LIST_VOLUMES or GET_VOLUME")

// TellsPublished reports whether Published can be answered.
func (c Capabilities) TellsPublished() bool {
	return c.Has(csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES) &&
		(c.Has(csi.ControllerServiceCapability_RPC_LIST_VOLUMES) || c.Has(csi.ControllerServiceCapability_RPC_GET_VOLUME))
}

// Published asks the driver once on which nodes volumes are published, and
// returns node IDs by volume. Where the driver lists, these are all that it
// lists; where each volume has to be asked for, handles alone. A volume without
// a status, or one that the driver does not know, is left out: nothing is known
// of it, as opposed to one with an empty list.
//
// A list is read page by page with a deadline each. With an error there is no
// answer at all: part of a list would make the rest look detached.
func (c *Client) Published(ctx context.Context, handles []volume.Handle) (map[volume.Handle][]string, error) {
	s, err := c.acquire("Published")
	if err != nil {
		return nil, err
	}
	defer s.release()
	p := &published{nodes: map[volume.Handle][]string{}}
	switch {
	case !s.caps.TellsPublished():
		return nil, ErrNoPublished
	case s.caps.Has(csi.ControllerServiceCapability_RPC_LIST_VOLUMES):
		err = c.listPublished(ctx, s, p)
	default:
		err = c.getPublished(ctx, s, handles, p)
	}
	if err != nil {
		return nil, fmt.Errorf("asking where volumes are published: %w", err)
	}
	return p.nodes, nil
}

// published gathers one answer.
type published struct {
	mu    sync.Mutex
	nodes map[volume.Handle][]string
}

// add merges entries of one volume: it is published wherever any of them says.
func (p *published) add(handle volume.Handle, nodes []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Concat(p.nodes[handle], nodes)
	slices.Sort(all)
	p.nodes[handle] = slices.Compact(all)
}

func (p *published) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.nodes)
}

func (c *Client) listPublished(ctx context.Context, s *session, p *published) error {
	get := func(ctx context.Context, token string, maxEntries int32) (string, error) {
		resp, err := s.controller.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: maxEntries, StartingToken: token}, c.lenient())
		if err != nil {
			return "", err
		}
		for _, entry := range resp.GetEntries() {
			id := entry.GetVolume().GetVolumeId()
			if reason := unusableEntry(id, entry); reason != "" {
				c.metrics.skipped.WithLabelValues(reason).Inc()
				continue
			}
			p.add(volume.Handle(id), entry.GetStatus().GetPublishedNodeIds())
		}
		return resp.GetNextToken(), nil
	}
	return supported(c.pages(ctx, get, p.reset), "LIST_VOLUMES", "ListVolumes")
}

// unusableEntry tells why nothing can be taken from an entry; "" where it can.
func unusableEntry(id string, entry *csi.ListVolumesResponse_Entry) string {
	switch {
	case entry.GetVolume() == nil:
		return skipNoVolume
	case id == "":
		return skipEmptyID
	case garbled(id):
		return skipInvalidID
	case entry.GetStatus() == nil:
		return skipNoStatus
	default:
		return ""
	}
}

func (c *Client) getPublished(ctx context.Context, s *session, handles []volume.Handle, p *published) error {
	ask := func(ctx context.Context, h volume.Handle) error {
		resp, err := s.controller.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: string(h)}, c.lenient())
		switch {
		case err != nil:
			return err
		case resp.GetVolume().GetVolumeId() != string(h):
			c.metrics.skipped.WithLabelValues(skipOtherVolume).Inc()
			return nil
		case resp.GetStatus() == nil:
			c.metrics.skipped.WithLabelValues(skipNoStatus).Inc()
			return nil
		}
		p.add(h, resp.GetStatus().GetPublishedNodeIds())
		return nil
	}
	return c.each(ctx, handles, ask, func(err error) error {
		return dialectProblem("GET_VOLUME", "ControllerGetVolume", err)
	})
}
