package source

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Foreign is a source of a kind that no CSI driver copies: a volume populator's,
// which then makes the volume too.
type Foreign struct {
	Group, Kind, Namespace, Name string
}

// Error names the source.
func (f *Foreign) Error() string {
	return fmt.Sprintf("the data source %s %s/%s of API group %q is for an external populator", f.Kind, f.Namespace, f.Name, f.Group)
}

func foreign(apiGroup *string, kind, namespace, name string) *Foreign {
	f := &Foreign{Kind: kind, Namespace: namespace, Name: name}
	if apiGroup != nil {
		f.Group = *apiGroup
	}
	return f
}

// Refused is a source that will not do: nothing comes of trying again before an
// object, or the driver, has changed.
type Refused struct {
	// What is wrong, in which object, and what to Do about it.
	What, Do string
}

// Error says what is wrong and what to do.
func (r *Refused) Error() string { return r.What + "; " + r.Do }

// Infeasible implements provisioner.Infeasible: it is not tried again soon.
func (r *Refused) Infeasible() bool { return true }

// Unprotected is a VolumeSnapshot that cannot be kept from being deleted while a
// volume is made of it.
type Unprotected struct{ Err error }

// Error says why, and what to do.
func (u *Unprotected) Error() string {
	return "the data source may be deleted while the volume is made of it: " + u.Err.Error()
}

// Unwrap returns the server's refusal.
func (u *Unprotected) Unwrap() error { return u.Err }

// noSuchAPI reports whether an error says that the server does not know the kind
// at all, rather than that there is no such object. Both are 404, but only an
// object's comes from the API machinery.
func noSuchAPI(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// readError explains a failed read of an object.
func readError(err error, what string, gr schema.GroupResource) error {
	switch {
	case noSuchAPI(err):
		return fmt.Errorf("reading %s: the API server does not serve %s; install the CRDs of external-snapshotter: %w", what, gr, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s does not exist; create it, or make the claim again with another data source: %w", what, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("reading %s: %w; grant the sidecar's ServiceAccount get on %s", what, err, gr)
	default:
		return fmt.Errorf("reading %s: %w", what, err)
	}
}
