package provision

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/csiprovisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/journal"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// explained is /debug/provisioner.
type explained struct {
	Leads   bool `json:"leads"`
	Content struct {
		Journal journal.Status            `json:"journal"`
		Begun   []csiprovisioner.Progress `json:"begun"`
		Pending []provisioner.Pending     `json:"pending"`
	} `json:"content"`
}

// explain reads the page of the leader, about one claim.
func (s *scene) explain(claim *v1.PersistentVolumeClaim) (page explained) {
	s.t.Helper()
	leader := s.Leader()
	if leader == nil {
		return page
	}
	body, err := leader.Body("/debug/provisioner?claim=" + claim.Namespace + "/" + claim.Name)
	s.must(err)
	s.must(json.Unmarshal([]byte(body), &page))
	if strings.Contains(body, canary) {
		s.t.Errorf("a secret is on the page:\n%s", body)
	}
	return page
}

// A volume that may exist is on the page with its last failure, and the journal
// with its record, until it is settled.
func TestThePageTellsWhatIsInDoubt(t *testing.T) {
	s := inWorld(t)
	s.class(later, with(s.secret(s.name)))
	claim := s.claim("")
	f := s.failCreate(claim, simctl.Fault{Code: codes.Unavailable, Effect: true})
	s.selectNode(claim, "node-1")
	f.hits(2)
	var page explained
	s.await("the page tells of it", func() bool {
		page = s.explain(claim)
		return len(page.Content.Begun) == 1 && len(page.Content.Pending) == 1 && page.Content.Pending[0].Failures > 1
	})
	if j := page.Content.Journal; !page.Leads || !j.Opened || j.Epoch < 1 || j.Records < 1 || j.ConfigMaps < 1 || j.Namespace != rig.SidecarNamespace {
		t.Errorf("leads: %v, journal: %+v", page.Leads, j)
	}
	begun := page.Content.Begun[0]
	if begun.UID != claim.UID || begun.PersistentVolume != pvName(claim) || begun.State != csiprovisioner.StateInDoubt && begun.State != csiprovisioner.StateSentAgain || begun.Since.IsZero() {
		t.Errorf("begun: %+v", begun)
	}
	pending := page.Content.Pending[0]
	if pending.UID != claim.UID || pending.State != provisioner.PendingBackground || !strings.Contains(pending.LastFailure, "Unavailable") {
		t.Errorf("pending: %+v", pending)
	}
	f.clear()
	s.bound(claim)
	s.await("it is on the page no more", func() bool {
		page = s.explain(claim)
		return len(page.Content.Begun)+len(page.Content.Pending) == 0
	})
	s.deleteClaim(claim)
	s.gone(claim)
}

// A record of another version stays in the cluster, in whatever form; it is
// counted, the ConfigMap says so by an event, and the claim is left alone.
func TestARecordOfAnotherVersionStays(t *testing.T) {
	w := ownWorld(t, rig.Config{Replicas: 1})
	s := newScene(t, w)
	s.class()
	first := s.claim("-first")
	s.bound(first)
	sidecar := s.Sidecars[0]
	s.must(sidecar.Stop())
	claim := s.claim("")
	pages := s.Client.CoreV1().ConfigMaps(rig.SidecarNamespace)
	list, err := pages.List(s.ctx, metav1.ListOptions{LabelSelector: journal.LabelJournal})
	s.must(err)
	if len(list.Items) != 1 {
		t.Fatalf("%d ConfigMaps of the journal, want one", len(list.Items))
	}
	page := &list.Items[0]
	const newer = `{"format":2}`
	page.Data = map[string]string{"of-a-newer-version": newer}
	uid, odd := string(claim.UID), []byte{0xff, 0x00, 0x01}
	page.BinaryData = map[string][]byte{uid: odd}
	_, err = pages.Update(s.ctx, page, metav1.UpdateOptions{})
	s.must(err)

	sidecar, err = s.StartSidecar(s.ctx)
	s.must(err)
	s.told(page.Name, provisioner.ReasonJournalUnreadable, "cannot read, and that are kept: 2, the first")
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "a record of claim "+claim.Namespace+"/"+claim.Name+" that this version cannot read")
	other := s.claim("-other")
	s.bound(other)
	s.never("CreateVolume", claim)
	body, err := sidecar.Body("/metrics")
	s.must(err)
	if !strings.Contains(body, "\nha_sidecar_provisioner_journal_unreadable_records 2\n") {
		t.Error("the metric does not count them")
	}
	kept, err := pages.Get(s.ctx, page.Name, metav1.GetOptions{})
	s.must(err)
	if kept.Data["of-a-newer-version"] != newer || !slices.Equal(kept.BinaryData[uid], odd) || kept.ResourceVersion == page.ResourceVersion {
		t.Errorf("the ConfigMap has %v and %v", kept.Data, kept.BinaryData)
	}
	// What its event advises.
	s.must(sidecar.Stop())
	kept, err = pages.Get(s.ctx, page.Name, metav1.GetOptions{})
	s.must(err)
	kept.Data, kept.BinaryData = nil, nil
	_, err = pages.Update(s.ctx, kept, metav1.UpdateOptions{})
	s.must(err)
	_, err = s.StartSidecar(s.ctx)
	s.must(err)
	s.bound(claim)
	for _, c := range []*v1.PersistentVolumeClaim{first, other, claim} {
		s.deleteClaim(c)
		s.gone(c)
	}
}
