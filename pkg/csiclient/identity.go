package csiclient

import (
	"context"
	"errors"
	"fmt"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/util/validation"
)

// maxNameLength is the longest driver name in bytes (CSI, GetPluginInfo).
const maxNameLength = 63

// introduce asks the driver behind a fresh session whether it is ready, who it
// is and what it can do, and judges the answers.
func (c *Client) introduce(ctx context.Context, s *session) error {
	if err := c.probe(ctx, s); err != nil {
		return err
	}
	info, err := s.identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return c.introductionProblem(err)
	}
	if err := c.checkName(info.GetName()); err != nil {
		return err
	}
	plugin, err := s.identity.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return c.introductionProblem(err)
	}
	caps := Capabilities{services: servicesOf(plugin)}
	if !caps.ControllerService() {
		return &Problem{
			What:      fmt.Sprintf("the driver %s at %s has no CONTROLLER_SERVICE", info.GetName(), c.path),
			Do:        "set --csi-address to the socket of its controller plugin",
			Permanent: true,
		}
	}
	rpcs, err := s.controller.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return c.introductionProblem(err)
	}
	caps.rpcs = rpcsOf(rpcs)
	s.name, s.caps = info.GetName(), caps
	return nil
}

// probe asks whether the driver is ready. A driver that does not say is ready
// (CSI, ProbeResponse).
func (c *Client) probe(ctx context.Context, s *session) error {
	resp, err := s.identity.Probe(ctx, &csi.ProbeRequest{})
	if err != nil {
		return c.probeProblem(s, err)
	}
	if ready := resp.GetReady(); ready != nil && !ready.GetValue() {
		return &Problem{
			What: fmt.Sprintf("the driver at %s says that it is not ready", c.path),
			Do:   "wait for it, or look at its log",
		}
	}
	return nil
}

// probeProblem explains a failed Probe, which on a fresh session is also the
// one that opens the connection.
func (c *Client) probeProblem(s *session, err error) error {
	if failed := s.dialer.failure(); failed != nil {
		return dialProblem(c.path, failed)
	}
	var call *CallError
	if !errors.As(err, &call) {
		return err
	}
	switch {
	case !call.Sent:
		return &Problem{
			What: fmt.Sprintf("what listens on %s accepts connections but does not answer as a gRPC server", c.path),
			Do:   "see that it is the CSI driver's socket and that the driver does not hang",
			Err:  err,
		}
	case call.Code == codes.DeadlineExceeded:
		return &Problem{
			What: fmt.Sprintf("the driver at %s does not answer Probe", c.path),
			Do:   "look at the driver's log; restart it if it hangs",
			Err:  err,
		}
	case call.Code == codes.Unimplemented:
		return &Problem{
			What: fmt.Sprintf("the server at %s does not have the CSI call Probe", c.path),
			Do:   "set --csi-address to the socket of a CSI driver",
			Err:  err,
		}
	default:
		return &Problem{What: fmt.Sprintf("the driver at %s fails Probe", c.path), Do: "wait for it, or look at its log", Err: err}
	}
}

func (c *Client) introductionProblem(err error) error {
	return &Problem{
		What: fmt.Sprintf("the driver at %s does not say who it is or what it can do", c.path),
		Do:   "look at the driver's log",
		Err:  err,
	}
}

// checkName holds a name against the rules and against the first one heard.
func (c *Client) checkName(name string) error {
	if err := validateName(name); err != nil {
		return &Problem{
			What:      fmt.Sprintf("the driver at %s has the invalid name %q", c.path, cut(oneLine(name, maxReason), maxReason)),
			Do:        "use a driver whose GetPluginInfo follows the CSI spec",
			Permanent: true,
			Err:       err,
		}
	}
	if known := c.Name(); known != "" && known != name {
		return &Problem{
			What: fmt.Sprintf("the driver at %s changed its name from %s to %s", c.path, known, name),
			Do:   "bring the first driver back, or restart this process to serve the other one",
		}
	}
	return nil
}

// validateName applies the rules of CSI (GetPluginInfo) and those of Kubernetes
// for the name of a CSIDriver, which match the name in lower case.
func validateName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case len(name) > maxNameLength:
		return fmt.Errorf("the name has %d bytes, and %d are allowed", len(name), maxNameLength)
	}
	if problems := validation.IsDNS1123Subdomain(strings.ToLower(name)); len(problems) > 0 {
		return errors.New("the name is no domain name: it takes letters, digits, dashes and dots, and starts and ends with a letter or digit")
	}
	return nil
}
